"""Rows of the release before are read today, and rows of the release after will be."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import app.db
from app.core.foreign import READ_AS
from app.core.model.job import TERMINAL_JOB_STATES
from app.core.model.node import GONE_NODE_STATES
from app.db import tables as t
from app.db.engine import Database, make_engine
from app.db.migrate import upgrade
from app.db.tables import metadata
from app.services.jobs.cancel_job import cancel_job
from app.stack.postgres import EmbeddedPostgres
from tests.control.world import World
from tests.databases import Databases, name_of
from tests.db.rows import STORIES, WITH_MACHINES, api_of, keys_of, load, read_everything, rows_of, world_of

BEFORE = "0014"
Made = Callable[[str], str]
# What users wrote, as they wrote it: no release adds to it.
_OF_USERS = {"jobs.parameters", "jobs.labels", "checkpoints.metrics", "metric_points.values"}
_ADDED = {"colour": [1, None]}
_NOT_OVER = {
    "jobs": "NOT state = ANY('{succeeded,failed,cancelled}')",
    "runs": "state <> 'ended'",
    "nodes": "NOT state = ANY('{terminating,terminated,failed}')",
}
_CHOICES = [
    *("jobs.kind", "jobs.priority_class", "jobs.start", "jobs.pause_reason", "runs.tier", "runs.stop_mode"),
    *("runs.purpose", "nodes.tier", "nodes.billing_starts", "offers.tier", "checkpoints.state"),
]
_WORDS = [
    ("moving", _CHOICES),
    ("pair", _CHOICES),
    ("moving", ["jobs.state"]),
    ("moving", ["runs.state"]),
    ("moving", ["nodes.state"]),
    ("pair", ["runs.state", "nodes.state", "jobs.state"]),
]


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def before(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The URL of a database at the schema of the last release."""
    with Databases(postgres) as databases:
        url = databases.make()
        upgrade(url, BEFORE)
        yield url


@pytest.fixture(scope="module")
def stories(postgres: EmbeddedPostgres, before: str) -> Iterator[Made]:
    """Of each story one database, in which its rows were brought to today's schema."""
    made: dict[str, str] = {}
    with Databases(postgres) as databases:

        def of(story: str) -> str:
            if story not in made:
                made[story] = databases.make(name_of(before))
                asyncio.run(load(made[story], rows_of(story)))
                upgrade(made[story])
            return made[story]

        yield of


@pytest.fixture
def upgraded(databases: Databases, stories: Made) -> Made:
    """Makes copies of them, for each test its own."""
    return lambda story: databases.make(name_of(stories(story)))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[World]:
    database = Database(make_engine(url, pool_size=4, timeout_s=10.0))
    try:
        yield await world_of(url, database)
    finally:
        await database.close()


async def end_all(world: World) -> None:
    """Every job is cancelled; the machines end, and are paid for."""
    for job in [row for row in await world.rows(t.jobs) if row.state not in TERMINAL_JOB_STATES]:
        async with world.database.transaction() as connection:
            await cancel_job(connection, world.ids, job.project_id, job.id, now_ms=world.clock.now_ms())
    for _ in range(40):
        world.clock.advance(s=30)
        await world.check_heartbeats()
        await world.sweep()
        await world.decide()
        await world.work()
        nodes = await world.rows(t.nodes)
        if all(node.state in GONE_NODE_STATES for node in nodes):
            break
    await world.meter()
    assert [(node.id, node.state) for node in nodes if node.state not in GONE_NODE_STATES] == []
    assert all(node.meter_closed for node in await world.rows(t.nodes))
    assert {job.state for job in await world.rows(t.jobs)} <= TERMINAL_JOB_STATES


def test_rows_are_read_by_the_readers_for_rows() -> None:
    """Nothing in `app.db` reads a stored value strictly, or makes a word of a row without its reading."""
    kinds = "|".join(kind.__name__ for kind in READ_AS)
    strictly = re.compile(rf"codec\.decode\(|(?<![\w.])(?:{kinds})\((?:row|rows|found|values|fields)\b")
    house = Path(app.db.__file__).parent
    found = {str(path.relative_to(house)): strictly.findall(path.read_text()) for path in house.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == {"offers/provider_reads.py": ["Tier(row"]}, (
        "app.core.foreign.read_as and codec.decode_row are for rows; those of provider_reads are of known tiers"
    )


def test_the_kept_rows_are_of_every_table(before: str) -> None:
    """No table of the last release is missing among the rows that it wrote."""
    kept = {table for story in STORIES for table, rows in rows_of(story).items() if rows}
    tables = asyncio.run(names_of(before))
    assert tables - {"alembic_version"} == kept


async def names_of(url: str) -> set[str]:
    connection = await asyncpg.connect(url)
    try:
        return {row[0] for row in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    finally:
        await connection.close()


@pytest.mark.parametrize("story", STORIES)
def test_rows_of_the_last_release_are_read_after_the_upgrade(upgraded: Made, story: str, tmp_path: Path) -> None:
    """People, agents and decisions read everything that the release before has written."""

    async def read(url: str) -> None:
        async with opened(url) as world:
            keys = await keys_of(world)
            assert await read_everything(world, api_of(world, url, tmp_path), keys)

    asyncio.run(read(upgraded(story)))


@pytest.mark.parametrize("story", STORIES)
def test_fields_that_a_newer_release_adds_change_no_answer(upgraded: Made, story: str, tmp_path: Path) -> None:
    """With an unknown field in every JSON object of every row, everything is read as without."""

    async def compare(url: str) -> None:
        async with opened(url) as world:
            keys = await keys_of(world)
            api = api_of(world, url, tmp_path)
            told = await read_everything(world, api, keys)
            await execute(url, *_additions())
            again = await read_everything(world, api, keys)
            assert _plain(again) == _plain(told)

    asyncio.run(compare(upgraded(story)))


@pytest.mark.parametrize("story", WITH_MACHINES)
def test_machines_of_a_newer_release_end_after_the_way_back(upgraded: Made, story: str) -> None:
    """With an unknown field everywhere, what the newer release has rented is ended here."""

    async def end(url: str) -> None:
        await execute(url, *_additions())
        async with opened(url) as world:
            await end_all(world)

    asyncio.run(end(upgraded(story)))


@pytest.mark.parametrize(("story", "columns"), _WORDS)
def test_words_of_a_newer_release_stop_nobody(upgraded: Made, story: str, columns: list[str], tmp_path: Path) -> None:
    """Where every row that is not over has words that this release does not know, everything is still read, jobs can
    be cancelled, and machines end."""

    async def live_with_them(url: str) -> None:
        for column in columns:
            table, _, name = column.partition(".")
            await execute(url, f"UPDATE {table} SET {name} = 'newer-word' WHERE {_NOT_OVER.get(table, 'true')}")
        async with opened(url) as world:
            keys = await keys_of(world)
            assert await read_everything(world, api_of(world, url, tmp_path), keys)
            await end_all(world)

    asyncio.run(live_with_them(upgraded(story)))


def _additions() -> list[str]:
    """SQL that gives each JSON object one more field, which is an object itself."""
    columns = [
        (table.name, column.name)
        for table in metadata.sorted_tables
        for column in table.columns
        if str(column.type) == "JSONB" and f"{table.name}.{column.name}" not in _OF_USERS
    ]
    assert len(columns) > 10
    return [
        f"""UPDATE {table} SET "{column}" = "{column}" || '{json.dumps({"newer": _ADDED})}' """
        f"""WHERE jsonb_typeof("{column}") = 'object'"""
        for table, column in columns
    ]


def _plain(answer: Any) -> Any:
    """Without the added field, where an answer hands on what was kept as it is."""
    if isinstance(answer, str) and answer.startswith("{"):
        return _plain(json.loads(answer))
    if is_dataclass(answer) and not isinstance(answer, type):
        return _plain(asdict(answer))
    if isinstance(answer, dict):
        return {name: _plain(part) for name, part in answer.items() if (name, part) != ("newer", _ADDED)}
    return [_plain(part) for part in answer] if isinstance(answer, list | tuple) else answer
