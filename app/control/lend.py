"""GPUs of elastic jobs go to jobs that wait, and come back: what a decision has left undone on machines that are there.

It follows a decision and looks at what that has seen, so that it never takes part in what policies weigh; where no
elastic job trains it costs one query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.control.context import ControlContext
from app.control.each import each, each_by_itself
from app.control.growing import DeadlineGrower
from app.control.keeping_gpus import KeepingWatch
from app.control.observe import Observation
from app.control.other_machines import MachineChanger
from app.control.queueing import QueueKeeper
from app.control.size_speeds import SpeedKeeper
from app.core.board import Board
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.range_moves import idle_machines, nodes_in
from app.core.elastic.runs import ElasticRun
from app.core.lending import REST_MS, TAKE_MS, Lent, lend
from app.core.model.health import Chore
from app.core.model.plan import Plan
from app.core.model.snapshot import Snapshot
from app.db.connection import Connection
from app.db.runs.sizes import elastic_runs
from app.services.sizes.lend_gpus import lend_gpus

_DECLINED_MS = 600_000


class Lender:
    """One per control loop. It remembers which jobs have left free what was lent to them, and lends them no more for a
    while: whoever decides has them wait for something else."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._kept = KeepingWatch(context)
        self._queues = QueueKeeper(context)
        self._speeds = SpeedKeeper(context)
        self._grower = DeadlineGrower(context)
        self._changer = MachineChanger(context)
        self._declined_until_ms: dict[str, int] = {}
        self._lent_until_ms: dict[str, int] = {}  # by the job that it was lent to, which has so long to take it
        self.wake_at_ms: int | None = None  # when to look again, whatever happens

    @property
    def helped(self) -> frozenset[str]:
        """Jobs for which an elastic one gives up GPUs now: for these nobody has to end."""
        now_ms = self._context.clock.now_ms()
        return frozenset(job_id for job_id, until_ms in self._lent_until_ms.items() if until_ms > now_ms)

    def tell(self, seen: Observation) -> Observation:
        """Who is helped, for policies that have runs stopped."""
        helped = self.helped
        if not helped:
            return seen
        jobs = (replace(job, helped=True) if job.job_id in helped else job for job in seen.snapshot.jobs)
        return replace(seen, snapshot=replace(seen.snapshot, jobs=tuple(jobs)))

    async def follow(self, snapshot: Snapshot, plan: Plan) -> None:
        """Lend and give back what this decision has left. What fails is this chore's alone: it is tried again with the
        next decision, and no decision is made for it."""
        self.wake_at_ms = None
        await each_by_itself(self._context, Chore.LEND, [plan], lambda _plan: self._kept.look(), named=_all)
        await each_by_itself(
            self._context, Chore.LEND, [plan], lambda it: self._grower.give_up(snapshot, it), named=_all
        )
        await each_by_itself(self._context, Chore.LEND, [snapshot], self._queues.learn, named=_queues)
        await each_by_itself(self._context, Chore.LEND, [plan], lambda it: self._lend(snapshot, it), named=_all)

    async def _lend(self, snapshot: Snapshot, plan: Plan) -> None:
        async with self._context.database.statement() as connection:
            found_runs = await elastic_runs(connection)
        restart_s = self._context.settings.move_save_s + self._context.settings.move_load_s
        runs = [replace(run, restart_s=restart_s) for run in found_runs]
        now_ms = self._context.clock.now_ms()
        is_under_way = any(run.held.wanted < run.own or not run.is_settled(now_ms) for run in runs)
        self.wake_at_ms = now_ms + REST_MS if is_under_way or (runs and plan.waiting) else None
        if not runs:
            return
        profiles = await self._profiles(runs)
        self._declined_until_ms = {one: until for one, until in self._declined_until_ms.items() if until > now_ms}
        waiting = {one.job_id for one in plan.waiting} - self._declined_until_ms.keys()
        board = Board.of(_small(snapshot, {run.node_id for run in runs}, waiting))
        sharing = await self._queues.sharing(snapshot, runs, waiting)
        found = lend(board, runs, waiting, now_ms, replace(sharing, profiles=profiles))
        self._declined_until_ms |= dict.fromkeys(found.declined, now_ms + _DECLINED_MS)
        self._lent_until_ms = {job_id: self._lent_until_ms[job_id] for job_id in self.helped}
        for lent in found.lent:
            if lent.to_job_id is not None:
                self._lent_until_ms[lent.to_job_id] = now_ms + TAKE_MS + lent.run.leaves_after_ms

        async def act(connection: Connection, lent: Lent) -> bool:
            return await lend_gpus(connection, self._context.ids, lent, now_ms=now_ms)

        await each(self._context, Chore.LEND, found.lent, act, named=lambda lent: lent.run.run_id)
        changing = {one.run.run_id for one in found.lent}
        idle = idle_machines(snapshot.nodes, {run.node_id for run in snapshot.runs} | nodes_in(plan))
        grown_ms = await self._grower.grow(board, runs, profiles, changing, idle)
        changed_ms = await self._changer.look(snapshot, plan, board, runs, profiles, changing, idle)
        wakes = (self.wake_at_ms, grown_ms, changed_ms)
        self.wake_at_ms = min((one for one in wakes if one is not None), default=None)

    async def _profiles(self, runs: Sequence[ElasticRun]) -> Mapping[str, SpeedProfile]:
        """How fast each is with each number of GPUs, as far as that is known; where looking fails, nothing is."""
        looked = await each_by_itself(self._context, Chore.LEND, [runs], self._speeds.profiles, named=_speeds)
        return looked[0] if looked else {}


def _speeds(_: Sequence[ElasticRun]) -> str:
    return "speeds of elastic jobs"


def _queues(_: Snapshot) -> str:
    return "how long jobs run"


def _all(plan: Plan) -> str:
    return "GPUs of elastic jobs"


def _small(snapshot: Snapshot, node_ids: set[str], waiting: set[str]) -> Snapshot:
    """What matters of it: machines on which somebody lends, who is there, and who waits."""
    runs = tuple(run for run in snapshot.runs if run.node_id in node_ids)
    concerned = waiting | {job_id for run in runs for job_id in run.job_ids}
    return replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.job_id in concerned),
        runs=runs,
        nodes=tuple(node for node in snapshot.nodes if node.node_id in node_ids),
        merges=(),
    )
