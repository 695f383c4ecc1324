"""Where merging takes part in the lives of runs and jobs. What it does there is in the other files of this package."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from allpass.wire.agent import ExitReport, RunReport
from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.merge import MergeMode
from app.core.model.run import RunPurpose
from app.db.connection import Connection
from app.db.engine import Database
from app.db.merging.merges import open_merges_of, was_learned
from app.db.runs.desired_state import LiveRun, RunOrder
from app.db.runs.live_runs import RunRow
from app.ports.clock import IdSource
from app.services.kit.capability import Beginning, Capability
from app.services.merging.end_profile import judge_profile
from app.services.merging.own_profile import is_to_look, take_own_profile
from app.services.merging.part_by_exit import part_by_exit
from app.services.merging.part_jobs import leave_mate, part_from_partner
from app.services.merging.watch_partner import take_watch, watch_of
from app.settings import Settings


class MergingHooks(Capability):
    async def begin_runs(
        self, connection: Connection, beginning: Collection[Beginning]
    ) -> Mapping[Beginning, Collection[str]]:
        """A lead that trains together with its companion begins with it."""
        train = {job_id for job_id, purpose in beginning if purpose is RunPurpose.TRAIN}
        open_merges = await open_merges_of(connection, train)
        together = {job_id: merge for job_id, merge in open_merges.items() if merge.mode is MergeMode.TOGETHER}
        return {(job_id, RunPurpose.TRAIN): (merge.companion_id,) for job_id, merge in together.items()}

    async def judge_exit(
        self, connection: Connection, run: RunRow, job_id: str, exit_: ExitReport, *, now_ms: int
    ) -> Outcome | None:
        parted = await part_by_exit(connection, run, job_id, exit_, now_ms=now_ms)
        return parted or await judge_profile(connection, run, exit_, now_ms=now_ms)

    async def end_run(self, connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
        await leave_mate(connection, run, job_id, outcome, now_ms=now_ms)

    async def stop_job(self, connection: Connection, job_id: str, state: JobState, *, now_ms: int) -> None:
        await part_from_partner(connection, job_id, state, now_ms=now_ms)

    def says_more(self, report: RunReport) -> bool:
        return report.watch is not None

    async def take_report(
        self, database: Database, ids: IdSource, report: RunReport, run: LiveRun, *, now_ms: int
    ) -> None:
        await take_own_profile(database, report, now_ms=now_ms)

    async def take_progress(self, database: Database, report: RunReport) -> None:
        await take_watch(database, report)

    async def order(
        self, connection: Connection, settings: Settings, order: RunOrder, *, now_ms: int
    ) -> Mapping[str, Any]:
        return {
            "watch": await watch_of(connection, order),
            "profiles": await is_to_look(connection, settings, order, now_ms=now_ms),
        }

    async def gave(self, connection: Connection, job_id: str, checkpoint_id: str) -> bool:
        return await was_learned(connection, job_id, checkpoint_id)
