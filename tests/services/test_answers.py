"""Stored answers do not pile up for ever."""

from __future__ import annotations

from app.db.access.idempotency import RequestKey, claim, delete_answers, find_answer
from app.db.engine import Database
from tests.seeds import T0_MS, seed_project


async def test_old_answers_are_forgotten_and_new_ones_kept(database: Database) -> None:
    """Those made before the given moment are gone; a forgotten key may be used again."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        for number in range(4):
            key = RequestKey(f"k{number}", "POST /v1/jobs", b"h")
            assert await claim(connection, project_id, key, now_ms=T0_MS + number)
        assert not await claim(connection, project_id, RequestKey("k0", "x", b"y"), now_ms=T0_MS)
        assert await delete_answers(connection, before_ms=T0_MS + 2) == 2
        kept = [await find_answer(connection, project_id, f"k{number}") is not None for number in range(4)]
        assert kept == [False, False, True, True]
        assert await claim(connection, project_id, RequestKey("k0", "x", b"y"), now_ms=T0_MS)
