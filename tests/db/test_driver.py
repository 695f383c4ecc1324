"""The driver's own connection: kept between statements, replaced when it was lost, and never in doubt."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from sqlalchemy import text

from app.db.engine import Database, make_engine
from app.errors import Unavailable

_PATIENCE_S = 60.0
_PID = "SELECT pg_backend_pid()"


async def _pid(database: Database) -> int:
    async with database.driver() as connection:
        pid: int = await connection.fetchval(_PID)
        return pid


async def test_one_connection_is_kept_between_statements(database: Database) -> None:
    """Statements that follow each other run on one connection, without going through the pool."""
    assert len({await _pid(database) for _ in range(5)}) == 1


async def test_statements_side_by_side_have_a_connection_each(database: Database) -> None:
    """Whoever comes while the kept connection is in use gets another one, and all of them get back to the pool."""
    for _ in range(3):
        async with database.driver() as first, database.driver() as second:
            assert await first.fetchval(_PID) != await second.fetchval(_PID)
    async with asyncio.timeout(_PATIENCE_S):
        await asyncio.gather(*(_pid(database) for _ in range(50)))


async def test_a_refused_statement_leaves_the_connection_of_use(database: Database) -> None:
    """The database's own error reaches the caller, and the next statement runs."""
    with pytest.raises(asyncpg.UndefinedTableError):
        async with database.driver() as connection:
            await connection.fetch("SELECT * FROM no_such_table")
    assert await _pid(database) > 0


async def test_a_connection_lost_while_it_was_kept_is_replaced_unnoticed(database: Database) -> None:
    """PostgreSQL ends the idle connection: the next statement takes a new one."""
    lost = await _pid(database)
    async with database.transaction() as connection:
        await connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": lost})
    async with asyncio.timeout(_PATIENCE_S):
        while not await _is_closed(database):  # which follows the end of its process by a moment
            await asyncio.sleep(0.01)
    assert await _pid(database) != lost


async def test_a_connection_lost_during_a_statement_is_unavailable(database: Database) -> None:
    """Nothing is known of the statement: the caller is told to try again, which then works."""

    async def wait_for_ever() -> None:
        async with database.driver() as connection:
            await connection.fetchval("SELECT pg_sleep(60)")

    own = await _pid(database)
    waiting = asyncio.create_task(wait_for_ever())
    async with asyncio.timeout(_PATIENCE_S):
        while not await _runs(database, own):
            await asyncio.sleep(0.01)
    async with database.transaction() as connection:
        await connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": own})
    with pytest.raises(Unavailable):
        await waiting
    assert await _pid(database) != own


async def test_cancelled_in_the_middle_of_a_statement_the_connection_is_not_used_again(database: Database) -> None:
    """What a half-read answer left on a connection reaches nobody."""
    own = await _pid(database)

    async def wait_for_ever() -> None:
        async with database.driver() as connection:
            await connection.fetchval("SELECT pg_sleep(60)")

    waiting = asyncio.create_task(wait_for_ever())
    async with asyncio.timeout(_PATIENCE_S):
        while not await _runs(database, own):
            await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await _pid(database) != own


async def test_closing_gives_every_connection_back(database_url: str) -> None:
    """After `close`, the server holds no session of ours."""
    closing = Database(make_engine(database_url, pool_size=2, timeout_s=5))
    pid = await _pid(closing)
    await closing.close()
    other = Database(make_engine(database_url, pool_size=1, timeout_s=5))
    async with asyncio.timeout(_PATIENCE_S):
        while not await _gone(other, pid):
            await asyncio.sleep(0.01)
    await other.close()


async def _gone(database: Database, pid: int) -> bool:
    async with database.transaction() as connection:
        found = await connection.execute(text("SELECT 1 FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid})
    return found.scalar() is None


async def _is_closed(database: Database) -> bool:
    """Whether the end of the only kept connection has reached us."""
    (kept,) = database._kept
    raw = (await kept.get_raw_connection()).driver_connection
    return raw is None or bool(raw.is_closed())


async def _runs(database: Database, pid: int) -> bool:
    async with database.transaction() as connection:
        statement = text(
            "SELECT 1 FROM pg_stat_activity WHERE pid = :pid AND state = 'active' AND query LIKE '%sleep%'"
        )
        found = await connection.execute(statement, {"pid": pid})
    return found.scalar() is not None
