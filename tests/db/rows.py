"""Rows as an earlier release wrote them, and everything that today's code reads of a database.

`rows_of_0014` was made by running the tests of that release and keeping what their databases held at the end: one file
for each story, rows as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from fastapi import FastAPI
from sqlalchemy import update

from app.api.app import create_app
from app.api.context import ApiContext
from app.db import tables as t
from app.db.decisions.snapshots import read_snapshot
from app.db.decisions.ticks import last_state
from app.db.engine import Database
from app.db.listen import Listener
from app.db.nodes.lifecycle import read_node
from app.db.runs.desired_state import orders
from app.services.access.create_key import create_key
from app.storage.directory import DirectoryStore
from tests.conftest import CountingIds, ManualClock
from tests.control.world import World, make_settings

ROWS = Path(__file__).parent / "rows_of_0014"
STORIES = tuple(sorted(path.stem for path in ROWS.glob("*.json")))
WITH_MACHINES = ("ending", "in_turn", "learned", "moving", "pair", "paused", "preparing")
SIGNING_KEY = "a signing key of tests, long enough"
NOW_MS = 1_800_000_900_000  # after everything that the rows tell

_OF_ALL = ("/readyz", "/metrics")
_OF_PROJECT = [
    "apps",
    "audit",
    "budgets",
    "calibrations",
    "jobs",
    "keys",
    "nodes?include_gone=true",
    "offers",
    "pressure",
    "providers",
    "secrets",
    "usage",
]
_OF_JOB = (
    "",
    "/timeline",
    "/sizes",
    "/explain",
    "/events",
    "/checkpoints",
    "/artifacts",
    "/metrics",
)  # a log is no row
# Numbers that the database gives go on behind those that were loaded.
_COUNT_ON = """
    DO $$ DECLARE one record; BEGIN
        FOR one IN SELECT table_name AS t, column_name AS c FROM information_schema.columns
            WHERE is_identity = 'YES' AND table_schema = 'public' LOOP
            EXECUTE format('SELECT setval(pg_get_serial_sequence(%L, %L), (SELECT max(%I) + 1 FROM %I))',
                           one.t, one.c, one.c, one.t);
        END LOOP;
    END $$
"""


def rows_of(story: str) -> dict[str, list[dict[str, Any]]]:
    """Rows by table."""
    read: dict[str, list[dict[str, Any]]] = json.loads((ROWS / f"{story}.json").read_text())
    return read


async def load(url: str, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Put rows into a database of the schema that they were written in."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET session_replication_role = replica")  # in any order of tables
        for table, lines in rows.items():
            statement = f"INSERT INTO {table} SELECT * FROM jsonb_populate_recordset(NULL::{table}, $1::jsonb)"
            await connection.execute(statement, json.dumps(lines))
        await connection.execute(_COUNT_ON)
    finally:
        await connection.close()


async def world_of(url: str, database: Database) -> World:
    """Today's control process over this database; it leads."""
    clock = ManualClock(NOW_MS)
    ids = CountingIds(clock)
    world = World(database, make_settings(url), clock, ids)
    assert await world.control.context.leader.step()
    return world


def api_of(world: World, url: str, objects: Path) -> FastAPI:
    """Today's API over the world's database."""
    clock = world.clock
    return create_app(
        ApiContext(
            database=world.database,
            listener=Listener(url, timeout_s=10.0),
            objects=DirectoryStore(objects, "http://127.0.0.1:1", SIGNING_KEY, max_object_bytes=2**30, clock=clock),
            settings=world.settings,
            clock=clock,
            ids=world.ids,
        )
    )


async def keys_of(world: World) -> dict[str, str]:
    """A key for everything, by project. Of each it is noted that it was used: requests have it noted behind them, and
    what they tell of keys would depend on when."""
    made: dict[str, str] = {}
    async with world.database.transaction() as connection:
        projects = await connection.exec_driver_sql("SELECT id FROM projects ORDER BY id")
        for (project_id,) in projects.all():
            made[project_id] = await create_key(
                connection, project_id, "test", ("read", "submit", "admin"), clock=world.clock, ids=world.ids
            )
        used = update(t.api_keys).where(t.api_keys.c.name == "test").values(last_used_ms=world.clock.now_ms())
        await connection.execute(used)
    return made


async def read_everything(world: World, api: FastAPI, keys: dict[str, str]) -> dict[str, Any]:
    """All that people, agents and decisions read, by what was asked. Whatever cannot be read fails the test."""
    told: dict[str, Any] = {}
    for project_id, key in keys.items():
        transport, headers = httpx.ASGITransport(app=api), {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://allpass", headers=headers) as http:
            paths = ["/readyz", *(f"/v1/{name}" for name in _OF_PROJECT)]
            jobs = (await http.get("/v1/jobs?limit=100")).json()["data"]
            paths += [f"/v1/jobs/{job['id']}{part}" for job in jobs for part in _OF_JOB]
            for path in paths:
                answer = await http.get(path)
                assert answer.status_code == 200, f"{path}: {answer.text}"
                told[f"{project_id} {path}"] = answer.text
            assert (await http.get("/metrics")).status_code == 200
    nodes = [node for node in await world.rows(t.nodes) if "offer_id" in node.offer]  # those that a decision has made
    async with world.database.transaction() as connection:
        settings = world.settings
        told["decision"] = await read_snapshot(
            connection, NOW_MS, world.control.context.traits(), NOW_MS, usual_image=settings.node_image, merging=True
        )
        told["state"] = await last_state(connection, settings.policy)
        for node in nodes:
            told[f"node {node.id}"] = await read_node(connection, node.id)
            told[f"orders {node.id}"] = await orders(connection, node.id)
    return told
