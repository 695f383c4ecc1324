"""Steps that are in no checkpoint when a run ends: they are lost, and its owner is told how many."""

from __future__ import annotations

import logging

from app.core.lifecycle import Outcome
from app.core.model.run import ORDERLY_ENDS, RunPurpose
from app.db.checkpoints.unsaved import at_risk, set_refused
from app.db.connection import Connection
from app.db.reading.placements import STEPS_LOST
from app.db.runs.live_runs import RunRow
from app.db.transitions import Event, add_job_event

log = logging.getLogger(__name__)
_NEVER_SAID = "it left without one when it was asked to save"


async def report_lost_steps(
    connection: Connection, run: RunRow, job_id: str, outcome: Outcome, *, now_ms: int
) -> str | None:
    """What was lost, in words, by a run that was asked to save and leave and left without: it is no orderly end then.
    None for every other end, of which the event tells.

    A job that did so is not moved by a plan again until a checkpoint of it is kept. The job is locked, and has not been
    handed on yet.
    """
    if run.purpose is not RunPurpose.TRAIN or run.running_ms is None:
        return None
    risk = await at_risk(connection, job_id, now_ms=now_ms)
    if risk.lost is None:
        return None
    why = "" if risk.why is None else f": its checkpoints are not kept ({risk.why})"
    lost = f"{risk.lost} since {risk.since()} {'are' if risk.steps > 1 else 'is'} lost{why}"
    data = {"run_id": run.run_id, "steps": risk.steps, "step": risk.step, "kept_step": risk.kept_step}
    await add_job_event(connection, job_id, Event(STEPS_LOST, lost, data), now_ms=now_ms)
    if outcome.saved or outcome.run_end not in ORDERLY_ENDS:
        return None
    log.error("ALARM: %s was asked to save and leave, and %s", job_id, lost)
    if risk.why is None:
        await set_refused(connection, job_id, _NEVER_SAID, now_ms=now_ms)
    return lost
