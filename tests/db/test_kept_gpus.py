"""GPUs that are kept for reservations: rows of them, however many."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import IntegrityError

from app.core.model.pool import Pool
from app.core.reserving import GpuReservation
from app.db.engine import Database
from app.db.pools.hosts import HostRow, add_host
from app.db.pools.pools import PoolRow, add_pool
from app.db.reservations.kept_gpus import keep, kept_gpus, kept_time_ms, set_kept_until
from app.db.reservations.reservations import ReservationRow, add_reservation
from tests.seeds import new_id, seed_project

MANY = 12_000  # with four columns each, more than a statement may have parameters


@pytest.fixture
async def two(database: Database) -> tuple[str, str]:
    """Reservations of one project, and a host for their GPUs."""
    async with database.transaction() as connection:
        project_id = await seed_project(connection)
        await add_pool(connection, PoolRow(Pool("lab"), "", {}, 1))
        row = HostRow("host_a", "lab", "a", "1", {"cpus": 1, "memory_bytes": 1}, {}, 1, 1, None, None, None, 1)
        await add_host(connection, row, nonce_sha256=bytes(32))
        ids = [new_id("resv"), new_id("resv")]
        for one in ids:
            await add_reservation(
                connection, ReservationRow(GpuReservation(one, project_id, "lab", "A100", MANY, 1, 10_000), 1)
            )
    return ids[0], ids[1]


async def test_thousands_are_kept_and_given_up_in_a_statement_each(database: Database, two: tuple[str, str]) -> None:
    keys = [("host_a", index) for index in range(MANY)]
    async with database.transaction() as connection:
        await keep(connection, two[0], keys, now_ms=10)
        await keep(connection, two[1], [], now_ms=10)
        assert (await kept_gpus(connection, two))[two[0]] == keys
        await set_kept_until(connection, two[0], keys[1:], now_ms=30)
        await set_kept_until(connection, two[1], keys, now_ms=30)
        await set_kept_until(connection, two[0], [], now_ms=30)
        assert await kept_gpus(connection, two) == {two[0]: keys[:1]}
        assert await kept_time_ms(connection, two, now_ms=40) == {two[0]: 30 + 20 * (MANY - 1)}


async def test_one_that_is_given_up_and_taken_back_at_the_same_moment_is_kept(
    database: Database, two: tuple[str, str]
) -> None:
    async with database.transaction() as connection:
        await keep(connection, two[0], [("host_a", 3)], now_ms=10)
        await set_kept_until(connection, two[0], [("host_a", 3)], now_ms=10)
        await keep(connection, two[0], [("host_a", 3)], now_ms=10)
        assert await kept_gpus(connection, two) == {two[0]: [("host_a", 3)]}


async def test_no_gpu_is_kept_for_two(database: Database, two: tuple[str, str]) -> None:
    async with database.transaction() as connection:
        await keep(connection, two[0], [("host_a", 3)], now_ms=10)
    with pytest.raises(IntegrityError):
        async with database.transaction() as connection:
            await keep(connection, two[1], [("host_a", 3)], now_ms=20)
