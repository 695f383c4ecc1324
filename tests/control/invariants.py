"""What must hold at any moment, whatever has happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from app.core.model.node import NodeState
from app.db import tables as t
from app.db.tables import merges
from tests.control.fake_provider import FakeProvider

_OVER = (NodeState.TERMINATED, NodeState.FAILED)
_ENDS = ("succeeded", "failed", "cancelled")
_PREPARED = ("standby", "promoting")
_PLACED = ("starting", "running", "checkpointing")
_OPEN = ("preparing", "saving", "promoting")  # moves
Rows = Callable[[Any], Awaitable[Sequence[Any]]]


async def breaches(rows: Rows, cloud: FakeProvider) -> list[str]:
    """A sentence for each thing that is wrong with the rows, or with the company's machines in their light."""
    nodes = {row.id: row.state for row in await rows(t.nodes)}
    held = await rows(t.run_jobs)
    runs = await rows(t.runs)
    live = {row.id for row in runs if row.state != "ended"}
    # Of a move that has handed over, the source sends what it has left; its job is the target's, or elsewhere by now.
    members = {row.id: row.member_of for row in runs if row.member_of is not None}
    leaving = {row.source_run_id for row in await rows(t.moves) if row.state == "promoting"}
    holding = live - {row.id for row in runs if row.state in _PREPARED} - leaving - members.keys()
    return [
        *_machines(cloud, nodes),
        *_jobs(held, holding, await rows(t.job_events)),
        *(
            f"{run_id} lives on, {members[run_id]} is over"
            for run_id in live & members.keys()
            if members[run_id] not in live
        ),
        *_moves(held, live, leaving | members.keys(), await rows(t.jobs), await rows(t.moves)),
        *_allocations(await rows(t.allocations), nodes, live),
        *_gpus(await rows(t.allocations), {row.id: row.companion_of or row.id for row in runs}),
        *_merges(await rows(merges), {job.id: job.state for job in await rows(t.jobs)}),
    ]


def _machines(cloud: FakeProvider, nodes: dict[str, str]) -> Iterator[str]:
    for machine in cloud.alive():
        if machine.label not in nodes:
            yield f"{machine.ref} has no row"
        elif nodes[machine.label] in _OVER:
            yield f"{machine.ref} lives on, its node {machine.label} is {nodes[machine.label]}"


def _jobs(held: Sequence[Any], live: set[str], events: Sequence[Any]) -> Iterator[str]:
    epochs = Counter((row.job_id, row.epoch) for row in held)
    yield from (f"{job_id} has {count} runs at epoch {epoch}" for (job_id, epoch), count in epochs.items() if count > 1)
    runs = Counter(row.job_id for row in held if row.run_id in live)
    yield from (f"{job_id} has {count} live runs" for job_id, count in runs.items() if count > 1)
    ends = Counter(event.job_id for event in events if event.kind in _ENDS)
    yield from (f"{job_id} ended {count} times" for job_id, count in ends.items() if count > 1)


def _moves(
    held: Sequence[Any], live: set[str], leaving: set[str], jobs: Sequence[Any], moves: Sequence[Any]
) -> Iterator[str]:
    """A job that has a place has it by its epoch, and runs live beside that one only while it moves."""
    epochs = {job.id: job.epoch for job in jobs}
    states = {job.id: job.state for job in jobs}
    held_live = [row for row in held if row.run_id in live - leaving]
    runs_of = {job.id: {row.run_id for row in held_live if row.job_id == job.id} for job in jobs}
    holders = Counter(row.job_id for row in held if row.run_id in live and row.epoch == epochs[row.job_id])
    for job_id, state in states.items():
        if (state in _PLACED) != (holders[job_id] == 1):
            yield f"{job_id} is {state}, and {holders[job_id]} live runs hold its epoch {epochs[job_id]}"
    open_moves = {row.job_id: {row.source_run_id, row.target_run_id} for row in moves if row.state in _OPEN}
    for job_id, runs in runs_of.items():
        if len(runs) > 1 and not runs <= open_moves.get(job_id, set()):
            yield f"{job_id} has live runs {sorted(runs)} and does not move between them"
    for row in moves:
        if row.state in _OPEN and row.target_run_id not in live and row.source_run_id not in live & leaving:
            yield f"{row.job_id} moves to {row.target_run_id}, which is over"


def _merges(merges: Sequence[Any], states: dict[str, str]) -> Iterator[str]:
    """Nobody waits for, or trains with, a job that is over or paused; and for one other at most."""
    pairs = [(row.lead_job_id, row.companion_job_id) for row in merges if row.state == "open"]
    merged = Counter(job_id for pair in pairs for job_id in pair)
    yield from (f"{job_id} is in {count} open merges" for job_id, count in merged.items() if count > 1)
    for job_id in merged:
        if states[job_id] in (*_ENDS, "paused"):
            yield f"{job_id} is {states[job_id]} and still merged"
    for row in merges:
        if row.state == "open" and row.mode == "in-turn" and states[row.companion_job_id] in _PLACED:
            yield f"{row.companion_job_id} has a place before its turn"


def _allocations(allocations: Sequence[Any], nodes: dict[str, str], live: set[str]) -> Iterator[str]:
    for row in allocations:
        if row.to_ms is None and nodes[row.node_id] in _OVER:
            yield f"{row.run_id} holds GPUs of {row.node_id}, which is {nodes[row.node_id]}"
        if row.to_ms is None and row.run_id not in live:
            yield f"{row.run_id} is over and holds GPUs of {row.node_id}"


def _gpus(allocations: Sequence[Any], process: dict[str, str]) -> Iterator[str]:
    """Only runs of one process hold the same GPU."""
    holders: dict[tuple[str, int], set[str]] = {}
    for row in allocations:
        for index in row.gpu_indices if row.to_ms is None else ():
            holders.setdefault((row.node_id, index), set()).add(process[row.run_id])
    yield from (f"GPU {index} of {node_id} is held twice" for (node_id, index), by in holders.items() if len(by) > 1)
