"""Whose GPUs of a machine are lent to a job that waits, and when they are given back (ADR 0096). Pure.

A job that is `elastic` asks for a number of GPUs, or for a range, and goes on with fewer while somebody waits for one:
a GPU at a time from whoever loses least by it (`app.core.elastic.sharing`), never the last one, and of a range never
what it needs to begin. What nobody waits for it has, up to what it asks for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from app.core.board import Board
from app.core.elastic.runs import REST_MS, ElasticRun
from app.core.elastic.sharing import GpuSharing
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.node import NodeState
from app.core.model.snapshot import JobView
from app.core.policies.placement import Fleet, Place
from app.core.remaining import predicted_ms, remaining_ms

__all__ = ["REST_MS", "TAKE_MS", "ElasticRun", "Lending", "Lent", "lend"]

TAKE_MS = 30_000  # a job that has not taken what is free for it by then waits for something else


@dataclass(frozen=True, slots=True)
class Lent:
    """The run is to go on with so many GPUs. `to_job_id`: for whom it gives some up; None: it has them back, or more.
    `set_aside`: so many GPUs of the machine are that job's alone, and it begins there as soon as they are free."""

    run: ElasticRun
    gpus: int
    to_job_id: str | None
    reason: str
    set_aside: int = 0


_Quiet: TypeAlias = tuple[Place, Sequence[ElasticRun]]


@dataclass(frozen=True, slots=True)
class Lending:
    """`declined`: jobs that have left free what was lent to them."""

    lent: tuple[Lent, ...]
    declined: frozenset[str]


_NOTHING_KNOWN = GpuSharing()


def lend(
    board: Board,
    runs: Sequence[ElasticRun],
    waiting: Collection[str],
    now_ms: int,
    sharing: GpuSharing = _NOTHING_KNOWN,
) -> Lending:
    """What is lent and given back now, of machines on which nothing is under way. `waiting`: the jobs that a decision
    on this board has left waiting. Each of them is lent to once, interactive jobs first, then whoever is due first, on
    the machine where that takes the fewest GPUs."""
    sharing = replace(sharing, remaining_s=remaining_of(board, runs), now_ms=now_ms)
    fleet = Fleet(board)
    quiet = _quiet(board, fleet, runs, now_ms)
    jobs = sorted(filter(None, map(board.jobs.get, waiting)), key=sharing.line_key)
    line = [job for job in jobs if job.state in PLACEABLE_JOB_STATES and job.not_before_ms <= now_ms]
    declined = {
        job.job_id
        for place, tenants in quiet
        for job in line
        if now_ms - max(run.changed_ms for run in tenants) >= TAKE_MS and _could_take(place, job, fleet)
    }
    line = [job for job in line if job.job_id not in declined]
    found: list[Lent] = []
    for job in line:
        taken = _lend_to(job, fleet, quiet, sharing)
        if taken:
            found += taken
            quiet = [one for one in quiet if one[0].place_id != taken[0].run.node_id]
    for place, tenants in quiet:
        if not any(_could_take(place, job, fleet) for job in line):
            found += _give_back(board, place, tenants, sharing)
    return Lending(tuple(found), frozenset(declined))


def _quiet(board: Board, fleet: Fleet, runs: Sequence[ElasticRun], now_ms: int) -> list[_Quiet]:
    """Machines that are there, with those that lend on them, where nothing is under way."""
    on_node: defaultdict[str, list[ElasticRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda one: one.run_id):
        on_node[run.node_id].append(run)
    return [
        (fleet.place_on(node), tenants)
        for node_id, tenants in sorted(on_node.items())
        if (node := board.nodes.get(node_id)) is not None
        and node.state is NodeState.READY
        and all(run.is_settled(now_ms) for run in tenants)
    ]


def _lend_to(job: JobView, fleet: Fleet, quiet: Sequence[_Quiet], sharing: GpuSharing) -> list[Lent]:
    best: list[tuple[ElasticRun, int]] = []
    fewest = 0
    for place, tenants in quiet:
        missing = job.resources.gpus_min - len(place.free_gpus)
        sizes = _sizes_without(tenants, missing, sharing) if missing > 0 else None
        if sizes is None or (best and missing >= fewest):
            continue
        spare = [index for run, size in sizes for index in run.held.indices[size:]]
        if _could_take(replace(place, free_gpus=(*place.free_gpus, *spare)), job, fleet):
            best, fewest = [one for one in sizes if one[1] < one[0].held.wanted], missing
    number = f"{fewest} GPU{'s' * (fewest > 1)}"
    first = sharing.is_interactive(job.job_id)
    whose = f"{job.job_id}, which is interactive," if first else job.job_id
    return [
        Lent(
            run,
            size,
            job.job_id,
            f"lends {run.held.wanted - size} of {number} that {whose} waits for",
            set_aside=job.resources.gpus_min if first else 0,
        )
        for run, size in best
    ]


def _sizes_without(
    tenants: Sequence[ElasticRun], count: int, sharing: GpuSharing
) -> list[tuple[ElasticRun, int]] | None:
    """Their sizes once so many are taken, one at a time, from whoever loses least by it; None where they have too
    few."""
    sizes = {run.run_id: run.held.wanted for run in tenants}
    for _ in range(count):
        lenders = [run for run in tenants if sharing.may_lend(run, sizes[run.run_id])]
        if not lenders:
            return None
        sizes[min(lenders, key=lambda run: sharing.lender_key(run, sizes[run.run_id])).run_id] -= 1
    return [(run, sizes[run.run_id]) for run in tenants]


def _could_take(place: Place, job: JobView, fleet: Fleet) -> bool:
    node = place.node
    hosts = fleet.hosts(job)
    is_theirs = node is not None and node.project_id == job.project_id and (not hosts or node.node_id in hosts)
    return is_theirs and place.takes(job)


def _give_back(board: Board, place: Place, tenants: Sequence[ElasticRun], sharing: GpuSharing) -> Iterator[Lent]:
    """One at a time to whoever gains most by it, and may pay for one more; where it makes no difference to whoever has
    fewest of its own. A range that is no faster with what it has than with less goes on with less."""
    most = {run.run_id: _most_paid(board, place, run) for run in tenants}
    sizes = {run.run_id: run.held.wanted for run in tenants}
    usable = {*place.free_gpus} - {index for run in tenants for index in run.broken}
    for idle in range(len(usable), 0, -1):
        room = {run.run_id: min(idle, most[run.run_id] - sizes[run.run_id]) for run in tenants}
        short = [
            run for run in tenants if room[run.run_id] > 0 and sharing.grows(run, sizes[run.run_id], room[run.run_id])
        ]
        if not short:
            break
        best = min(short, key=lambda run: sharing.growth_key(run, sizes[run.run_id], room[run.run_id]))
        sizes[best.run_id] += 1
    for run in tenants:
        useful = sharing.useful(run)
        if sizes[run.run_id] == run.held.wanted > useful:
            less = run.held.wanted - useful
            told = f"gives up {less} GPU{'s' * (less > 1)} that made it no faster"
            yield Lent(run, useful, None, told)
        if sizes[run.run_id] > run.held.wanted:
            told = f"has {sizes[run.run_id]} of its {run.own} GPUs, which nobody else waits for"
            yield Lent(run, sizes[run.run_id], None, told)


def _most_paid(board: Board, place: Place, run: ElasticRun) -> int:
    """As many of its own as the job's limit per hour allows there. Of a job that is not seen: what it has."""
    job = board.jobs.get(run.job_id)
    if job is None:
        return run.held.wanted
    prices = (place.price_per_hour.micros * count // max(1, place.gpu_count) for count in range(1, run.own + 1))
    return sum(job.caps.allows_hourly(price) for price in prices)


def remaining_of(board: Board, runs: Sequence[ElasticRun]) -> dict[str, float]:
    """By run, what was predicted of its job's time from now on, in seconds, where that counts."""
    found = {}
    for run in runs:
        job, seen = board.jobs.get(run.job_id), board.runs.get(run.run_id)
        if job is not None and predicted_ms(job, seen, board.now_ms) is not None:
            found[run.run_id] = remaining_ms(job, seen, board.now_ms) / 1000
    return found
