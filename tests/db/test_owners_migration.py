"""What becomes of an installation of the release before: who owns it, and what it may rent."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from app.db.migrate import downgrade, upgrade
from tests.databases import Databases

KEYS = """
    INSERT INTO projects (id, name, created_ms) VALUES ('proj_1', 'default', 1);
    INSERT INTO api_keys (id, project_id, name, prefix, key_sha256, scopes, created_ms, revoked_ms) VALUES
        ('key_0', 'proj_1', 'lost', 'ak_0', '\\x00', '{admin}', 0, 5),
        ('key_1', 'proj_1', 'first', 'ak_1', '\\x01', '{admin,read,submit}', 1, NULL),
        ('key_2', 'proj_1', 'ada', 'ak_2', '\\x02', '{admin}', 2, NULL),
        ('key_3', 'proj_1', 'ci', 'ak_3', '\\x03', '{read}', 0, NULL);
"""
NODE = """
    INSERT INTO nodes (id, project_id, provider, tier, offer, gpu_type, gpu_count, gpu_memory_bytes, cpus, memory_bytes,
        region, host, image, price_micros_per_hour, billing_unit_ms, billing_starts, billing_minimum_ms, state,
        requested_ms, expected_ready_ms, startup_deadline_ms)
    VALUES ('node_1', 'proj_1', 'vast', 'marketplace', '{}', 'A100', 1, 1, 1, 1, '', '', '', 1, 1, 'ready', 0,
        'terminated', 1, 1, 1);
"""


@pytest.mark.parametrize("rented", [False, True])
def test_the_oldest_usable_key_is_an_owners_and_who_has_rented_is_not_stopped(
    databases: Databases, rented: bool
) -> None:
    """Only that key; limits of a first time are for who has never rented. The way back takes the scope away."""
    url = databases.make()
    upgrade(url, "0027")
    asyncio.run(execute(url, KEYS + (NODE if rented else "")))
    upgrade(url, "0028")
    owners = asyncio.run(rows(url, "SELECT id FROM api_keys WHERE 'owner' = ANY(scopes)"))
    assert owners == [("key_1",)]
    settled = asyncio.run(rows(url, "SELECT name, amount FROM limits ORDER BY name"))
    assert settled == ([("day_micros", None), ("machines", None)] if rented else [])
    downgrade(url, "0027")
    assert asyncio.run(rows(url, "SELECT scopes FROM api_keys WHERE id = 'key_1'")) == [(["admin", "read", "submit"],)]


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def rows(url: str, query: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()
