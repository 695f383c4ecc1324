"""Merges that have ended teach the line from score to gain, once, and only what was seen."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from allpass.recipe.packing import SCRIPT_NAME
from app.core.merging.transfer import IN_TURN, TOGETHER
from app.core.model.merge import MergeMode
from app.db.connection import Connection
from app.db.engine import Database
from app.db.merging.lessons import merges_to_learn
from app.db.merging.merges import gain_lines
from app.db.tables import merges
from app.services.merging.learn_from_merges import learn_from_merge
from tests.seeds import T0_MS, new_id, seed_app, seed_job, seed_project

GOAL = {"model": "tiny", "task": "classification", "sequence_length": 32, "target": {"eval_accuracy": 0.9}}


async def learn(connection: Connection) -> int:
    """From all merges that have ended, as the leader does; from how many."""
    ended = await merges_to_learn(connection, 100)
    for merge in ended:
        await learn_from_merge(connection, merge)
    return len(ended)


class Ground:
    """A project whose jobs have these rows, or others."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.project_id, self.apps = "", dict[str, tuple[str, str]]()

    async def job(self, step: int, state: str = "succeeded", rows: str = "a", **parameters: Any) -> str:
        if not self.project_id:
            self.project_id = await seed_project(self.connection)
        if rows not in self.apps:
            self.apps[rows] = await seed_app(
                self.connection, self.project_id, entrypoint=SCRIPT_NAME, bundle_sha256=rows * 64
            )
        given = {"step": step, "state": state, "ended_ms": T0_MS, "parameters": GOAL | parameters}
        return await seed_job(self.connection, self.project_id, self.apps[rows], **given)

    async def merge(self, lead_id: str, companion_id: str, mode: str, state: str, **columns: Any) -> str:
        values = {
            "id": new_id("merge"), "project_id": self.project_id, "lead_job_id": lead_id, "mode": mode, "state": state,
            "companion_job_id": companion_id, "gpus": 1, "score": 0.5, "gain": 0.2, "begun_ms": T0_MS,
            "ended_ms": T0_MS, "reason": "they help each other",
        }  # fmt: skip
        await self.connection.execute(merges.insert().values(values | columns))
        return str(values["id"])

    async def seen(self, merge_id: str) -> tuple[bool, float | None]:
        asked = select(merges.c.learned, merges.c.seen_gain).where(merges.c.id == merge_id)
        row = (await self.connection.execute(asked)).one()
        return row.learned, row.seen_gain


async def test_what_merges_were_worth_is_held_against_jobs_alike_that_trained_alone(database: Database) -> None:
    """In turn the companion's steps count, side by side those of both; jobs alike differ in nothing but the seed, were
    not merged themselves, and have a target. It is taught once."""
    async with database.transaction() as connection:
        ground = Ground(connection)
        for steps, rows, seed in ((140, "a", 1), (160, "a", 2)):
            await ground.job(steps, rows=rows, seed=seed)
        await ground.job(90, rows="b")
        await ground.job(1, learning_rate=0.5)
        await ground.job(2, target={"eval_accuracy": 0.5})
        lead, learned = await ground.job(500, rows="c"), await ground.job(100)
        in_turn = await ground.merge(lead, learned, MergeMode.IN_TURN, "ended")
        both = await ground.job(100), await ground.job(60, rows="b")
        together = await ground.merge(*both, MergeMode.TOGETHER, "ended")
        endless = await ground.merge(lead, await ground.job(80, target=None), MergeMode.IN_TURN, "ended")
        unlike = await ground.merge(lead, await ground.job(80, rows="d"), MergeMode.IN_TURN, "ended")
        failed = await ground.merge(lead, await ground.job(80, "failed"), MergeMode.IN_TURN, "ended")
        left = await ground.merge(lead, await ground.job(80, rows="e"), MergeMode.IN_TURN, "void")
        split = await ground.merge(lead, await ground.job(80), MergeMode.TOGETHER, "split", seen_gain=0.0)
        assert await learn(connection) == 7
        learned_both = [await ground.seen(in_turn), await ground.seen(together)]
        assert [is_learned for is_learned, _ in learned_both] == [True, True]
        assert [gain for _, gain in learned_both] == pytest.approx([0.5, (150 + 90) / 160 - 1])
        for merge_id in (endless, unlike, failed, left):
            assert await ground.seen(merge_id) == (True, None)
        assert await ground.seen(split) == (True, 0.0)
        assert await learn(connection) == 0
        one, other = await gain_lines(connection)
        assert (one.count, other.count) == (1, 2)
        assert [one.sum_gain, other.sum_gain] == pytest.approx([0.5, 0.5])


async def test_what_goes_on_teaches_later(database: Database) -> None:
    """Open merges, and those whose jobs have not ended, are asked again."""
    async with database.transaction() as connection:
        ground = Ground(connection)
        await ground.job(150)
        lead, companion = await ground.job(100), await ground.job(40, "running")
        await ground.merge(lead, companion, MergeMode.IN_TURN, "ended")
        await ground.merge(await ground.job(9, "running"), await ground.job(100), MergeMode.TOGETHER, "ended")
        await ground.merge(await ground.job(9, "running"), await ground.job(9, "waiting"), MergeMode.IN_TURN, "open")
        assert await learn(connection) == 0
        assert await gain_lines(connection) == (IN_TURN, TOGETHER)


async def test_the_newest_merges_decide(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each mode only so many count: what jobs were long ago says little of jobs now."""
    monkeypatch.setattr("app.db.merging.merges._MOST_LESSONS", 2)
    async with database.transaction() as connection:
        ground = Ground(connection)
        one, other = await ground.job(1), await ground.job(1)
        for age, gain in ((1, 0.5), (2, 0.25), (3, 9.0)):
            for mode in MergeMode:
                await ground.merge(one, other, mode, "ended", seen_gain=gain, ended_ms=T0_MS - age, learned=True)
        assert [line.sum_gain for line in await gain_lines(connection)] == [0.75, 0.75]
        assert [line.count for line in await gain_lines(connection)] == [2, 2]
