"""Let go of the checkpoints of a job that its rule does not keep."""

from __future__ import annotations

from typing import Any

from app.core.retention import BestByMetric, Retention, to_prune
from app.db.checkpoints.retention import prune, saved_of, template_of
from app.db.connection import Connection


async def prune_checkpoints(connection: Connection, job_id: str, *, keep_last: int, now_ms: int) -> int:
    """How many went. `keep_last`: for a job that names no number. The caller holds the job's row."""
    rule = retention_of(await template_of(connection, job_id), keep_last)
    useless = to_prune(await saved_of(connection, job_id, now_ms=now_ms), rule)
    return await prune(connection, useless, now_ms=now_ms) if useless else 0


def retention_of(template: dict[str, Any], keep_last: int) -> Retention:
    """The rule in a job's template as it is stored."""
    asked = template.get("checkpoints") or {}
    best = asked.get("keep_best")
    return Retention(
        last=asked.get("keep_last") or keep_last,
        every_steps=asked.get("keep_every_steps"),
        best=BestByMetric(best["metric"], best["mode"]) if best else None,
    )
