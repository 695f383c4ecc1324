"""That a job's GPUs change by restarting it, and what that costs, as part of why the job is where it is."""

from __future__ import annotations

from app.core.elastic.runs import resize_s_of
from app.core.explaining.facts import Remark
from app.core.policies.reasons import duration
from app.db.connection import Connection
from app.db.runs.sizes import sized_run


async def explain_restarts(connection: Connection, run_id: str, *, restart_s: float) -> list[Remark]:
    """Of the job's live run, as long as it may be restarted; `restart_s`: what is counted until it has shown it."""
    run = await sized_run(connection, run_id)
    if run is None or not run.restarts or run.told is None or run.told.kept is not None:
        return []
    pause_s = resize_s_of(run.told, restart_s)
    how = "is counted as" if run.told.pause_ms is None else "took"
    text = (
        "its GPUs change by restarting it from its newest checkpoint: not exact, for its batch follows its GPUs; "
        f"a restart {how} {duration(round(pause_s * 1000))}"
    )
    if run.told.after_save:
        text += ", right after its next save: its code does not say that it saves when it is asked to"
    return [Remark(text, {"exact": False, "restart_s": pause_s})]
