"""That a job's code keeps its GPUs, as part of why the job is where it is."""

from __future__ import annotations

from app.core.explaining.facts import Remark
from app.core.policies.reasons import duration
from app.db.connection import Connection
from app.db.reading.explanations import last_event
from app.db.runs.kept_gpus import kept_since
from app.services.sizes.tell_kept import GPUS_KEPT


async def explain_kept(connection: Connection, job_id: str, run_id: str, *, now_ms: int) -> list[Remark]:
    """Of the job's live run; nothing where it follows. In the words in which it was told, maybe of an earlier run."""
    since_ms = await kept_since(connection, run_id)
    told = None if since_ms is None else await last_event(connection, job_id, (GPUS_KEPT,))
    if since_ms is None or told is None:
        return []
    ago = duration(max(0, now_ms - since_ms))
    return [Remark(f"{told.text} (found {ago} ago)", {**told.data, "keeps_gpus_ms": since_ms})]
