"""What must hold at any moment, whatever has happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from app.core.model.node import NodeState
from app.db import tables as t
from tests.control.fake_provider import FakeProvider

_OVER = (NodeState.TERMINATED, NodeState.FAILED)
_ENDS = ("succeeded", "failed", "cancelled")
Rows = Callable[[Any], Awaitable[Sequence[Any]]]


async def breaches(rows: Rows, cloud: FakeProvider) -> list[str]:
    """A sentence for each thing that is wrong with the rows, or with the company's machines in their light."""
    nodes = {row.id: row.state for row in await rows(t.nodes)}
    held = await rows(t.run_jobs)
    live = {row.id for row in await rows(t.runs) if row.state != "ended"}
    return [
        *_machines(cloud, nodes),
        *_jobs(held, live, await rows(t.job_events)),
        *_allocations(await rows(t.allocations), nodes, live),
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


def _allocations(allocations: Sequence[Any], nodes: dict[str, str], live: set[str]) -> Iterator[str]:
    for row in allocations:
        if row.to_ms is None and nodes[row.node_id] in _OVER:
            yield f"{row.run_id} holds GPUs of {row.node_id}, which is {nodes[row.node_id]}"
        if row.to_ms is None and row.run_id not in live:
            yield f"{row.run_id} is over and holds GPUs of {row.node_id}"
