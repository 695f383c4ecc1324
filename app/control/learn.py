"""The leader learns from runs that have ended, and from merges."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.control.context import ControlContext
from app.control.each import each, each_by_itself, in_batches
from app.core.model.health import Chore
from app.db.connection import Connection
from app.db.learning.calibrations import EndedRun, mark_learned, runs_to_learn
from app.db.merging.lessons import EndedMerge, merges_to_learn, set_lesson
from app.services.learning.learn_from_runs import Lesson, study, take_lessons
from app.services.merging.learn_from_merges import learn_from_merge

_AT_ONCE = 20
_MERGES_AT_ONCE = 100
_MOST_BATCHES = 10  # in one round; what is left is for the next one


async def learn(context: ControlContext) -> int:
    """One round; returns from how many runs. What takes long to compute is computed outside of any transaction.

    A run or merge from which nothing can be learned is left out for good: it would come again, in the place of others.
    """
    steps = {"merges": _learn_from_merges, "runs": _learn_from_runs}
    counts = await each_by_itself(context, Chore.LEARN, steps, lambda what: steps[what](context))
    return sum(counts)


async def _learn_from_merges(context: ControlContext) -> int:
    async with context.database.transaction() as connection:
        ended = await merges_to_learn(connection, _MERGES_AT_ONCE)

    async def take(connection: Connection, merge: EndedMerge) -> str:
        await learn_from_merge(connection, merge)
        return merge.merge_id

    taken = set(await each(context, Chore.LEARN, ended, take, named=lambda merge: merge.merge_id))
    failed = [merge for merge in ended if merge.merge_id not in taken]

    async def give_up(connection: Connection, merge: EndedMerge) -> None:
        await set_lesson(connection, merge.merge_id, None)

    await each(context, Chore.LEARN, failed, give_up, named=lambda merge: merge.merge_id)
    return 0


async def _learn_from_runs(context: ControlContext) -> int:
    count = 0
    for _ in range(_MOST_BATCHES):
        async with context.database.statement() as connection:
            told = await runs_to_learn(connection, _AT_ONCE)
        if not told:
            break
        lessons = await _study(context, told)
        taken = await _take(context, lessons)
        failed = [one.run_id for one in told if one.run_id not in taken]
        await _give_up(context, failed)
        count += len(taken)
        if failed and not taken:
            break  # they may not even be given up: the next round tries again
    return count


async def _study(context: ControlContext, told: Sequence[EndedRun]) -> list[Lesson]:
    async def one(run: EndedRun) -> Lesson:
        (lesson,) = await asyncio.to_thread(study, (run,))
        return lesson

    return await each_by_itself(context, Chore.LEARN, told, one, named=lambda run: run.run_id)


async def _take(context: ControlContext, lessons: Sequence[Lesson]) -> set[str]:
    async def take(connection: Connection, some: Sequence[Lesson]) -> list[str]:
        await take_lessons(connection, context.ids, some, now_ms=context.clock.now_ms())
        return [lesson.run_id for lesson in some]

    taken = await in_batches(context, Chore.LEARN, lessons, take, at_once=_AT_ONCE, named=lambda lesson: lesson.run_id)
    return {run_id for some in taken for run_id in some}


async def _give_up(context: ControlContext, run_ids: Sequence[str]) -> None:
    async def mark(connection: Connection, run_id: str) -> None:
        await mark_learned(connection, [run_id])

    await each(context, Chore.LEARN, run_ids, mark)
