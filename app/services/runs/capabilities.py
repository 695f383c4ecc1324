"""The capabilities that there are, and their hooks in this order (`app.services.kit.capability` says what each is for).

The one place outside their packages that knows them by name, with `app.db.locked_together`, which has their locks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allpass.wire.agent import ExitReport, RunReport
from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.db.connection import Connection
from app.db.engine import Database
from app.db.runs.desired_state import LiveRun, RunOrder
from app.db.runs.live_runs import RunRow
from app.ports.clock import IdSource
from app.services.evictions.hooks import EvictionHooks
from app.services.evictions.interruptions import InterruptionHooks
from app.services.gangs.hooks import GangHooks
from app.services.kit.capability import Beginning, Capability
from app.services.merging.hooks import MergingHooks
from app.services.sizes.hooks import SizeHooks
from app.services.standby.hooks import StandbyHooks
from app.settings import Settings

CAPABILITIES: tuple[Capability, ...] = (
    MergingHooks(),
    SizeHooks(),
    EvictionHooks(),
    InterruptionHooks(),
    GangHooks(),
    StandbyHooks(),
)


async def jobs_beside(connection: Connection, beginning: Collection[Beginning]) -> dict[Beginning, list[str]]:
    found: dict[Beginning, list[str]] = {one: [] for one in beginning}
    for capability in CAPABILITIES:
        for one, job_ids in (await capability.begin_runs(connection, beginning)).items():
            found[one] += job_ids
    return found


async def judged_otherwise(
    connection: Connection, run: RunRow, job_id: str, exit_: ExitReport, *, now_ms: int
) -> Outcome | None:
    for one in CAPABILITIES:
        outcome = await one.judge_exit(connection, run, job_id, exit_, now_ms=now_ms)
        if outcome is not None:
            return outcome
    return None


async def tell_run_ended(connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
    for one in CAPABILITIES:
        await one.end_run(connection, run, job_id, outcome, now_ms=now_ms)


async def tell_job_stopped(connection: Connection, job_id: str, state: JobState, *, now_ms: int) -> None:
    for one in CAPABILITIES:
        await one.stop_job(connection, job_id, state, now_ms=now_ms)


def says_more(report: RunReport) -> bool:
    return any(one.says_more(report) for one in CAPABILITIES)


async def take_report(database: Database, ids: IdSource, report: RunReport, run: LiveRun, *, now_ms: int) -> None:
    for one in CAPABILITIES:
        await one.take_report(database, ids, report, run, now_ms=now_ms)


async def take_progress(database: Database, report: RunReport) -> None:
    for one in CAPABILITIES:
        await one.take_progress(database, report)


async def further_orders(connection: Connection, settings: Settings, order: RunOrder, *, now_ms: int) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for one in CAPABILITIES:
        told |= await one.order(connection, settings, order, now_ms=now_ms)
    return told


async def was_given(connection: Connection, job_id: str, checkpoint_id: str) -> bool:
    for one in CAPABILITIES:
        if await one.gave(connection, job_id, checkpoint_id):
            return True
    return False
