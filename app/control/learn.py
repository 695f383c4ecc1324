"""The leader learns from runs that have ended, and from merges."""

from __future__ import annotations

import asyncio

from app.control.parts import ControlParts
from app.db.learning import runs_to_learn
from app.services.learn_from_merges import learn_from_merges
from app.services.learn_from_runs import study, take_lessons

_AT_ONCE = 20
_MOST_BATCHES = 10  # in one round; what is left is for the next one


async def learn(parts: ControlParts) -> int:
    """One round; returns from how many runs. What takes long to compute is computed outside of any transaction."""
    count = 0
    async with parts.database.transaction() as connection:
        await parts.leader.guard(connection)
        await learn_from_merges(connection)
    for _ in range(_MOST_BATCHES):
        async with parts.database.statement() as connection:
            told = await runs_to_learn(connection, _AT_ONCE)
        if not told:
            break
        lessons = await asyncio.to_thread(study, told)
        async with parts.database.transaction() as connection:
            await parts.leader.guard(connection)
            await take_lessons(connection, parts.ids, lessons, now_ms=parts.clock.now_ms())
        count += len(lessons)
    return count
