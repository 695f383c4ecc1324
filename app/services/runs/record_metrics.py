"""Keep what user code measured: one point per step, the newest epoch's."""

from __future__ import annotations

import math

from allpass.wire.agent import MetricReport, MetricReportPoint
from app.core.machine_clock import put_right
from app.core.model.run import RunState
from app.db.connection import Connection
from app.db.engine import Database
from app.db.fences import Writer, hold_fence
from app.db.nodes.agents import NodeIdentity, clock_behind_ms
from app.db.runs.metrics import LARGEST_VALUE, NOT_FINITE, PointEntry, add_points, told_not_finite
from app.db.runs.progress import raise_step
from app.db.text import storable_text
from app.db.transitions import Event, add_job_event
from app.services.moves.advance_move import measure_pause

_PAST_ITS_START = (RunState.RUNNING, RunState.STOPPING)


async def record_metrics(database: Database, node: NodeIdentity, request: MetricReport, *, now_ms: int) -> None:
    """Write the points under the job's current epoch; a repeated step overwrites, the last one named wins.

    A value that is no number (NaN, infinity), or too large to be averaged with others, is left out, and the job's event
    log says so once per run. Times are put right where the machine's clock is off, for another machine's stand beside
    them. Raises Fenced for a run that is over, NotFound.
    """
    async with database.transaction() as connection:
        writer = await hold_fence(
            connection, node.node_id, request.job_id, request.epoch, run_id=request.run_id, exclusive=True
        )
        behind = await clock_behind_ms(connection, node.node_id)
        points = {
            point.step: PointEntry(point.step, put_right(point.at_ms, behind), _countable(point))
            for point in request.points
        }
        await add_points(connection, request.job_id, request.epoch, points)
        if writer.run_state in _PAST_ITS_START:
            await raise_step(connection, request.job_id, request.epoch, max(points))
            await measure_pause(connection, request.job_id, writer.run_id, now_ms=now_ms)
        await _tell_not_finite(connection, writer, request.points, now_ms=now_ms)


def _countable(point: MetricReportPoint) -> dict[str, float]:
    return {storable_text(name): value for name, value in point.values.items() if abs(value) <= LARGEST_VALUE}


async def _tell_not_finite(
    connection: Connection, writer: Writer, points: list[MetricReportPoint], *, now_ms: int
) -> None:
    for point in points:
        for name, value in point.values.items():
            if abs(value) <= LARGEST_VALUE:
                continue
            if not await told_not_finite(connection, writer.job_id, writer.run_id):
                data = {"run_id": writer.run_id, "step": point.step, "metric": storable_text(name)}
                why = "too large to be kept" if math.isfinite(value) else "not a number any more"
                message = f"{storable_text(name)} is {value} at step {point.step}: {why}"
                await add_job_event(connection, writer.job_id, Event(NOT_FINITE, message, data), now_ms=now_ms)
            return
