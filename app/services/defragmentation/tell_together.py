"""A job has come together, or will not: it is told what that was good for, and what it has cost."""

from __future__ import annotations

from dataclasses import replace

from app.core.defragmentation import RepairState, SwitchRepair
from app.core.policies.reasons import duration
from app.db.connection import Connection
from app.db.defragmentation.defragmentations import DefragRow
from app.db.defragmentation.fleet import pause_after
from app.db.lock_order import lock_scope
from app.db.transitions import Event, add_job_event
from app.services.defragmentation.release_emptied import DEFRAGMENTED


async def tell_together(connection: Connection, row: DefragRow, repair: SwitchRepair, *, now_ms: int) -> SwitchRepair:
    """With what has come of it, where it has come together."""
    if repair.state is not RepairState.DONE:
        return repair
    found = await lock_scope(connection, [repair.job_id])
    pause_ms = await pause_after(connection, repair.job_id, repair.run_id)
    paused = "a pause that is not measured" if pause_ms is None else f"{duration(pause_ms)} without training"
    expected = "" if repair.gain_ms is None else f", which is to save about {duration(repair.gain_ms)} of its time"
    message = (
        f"its {repair.machines} machines came together: they were {repair.here} (entropy {repair.spread:.2f}), and are "
        f"{repair.there} (entropy {repair.spread_there:.2f}){expected}, for {paused} ({row.id})"
    )
    data = {
        "defragmentation": row.id,
        "entropy_before": repair.spread,
        "entropy": repair.spread_there,
        "expected_pause_s": repair.pause_ms / 1000,
        "pause_s": None if pause_ms is None else pause_ms / 1000,
        "expected_gain_s": None if repair.gain_ms is None else repair.gain_ms / 1000,
    }
    if repair.job_id in found:
        await add_job_event(connection, repair.job_id, Event(DEFRAGMENTED, message, data), now_ms=now_ms)
    return replace(repair, why=message)
