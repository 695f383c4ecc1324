"""Merges that have ended teach what the next ones are worth."""

from __future__ import annotations

from app.core.merging.lessons import seen_gain
from app.db.handles import Connection
from app.db.merge_lessons import keep_lesson, merges_to_learn, steps_of

_AT_ONCE = 100


async def learn_from_merges(connection: Connection) -> int:
    """Each merge teaches once, or turns out to tell nothing; returns how many were looked at."""
    ended = await merges_to_learn(connection, _AT_ONCE)
    for merge in ended:
        steps = [await steps_of(connection, job_id) for job_id in merge.job_ids]
        gain = seen_gain([taken for taken, _ in steps], [alone for _, alone in steps])
        await keep_lesson(connection, merge.merge_id, gain)
    return len(ended)
