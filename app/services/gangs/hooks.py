"""Where jobs on several machines take part in the life of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allpass.wire.agent import RunReport
from app.core.explaining.spread import met
from app.core.model.run import RunState
from app.db.checkpoints.parts import step_awaited
from app.db.connection import Connection
from app.db.engine import Database
from app.db.runs.desired_state import LiveRun, RunOrder
from app.db.runs.live_runs import lock_run
from app.db.runs.members import GangRun, gang_of, gang_size, set_meeting, set_prepared, set_stops_together, wake_gang
from app.db.transitions import Event, add_job_event
from app.ports.clock import IdSource
from app.services.kit.capability import Capability
from app.settings import Settings

_BEFORE_RUNNING = (RunState.ASSIGNED, RunState.STARTING)


class GangHooks(Capability):
    async def take_report(
        self, database: Database, ids: IdSource, report: RunReport, run: LiveRun, *, now_ms: int
    ) -> None:
        """Where the first of them can be reached is for the others to know; once all are prepared, all may begin.
        Whether all of them stop together is for decisions to know."""
        if run.node_rank == 0 and report.stops_together and not run.stops_together:
            async with database.statement() as connection:
                await set_stops_together(connection, report.run_id)
        if run.node_rank is None or run.state not in _BEFORE_RUNNING:
            return
        told = None if report.meeting is None else report.meeting.model_dump()
        if report.phase != "prepared" and (told is None or run.node_rank):
            return
        async with database.transaction() as connection:
            locked = await lock_run(connection, report.run_id)
            if locked is None or locked.state not in _BEFORE_RUNNING:
                return
            gang = await gang_of(connection, report.run_id)
            mine = next((one for one in gang if one.run_id == report.run_id), None)
            if mine is None:
                return
            is_news = told is not None and mine.rank == 0 and told != mine.meeting
            if is_news and told is not None:
                await set_meeting(connection, mine.run_id, told)
            if report.phase == "prepared" and not mine.is_prepared:
                speed = report.network_bits_per_s if mine.rank else None
                await set_prepared(connection, mine.run_id, network_bits_per_s=speed, now_ms=now_ms)
                await _tell_met(connection, locked.job_ids, mine, now_ms=now_ms)
                is_news = True
            if is_news:
                await wake_gang(connection, gang)

    async def order(
        self, connection: Connection, settings: Settings, order: RunOrder, *, now_ms: int
    ) -> Mapping[str, Any]:
        """Who they are, and where they meet."""
        if order.node_rank is None:
            return {}
        gang = await gang_of(connection, order.run_id)
        size = await gang_size(connection, order.member_of or order.run_id)
        lead_id = order.member_of or order.run_id
        told: dict[str, Any] = {"nodes": size, "rank": order.node_rank}
        told["meeting"] = gang[0].meeting if gang and gang[0].rank == 0 else None
        told["parts"] = all(one.sends_parts for one in gang)
        told["part_step"] = await step_awaited(connection, lead_id)
        return {"gang": told}


async def _tell_met(connection: Connection, job_ids: Sequence[str], mine: GangRun, *, now_ms: int) -> None:
    """Once, as the last of them is prepared: the jobs are locked, so no two are the last."""
    gang = await gang_of(connection, mine.run_id)
    if len(gang) < await gang_size(connection, mine.lead_id) or not all(one.is_prepared for one in gang):
        return
    measured = {one.rank: one.network_bits_per_s for one in gang if one.network_bits_per_s is not None}
    told = f"all {len(gang)} machines are prepared{met(measured)}"
    data = {"run_id": mine.lead_id, "network_bits_per_s": {str(rank): speed for rank, speed in measured.items()}}
    for job_id in job_ids:
        await add_job_event(connection, job_id, Event("machines_met", told, data), now_ms=now_ms)


async def wanted_of_gang(connection: Connection, order: RunOrder) -> str | None:
    """What a run of several is to do otherwise than by itself: nothing before all of them are prepared, and nothing any
    more when one of them has failed; where one has only left, what leaves with it. None: as by itself."""
    gang = await gang_of(connection, order.run_id)
    over = {one.run_id: one for one in gang if one.exit_told is not None}
    if over:
        if order.run_id in over:
            return None
        return "checkpoint" if all(one.has_left for one in over.values()) else "kill"
    if order.state not in _BEFORE_RUNNING:
        return None
    size = await gang_size(connection, order.member_of or order.run_id)
    return None if len(gang) == size and all(one.is_prepared for one in gang) else "standby"
