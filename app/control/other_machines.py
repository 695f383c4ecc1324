"""Ranges that go on on a machine of another size though no deadline asks for it: cheaper, or sooner on idle GPUs.

The next machine is prepared while they train on, as with every planned move; what is decided here is enacted as any
move to a machine of one's own is (`MoveOut`), under the limits, budgets and locks of that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.control.context import ControlContext
from app.control.each import each, each_by_itself
from app.control.enact import enact
from app.core.board import LASTING_NODE_STATES, Board
from app.core.elastic.deadlines import SizedMachine
from app.core.elastic.other_machines import MoveTimes, larger_machine, smaller_machine
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.runs import ElasticRun
from app.core.layout import Layout
from app.core.lending import remaining_of
from app.core.market import Market
from app.core.model.health import Chore
from app.core.model.money import Money
from app.core.model.node import SERVERFUL_TIERS, Tier
from app.core.model.offer import Offer
from app.core.model.plan import ActionKind, MoveOut, Plan
from app.core.model.snapshot import JobView, NodeView, Snapshot
from app.core.policies.reasons import duration
from app.core.policy import PolicyConfig
from app.db.connection import Connection
from app.db.runs.grown import last_changes
from app.services.decisions.policy_settings import policy_config
from app.services.sizes.change_machine import LARGER, SMALLER, is_as_decided, tell_changed_machine

_LOOK_MS = 30_000
AGAIN_MS = 3_600_000  # a job goes to a machine of another size no more than once an hour


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """`gpus`: as many as the job begins with there. `kind`: of the event that tells it."""

    run: ElasticRun
    gpus: int
    kind: str
    move: MoveOut


@dataclass(frozen=True, slots=True)
class SeenRanges:
    """What is looked at. `is_crowded`: somebody waits, or has just been given something."""

    snapshot: Snapshot
    board: Board
    profiles: Mapping[str, SpeedProfile]
    config: PolicyConfig
    is_crowded: bool

    @property
    def times(self) -> MoveTimes:
        moves = self.config.moves
        return MoveTimes((moves.save_ms + moves.load_ms) / 1000, moves.prepare_ms / 1000)

    @property
    def may_rent(self) -> bool:
        """Whether settings allow one more machine, while the one that is left is still there."""
        rented = sum(
            node.tier in SERVERFUL_TIERS and node.tier is not Tier.OWN and node.state in LASTING_NODE_STATES
            for node in self.snapshot.nodes
        )
        return rented < self.config.serverful_limit


class MachineChanger:
    """One per control loop."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._looked_ms: int | None = None

    async def look(
        self, snapshot: Snapshot, plan: Plan, board: Board, runs: Sequence[ElasticRun],
        profiles: Mapping[str, SpeedProfile], changing: Collection[str],
    ) -> int | None:  # fmt: skip
        """`changing`: runs that have something else to do. Returns when to look again, if there is a range."""
        now_ms = self._context.clock.now_ms()
        config = policy_config(self._context.settings)
        ranges = [run for run in runs if run.is_range]
        if not ranges or ActionKind.MIGRATE not in config.capabilities:
            return None
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < _LOOK_MS:
            self._looked_ms = now_ms
            still = [run for run in ranges if run.run_id not in changing and run.is_settled(now_ms)]
            seen = SeenRanges(snapshot, board, profiles, config, is_crowded=bool(plan.waiting or plan.actions))
            await each_by_itself(
                self._context, Chore.LEND, [still], lambda some: self._change(seen, some, now_ms), named=_all
            )
        return self._looked_ms + _LOOK_MS

    async def _change(self, seen: SeenRanges, runs: Sequence[ElasticRun], now_ms: int) -> None:
        left_s = remaining_of(seen.board, runs)
        known = [run for run in runs if run.run_id in left_s]
        if not known:
            return
        async with self._context.database.statement() as connection:
            changed_ms = await last_changes(connection, [run.job_id for run in known])
        found = []
        for run in known:
            job, node = seen.board.jobs.get(run.job_id), seen.board.nodes.get(run.node_id)
            if job is None or node is None or not may_leave(job, changed_ms.get(run.job_id), now_ms):
                continue
            found.append(_change_of(seen, job, node, run, left_s[run.run_id], now_ms))
        changes = _without_rivals(list(filter(None, found)))
        layouts = await self._context.layouts.of(seen.snapshot, [one.move for one in changes]) if changes else {}

        async def act(connection: Connection, one: PlannedChange) -> bool:
            return await self._enact(connection, one, layouts, now_ms)

        await each(self._context, Chore.LEND, changes, act, named=lambda one: one.run.run_id)

    async def _enact(
        self, connection: Connection, one: PlannedChange, layouts: Mapping[str, Layout], now_ms: int
    ) -> bool:
        """Whether it moves. False, with no machine rented, where it is not what was decided on any more."""
        if not await is_as_decided(connection, one.run):
            return False
        if await enact(connection, self._context, (one.move,), now_ms=now_ms, layouts=layouts):
            return False
        await tell_changed_machine(connection, one.run, one.kind, one.gpus, one.move.reason, now_ms=now_ms)
        return True


def may_leave(job: JobView, changed_ms: int | None, now_ms: int) -> bool:
    """Whether its code saves when it is asked to, no other job has a word in where it goes, and it has gone nowhere for
    the sake of its size lately."""
    if changed_ms is None or job.stays or job.affinity.beside or job.affinity.apart:
        return False
    return not 0 <= now_ms - changed_ms < AGAIN_MS


def sized_machines(
    job: JobView, node: NodeView, sizes: Sequence[int], markets: Sequence[Market]
) -> Iterator[tuple[SizedMachine, Offer]]:
    """The machine that would be had for each of these numbers of GPUs, on the kind of GPU that the job has: what was
    measured is of that."""
    for gpus in sizes:
        need = replace(job.resources, gpus_min=gpus, gpus_max=max(gpus, job.resources.gpus_max), gpu_type=node.gpu_type)
        for market in markets:
            choice = market.choose(replace(job, resources=need))
            if choice is not None and choice.can_be_had and not choice.again:
                offer = choice.offer  # which is paid whole, also where it has more GPUs than the job would
                arrival_s = (offer.startup_ms + offer.arrival_ms) / 1000
                yield SizedMachine(gpus, offer.price_per_hour.micros, arrival_s), offer


def _change_of(
    seen: SeenRanges, job: JobView, node: NodeView, run: ElasticRun, remaining_s: float, now_ms: int
) -> PlannedChange | None:
    if not _may_be_moved(seen.board, job, now_ms):
        return None
    profile = seen.profiles.get(run.run_id) or SpeedProfile(run.asked)
    smaller = _smaller(seen, job, node, run, profile, remaining_s, now_ms)
    if smaller is not None or seen.is_crowded:
        return smaller
    return _larger(seen, job, node, run, profile, remaining_s)


def _may_be_moved(board: Board, job: JobView, now_ms: int) -> bool:
    is_free = job.not_before_ms <= now_ms and job.not_moved_before_ms <= now_ms
    return is_free and not job.leaving and not board.is_moving(job.job_id) and job.resources.nodes == 1


def _smaller(
    seen: SeenRanges, job: JobView, node: NodeView, run: ElasticRun, profile: SpeedProfile, remaining_s: float,
    now_ms: int,
) -> PlannedChange | None:  # fmt: skip
    """From a rented machine that it has for itself alone: that is what is given back."""
    is_rented = node.tier in SERVERFUL_TIERS and node.tier is not Tier.OWN
    if not is_rented or len(seen.board.runs_on(node.node_id)) != 1 or not seen.may_rent:
        return None
    markets = (seen.board.own, seen.board.serverful)
    offered = sized_machines(job, node, range(run.least, run.held.wanted), markets)
    found = {one: offer for one, offer in offered if not (seen.is_crowded and offer.tier is Tier.OWN)}
    now = SizedMachine(run.held.wanted, node.price_per_hour.micros, 0.0)
    left_s = None if run.due_ms is None else (run.due_ms - now_ms) / 1000
    best = smaller_machine(profile, now, remaining_s, left_s, seen.times, found)
    if best is None:
        return None
    in_time = "is in time with less" if left_s is not None else "costs less with fewer GPUs"
    told = (
        f"{in_time}: moves from {_gpus(run.held.wanted)} to a machine with {best.to.gpus}, where what is left costs "
        f"about {Money(best.saved_micros)} less"
    )
    return _planned(seen.board, job, run, SMALLER, best.to.gpus, found[best.to], told)


def _larger(
    seen: SeenRanges, job: JobView, node: NodeView, run: ElasticRun, profile: SpeedProfile, remaining_s: float
) -> PlannedChange | None:
    found = dict(sized_machines(job, node, range(run.held.wanted + 1, run.own + 1), (seen.board.own,)))
    best = larger_machine(profile, run.held.wanted, remaining_s, seen.times, found)
    if best is None:
        return None
    told = (
        f"nobody waits for GPUs of its pool: moves from {_gpus(run.held.wanted)} to {best.to.gpus} there, and is done "
        f"about {duration(int(best.sooner_s) * 1000)} sooner"
    )
    return _planned(seen.board, job, run, LARGER, best.to.gpus, found[best.to], told)


def _planned(
    board: Board, job: JobView, run: ElasticRun, kind: str, gpus: int, offer: Offer, told: str
) -> PlannedChange | None:
    view = board.runs.get(run.run_id)
    if view is None:
        return None
    versions = tuple(sorted([(job.job_id, job.row_version), (view.run_id, view.row_version)]))
    return PlannedChange(run, gpus, kind, MoveOut(job.job_id, run.run_id, offer, tuple(range(gpus)), told, versions))


def _without_rivals(changes: Sequence[PlannedChange]) -> list[PlannedChange]:
    """One for each place: what two would take is decided anew once the first has it."""
    taken: set[tuple[str, str]] = set()
    found = []
    for one in changes:
        place = (one.move.offer.provider, one.move.offer.host or one.move.offer.key)
        if place not in taken:
            found.append(one)
        taken.add(place)
    return found


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def _all(_: Sequence[ElasticRun]) -> str:
    return "ranges that change their machine"
