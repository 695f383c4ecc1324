"""Jobs that stand by: their GPUs are lent to spot jobs for a while, and they come back to them (ADR 0103). Pure.

A standby has a job, the machine that it left, and a window. From when its run has saved and ended until it is called
back, other machines of spot jobs are cut on the same GPUs; the machine itself stays, with its folder and environment,
and nobody else is given anything of it. A policy sees neither the job nor what is free on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.core.calendar import written
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.node import NodeState
from app.core.model.plan import Assign, Release
from app.core.model.snapshot import JobView, NodeView, Snapshot, versions_of

PATIENCE_MS = 600_000  # after its call a job begins elsewhere if its own GPUs are not to be had
SETTLED_MS = 60_000  # so long after it began again a job that tells no step counts as back
_BACK = "comes back from standing by to the machine that it left"
_FREES = "the job that stood by here does not come back to it"
_THERE = frozenset({NodeState.READY, NodeState.UNREACHABLE})

StandbyClaim = Assign | Release


@dataclass(frozen=True, slots=True)
class Holder:
    """Another machine on GPUs that are lent. `job_ids`: of its live runs; `asked`: of those that leave already."""

    node_id: str
    gpus: int
    state: NodeState
    job_ids: tuple[str, ...] = ()
    asked: frozenset[str] = frozenset()

    @property
    def to_ask(self) -> tuple[str, ...]:
        """Whose code is still to be told to leave."""
        return tuple(job_id for job_id in self.job_ids if job_id not in self.asked)


@dataclass(frozen=True, slots=True)
class StandbyView:
    """`left_ms`: since when its job has left its GPUs; `called_ms`: since when they are to be its own again;
    `over_why`: why it does not come back to them. `left_step`: the job's step when it left. `lent_gpus`: of its
    machine, on its host. `holders`: who has some of these."""

    standby_id: str
    job_id: str
    node_id: str
    until_ms: int
    left_ms: int | None = None
    called_ms: int | None = None
    over_why: str | None = None
    left_step: int = 0
    lent_gpus: int = 0
    holders: tuple[Holder, ...] = ()
    running_ms: int | None = None  # when the code of the run began that the job has there now

    @property
    def used(self) -> int:
        """How many of its GPUs others have."""
        return min(self.lent_gpus, sum(holder.gpus for holder in self.holders))


@dataclass(frozen=True, slots=True)
class OverStandby:
    """It ends now. `is_back`: the job trains again where it did."""

    standby: StandbyView
    why: str
    is_back: bool = False


@dataclass(frozen=True, slots=True)
class StoodBy:
    """The world as it is for all others; what is done for those that stand by, in this order. `calls`: whose window is
    over; `clears`: on whose GPUs others are still; `given_up`: who does not come back, so that its machine is to end;
    `over`: of which nothing is left to do; `waits`: what these jobs wait for, by id."""

    snapshot: Snapshot
    calls: tuple[StandbyView, ...] = ()
    clears: tuple[StandbyView, ...] = ()
    claims: tuple[StandbyClaim, ...] = ()
    given_up: tuple[OverStandby, ...] = ()
    over: tuple[OverStandby, ...] = ()
    waits: tuple[tuple[str, str], ...] = ()
    wake_at_ms: int | None = None


def stand_by(snapshot: Snapshot, standbys: Sequence[StandbyView]) -> StoodBy:
    """What becomes of each now. `standbys` are those that are not over."""
    found = _StandingBy(snapshot)
    for one in sorted(standbys, key=lambda it: it.standby_id):
        found.look_at(one)
    return found.result()


def out_of_sight(snapshot: Snapshot, standbys: Sequence[StandbyView]) -> Snapshot:
    """The world without these, whatever is to become of them: nobody is given anything that may be lent."""
    job_ids = {one.job_id for one in standbys if one.left_ms is not None}
    node_ids = {one.node_id for one in standbys if one.left_ms is not None}
    return replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.job_id not in job_ids),
        runs=tuple(run for run in snapshot.runs if job_ids.isdisjoint(run.job_ids)),
        nodes=tuple(_shut(node) if node.node_id in node_ids else node for node in snapshot.nodes),
    )


def _shut(node: NodeView) -> NodeView:
    return replace(node, free_gpus=(), idle_since_ms=None)


class _StandingBy:
    def __init__(self, snapshot: Snapshot) -> None:
        self._seen, self._now_ms = snapshot, snapshot.now_ms
        self._jobs = {job.job_id: job for job in snapshot.jobs}
        self._nodes = {node.node_id: node for node in snapshot.nodes}
        self._on = {job_id: run.node_id for run in snapshot.runs for job_id in run.job_ids}
        self._spot_only: set[str] = set()
        self._hidden: set[str] = set()
        self._calls: list[StandbyView] = []
        self._clears: list[StandbyView] = []
        self._claims: list[StandbyClaim] = []
        self._given_up: list[OverStandby] = []
        self._over: list[OverStandby] = []
        self._waits: dict[str, str] = {}
        self._wakes: list[int] = []

    def look_at(self, one: StandbyView) -> None:
        node = self._nodes.get(one.node_id)
        self._spot_only |= {holder.node_id for holder in one.holders}
        if one.left_ms is None:
            if one.over_why is not None:
                self._over.append(OverStandby(one, one.over_why))
            return
        if node is None or node.state not in _THERE:
            self._over.append(
                OverStandby(one, one.over_why or "its machine is not there any more; it goes on elsewhere")
            )
            return
        job, place = self._jobs.get(one.job_id), self._on.get(one.job_id)
        if one.over_why is not None:
            self._end_machine(node)
        elif place is not None:
            self._settle(one, job, place)
        elif job is None:
            self._shut(node)  # it cannot be read now, or has ended in this moment
        elif job.state not in PLACEABLE_JOB_STATES or job.leaving:
            self._give_up(one, node, "it is held, and wants no place now")
        else:
            self._wait(one, job, node)

    def result(self) -> StoodBy:
        nodes = (self._nodes[node.node_id] for node in self._seen.nodes)
        snapshot = replace(
            self._seen,
            jobs=tuple(job for job in self._seen.jobs if job.job_id not in self._hidden),
            nodes=tuple(replace(one, spot_only=True) if one.node_id in self._spot_only else one for one in nodes),
        )
        return StoodBy(
            snapshot,
            tuple(self._calls),
            tuple(self._clears),
            tuple(self._claims),
            tuple(self._given_up),
            tuple(self._over),
            tuple(self._waits.items()),
            min(self._wakes, default=None),
        )

    def _wait(self, one: StandbyView, job: JobView, node: NodeView) -> None:
        """It is lent, or to come back."""
        self._shut(node)
        if one.called_ms is None and one.until_ms > self._now_ms:
            self._hide(one, self._lent(one))
            self._wakes.append(one.until_ms)
        elif one.called_ms is None:
            self._calls.append(one)
            self._hide(one, "is called back from standing by: its window is over")
        elif self._now_ms >= one.called_ms + PATIENCE_MS:
            late = "its GPUs were not given back in time, a fault of the service; it goes on elsewhere"
            self._give_up(one, node, late)
        elif one.holders:
            self._clears.append(one)
            self._hide(one, f"comes back as soon as spot jobs have left {one.used} of its {one.lent_gpus} GPUs")
        else:
            self._bring_back(one, job)

    def _lent(self, one: StandbyView) -> str:
        return f"stands by: spot jobs use {one.used} of its {one.lent_gpus} GPUs, until {written(one.until_ms)}"

    def _bring_back(self, one: StandbyView, job: JobView) -> None:
        self._hide(one, "comes back from standing by: its GPUs are free")
        node = next(it for it in self._seen.nodes if it.node_id == one.node_id)
        gpus = node.free_gpus[: job.resources.gpus_min]
        if node.state is not NodeState.READY or job.not_before_ms > self._now_ms:
            return
        if len(gpus) < job.resources.gpus_min:  # it was resized meanwhile
            self._hidden.discard(one.job_id)
            self._give_up(one, node, f"it wants {job.resources.gpus_min} GPUs now, and its machine has {len(gpus)}")
            return
        self._claims.append(Assign(job.job_id, node.node_id, gpus, _BACK, versions_of(job, node)))

    def _settle(self, one: StandbyView, job: JobView | None, place: str) -> None:
        """It has a run again: it is back once that has made a step, or has run for a while."""
        if place != one.node_id:
            self._over.append(OverStandby(one, "it has another place"))
        elif one.running_ms is not None:
            has_stepped = job is not None and job.step > one.left_step
            if has_stepped or self._now_ms >= one.running_ms + SETTLED_MS:
                self._over.append(OverStandby(one, "it trains again", is_back=True))
            else:
                self._wakes.append(one.running_ms + SETTLED_MS)

    def _give_up(self, one: StandbyView, node: NodeView, why: str) -> None:
        self._given_up.append(OverStandby(one, why))
        self._shut(node)

    def _end_machine(self, node: NodeView) -> None:
        self._shut(node)
        if node.state is NodeState.READY and len(node.free_gpus) == node.gpu_count:
            self._claims.append(Release(node.node_id, _FREES, versions_of(node)))

    def _hide(self, one: StandbyView, why: str) -> None:
        self._hidden.add(one.job_id)
        self._waits[one.job_id] = why

    def _shut(self, node: NodeView) -> None:
        self._nodes[node.node_id] = _shut(node)
