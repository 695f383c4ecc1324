"""What the jobs of an app have taken, to predict the next."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, select, text
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.gpu_speeds import UNKNOWN_SPEEDS, GpuSpeeds, TimesOnType, usual_speeds, usual_type
from app.db.tables import run_history

NEWEST_WEIGHT = 0.3  # of the newest job in the mean: a changed script is believed after a few

_REMEMBER = text("""
    INSERT INTO run_history AS h (app_id, gpu_type, samples, run_ms, step_ms, updated_ms, saves)
    SELECT j.app_id, n.gpu_type, 1, j.ran_ms, CASE WHEN j.step > 0 THEN j.ran_ms::float8 / j.step END, :now_ms,
        j.saves_ms IS NOT NULL OR j.checkpoint_step IS NOT NULL
    FROM jobs AS j, nodes AS n
    WHERE j.id = :job_id AND n.id = :node_id AND j.ran_ms > 0 AND NOT EXISTS (
        SELECT FROM merges AS m
        WHERE m.mode = 'together' AND j.id IN (m.lead_job_id, m.companion_job_id)
            OR m.companion_job_id = j.id AND m.state = 'ended'
    )
    ON CONFLICT (app_id, gpu_type) DO UPDATE SET
        samples = h.samples + 1,
        run_ms = h.run_ms + :weight * (excluded.run_ms - h.run_ms),
        step_ms = coalesce(h.step_ms + :weight * (excluded.step_ms - h.step_ms), excluded.step_ms, h.step_ms),
        updated_ms = excluded.updated_ms,
        saves = excluded.saves
""").bindparams(bindparam("weight", NEWEST_WEIGHT))


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Means over the jobs of an app: of the whole run, and of a step where steps were reported; on the type of GPU that
    `speeds` tells, where most of them have run. `saves`: whether the newest of them saved, or said that it would; None:
    not known."""

    run_ms: float
    step_ms: float | None
    saves: bool | None = None
    speeds: GpuSpeeds = UNKNOWN_SPEEDS


async def remember_run_time(connection: AsyncConnection, job_id: str, node_id: str, *, now_ms: int) -> None:
    """A job that ran to its end, lastly on this node, counts in its app's history. One that trained with another, or
    began from what that had learned, does not: it took as long as it did for a reason that the next one has not."""
    await connection.execute(_REMEMBER, {"job_id": job_id, "node_id": node_id, "now_ms": now_ms})


async def run_times(connection: AsyncConnection) -> dict[str, RunTimes]:
    """By app."""
    columns = run_history.c
    seen = (columns.gpu_type, columns.samples, columns.run_ms, columns.step_ms)
    rows = await connection.execute(
        select(
            columns.app_id,
            func.array_agg(aggregate_order_by(columns.saves, columns.updated_ms.desc()))[1],
            *(func.array_agg(aggregate_order_by(one, columns.gpu_type)) for one in seen),
        ).group_by(columns.app_id)
    )
    return {app_id: _run_times(tuple(map(TimesOnType, *by_type)), saves=saves) for app_id, saves, *by_type in rows}


def _run_times(seen: tuple[TimesOnType, ...], *, saves: bool | None) -> RunTimes:
    usual = usual_type(seen)
    if usual is None:
        raise ValueError("an app with a history has jobs that ran")
    return RunTimes(usual.run_ms, usual.step_ms, saves, usual_speeds(seen))
