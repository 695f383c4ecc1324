"""Merges that have ended teach what the next ones are worth."""

from __future__ import annotations

from app.core.merging.lessons import seen_gain
from app.db.connection import Connection
from app.db.merging.lessons import EndedMerge, set_lesson, steps_of


async def learn_from_merge(connection: Connection, merge: EndedMerge) -> None:
    """A merge teaches once, or turns out to tell nothing."""
    steps = [await steps_of(connection, job_id) for job_id in merge.job_ids]
    gain = seen_gain([taken for taken, _ in steps], [alone for _, alone in steps])
    await set_lesson(connection, merge.merge_id, gain)
