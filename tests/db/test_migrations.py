"""Migrations: there and back with rows in every table, beside a working service, and on what is not ours to change."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Column, Table
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.db.migrate import downgrade, upgrade
from app.db.schema import check_schema, revisions
from app.db.tables import metadata
from app.errors import Conflict, InvalidInput, Unavailable
from app.main import main
from app.stack.postgres import EmbeddedPostgres
from tests.databases import Databases

LAST_RELEASE = "0014"
NEWEST = revisions()[-1]
_numbers = itertools.count(1)
_Rows = dict[str, list[dict[str, Any]]]
# Of these, what later revisions keep has no place in earlier ones, or is kept in another way.
_KEPT_OTHERWISE = {("checkpoint_files", "sha256")}


async def run(url: str, *statements: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return [await connection.fetch(statement) for statement in statements][-1]
    finally:
        await connection.close()


@pytest.fixture
def empty(databases: Databases) -> str:
    """The URL of a database with nothing in it."""
    return databases.make()


def revision_of(url: str) -> str:
    return str(asyncio.run(run(url, "SELECT version_num FROM alembic_version"))[0][0])


def test_every_migration_goes_back_and_forth_with_rows_in_every_table(database_url: str) -> None:
    """One revision after the other down to the first, and up again: what has a column on both sides keeps its value."""
    asyncio.run(_fill(database_url))
    full = asyncio.run(_content(database_url))
    assert all(full[table.name] for table in metadata.sorted_tables)
    seen = [full]
    for revision in reversed(revisions()[:-1]):
        downgrade(database_url, revision)
        seen.append(asyncio.run(_content(database_url)))
        _same_where_both(seen[-2], seen[-1], revision)
    for revision in revisions()[1:]:
        upgrade(database_url, revision)
        asyncio.run(check_schema_at(database_url, revision))
    _same_where_both(seen[-1], asyncio.run(_content(database_url)), NEWEST)


async def check_schema_at(url: str, revision: str) -> None:
    standing = await check_schema(url, timeout_s=10, may_migrate=True)
    assert standing.revision == revision


def _same_where_both(before: _Rows, after: _Rows, revision: str) -> None:
    for table in before.keys() & after.keys():
        for old, new in zip(before[table], after[table], strict=True):
            shared = [name for name in old if name in new and (table, name) not in _KEPT_OTHERWISE]
            assert {name: old[name] for name in shared} == {name: new[name] for name in shared}, (revision, table)


@pytest.mark.parametrize("revision", revisions()[revisions().index(LAST_RELEASE) + 1 :])
def test_migrations_only_add(empty: str, revision: str) -> None:
    """The release before goes on with the new schema while its processes are replaced: nothing that it reads or writes
    is taken away, and what is new need not be written (CONTRIBUTING, expand and contract)."""
    upgrade(empty, revisions()[revisions().index(revision) - 1])
    before, bound = asyncio.run(_columns(empty)), asyncio.run(_constraints(empty))
    upgrade(empty, revision)
    after = asyncio.run(_columns(empty))
    changed = {
        place
        for place, (kind, nullable, default) in before.items()
        if after.get(place) not in {(kind, nullable, default), (kind, "YES", default)}
    }  # what need not be written any more is written all the same
    assert changed == set(), "columns were dropped or changed"
    added = {place: kind for place, kind in after.items() if place not in before and place[0] in {t for t, _ in before}}
    assert [place for place, (_type, nullable, default) in added.items() if nullable == "NO" and default is None] == []
    assert asyncio.run(_constraints(empty)) - bound <= {
        one for one in asyncio.run(_constraints(empty)) if one[0] not in {table for table, _ in before}
    }, "a table that was there is bound by something that the release before does not know"


def test_a_migration_waits_for_no_reader_and_lets_readers_through(empty: str) -> None:
    """Behind a long transaction it gives up its turn again and again: others read and write meanwhile, and it comes
    through when the transaction ends."""
    upgrade(empty, "0013")
    asyncio.run(run(empty, "INSERT INTO projects VALUES ('proj_1', 'p', 1)"))

    async def story() -> None:
        holder, worker = await asyncpg.connect(empty), await asyncpg.connect(empty)
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT count(*) FROM jobs")  # held until its transaction ends
        migrating = asyncio.create_task(asyncio.to_thread(upgrade, empty, LAST_RELEASE))
        enough = asyncio.Event()
        working = asyncio.create_task(_work_until(enough, worker))
        try:
            await _turns(holder, wanted=3)
            assert not migrating.done()
        finally:
            enough.set()
            await transaction.rollback()
        slowest_s = await working
        assert slowest_s < 20, "whoever comes behind the migration waits for no longer than its turn"
        await migrating
        await holder.close()
        await worker.close()

    asyncio.run(story())
    assert revision_of(empty) == LAST_RELEASE


async def _work_until(enough: asyncio.Event, worker: asyncpg.Connection) -> float:
    """Read and write; the longest wait, in seconds."""
    loop, slowest_s = asyncio.get_running_loop(), 0.0
    while not enough.is_set():
        begun_s = loop.time()
        await worker.execute("UPDATE runs SET state = state")
        await worker.fetch("SELECT * FROM jobs")
        slowest_s = max(slowest_s, loop.time() - begun_s)
        await asyncio.sleep(0.01)
    return slowest_s


async def _turns(observer: asyncpg.Connection, wanted: int) -> None:
    """Returns when somebody has come for a lock on the jobs, and left again, so many times."""
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'jobs'::regclass"
    waited = False
    async with asyncio.timeout(60):
        while wanted:
            waiting = bool(await observer.fetchval(waits))
            wanted -= waited and not waiting
            waited = waiting
            await asyncio.sleep(0.01)


def test_a_table_that_is_never_free_ends_the_wait_with_what_to_look_for(empty: str) -> None:
    """The migrations before it stay, the one that waited has left nothing."""
    upgrade(empty, "0012")

    async def story() -> None:
        holder = await asyncpg.connect(empty)
        async with holder.transaction():
            await holder.execute("LOCK TABLE jobs IN ACCESS SHARE MODE")
            with pytest.raises(Unavailable, match=r"within 0\.5 s: tables .* pg_stat_activity"):
                await asyncio.to_thread(upgrade, empty, LAST_RELEASE, wait_s=0.5)
        await holder.close()

    asyncio.run(story())
    assert revision_of(empty) == "0013"


def test_of_two_processes_that_begin_at_once_one_migrates(empty: str) -> None:
    """The other one waits, and finds nothing left to do."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(upgrade, empty) for _ in range(2)]:
            done.result(timeout=120)
    assert revision_of(empty) == NEWEST


def test_a_process_that_waits_for_another_ones_migration_gives_up_in_words(empty: str) -> None:
    """Whoever holds the turn for too long is named as what it is; nothing is written."""

    async def story() -> None:
        other = await asyncpg.connect(empty)
        await other.fetchval("SELECT pg_advisory_lock(7226001)")
        with pytest.raises(Unavailable, match="another process migrates this database"):
            await asyncio.to_thread(upgrade, empty, wait_s=0.2)
        await other.close()
        assert await run(empty, "SELECT relname FROM pg_class WHERE relname = 'jobs'") == []

    asyncio.run(story())


def _newer(url: str) -> None:
    upgrade(url)
    asyncio.run(run(url, "UPDATE alembic_version SET version_num = '9999'"))


def _foreign(url: str) -> None:
    asyncio.run(run(url, "CREATE TABLE customers (id int)", "CREATE TABLE alembic_version (version_num text)"))
    asyncio.run(run(url, "INSERT INTO alembic_version VALUES ('ae10')"))


def _without_revision(url: str) -> None:
    upgrade(url)
    asyncio.run(run(url, "DROP TABLE alembic_version"))


_NOT_FOR_US = [
    (_newer, f"revision 9999, of a newer release than this one, which knows up to {NEWEST}; start the newer release"),
    (_foreign, "the database is not Allpass's: it holds customers; name an empty database"),
    (_without_revision, "tables of Allpass and no revision"),
]


@pytest.mark.parametrize(("make", "told"), _NOT_FOR_US)
@pytest.mark.parametrize("arguments", [["migrate"], [], ["downgrade", LAST_RELEASE]])
def test_a_database_that_is_not_for_this_release_is_told_and_left_as_it_is(
    empty: str,
    make: Callable[[str], None],
    told: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every process says so in one line and ends with 1: no traceback, and nothing is written."""
    make(empty)
    before = asyncio.run(_content(empty)), asyncio.run(_columns(empty))
    _configure(monkeypatch, empty)
    for migrates in ("true", "false"):
        monkeypatch.setenv("ALLPASS_MIGRATE_ON_START", migrates)
        assert main(arguments) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert told in line
    assert (asyncio.run(_content(empty)), asyncio.run(_columns(empty))) == before


def test_a_database_of_an_older_release_is_told_where_nothing_migrates(
    empty: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that is not to migrate does not serve on half of its schema."""
    upgrade(empty, "0012")
    _configure(monkeypatch, empty)
    monkeypatch.setenv("ALLPASS_MIGRATE_ON_START", "false")
    assert main([]) == 1
    assert f"at revision 0012, and this release needs {NEWEST}" in capsys.readouterr().err
    assert revision_of(empty) == "0012"


def test_a_user_without_rights_is_told_whose_they_are(postgres: EmbeddedPostgres, empty: str) -> None:
    """Neither a schema that may not be changed nor one that may not be read ends in a traceback."""
    upgrade(empty, "0013")
    name = f"guest_{next(_numbers)}"
    asyncio.run(run(empty, f"CREATE ROLE {name} LOGIN PASSWORD 'g'"))
    guest = empty.replace(empty.split("//")[1].split("@", maxsplit=1)[0], f"{name}:g")
    with pytest.raises(Conflict, match="may not read its schema"):
        upgrade(guest)
    asyncio.run(run(empty, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}"))
    with pytest.raises(Conflict, match=r"may not change its schema .* stays at revision 0013"):
        upgrade(guest)


def test_a_migration_that_fails_leaves_the_database_at_the_one_before(empty: str) -> None:
    """What it had begun is undone; once the reason is mended, the next start goes on from there."""
    upgrade(empty, "0012")
    asyncio.run(run(empty, "CREATE TABLE profiles (x int)"))  # 0014 makes one, after another table
    with pytest.raises(Conflict, match=r'was undone .*"profiles" already exists.* at revision 0013'):
        upgrade(empty)
    assert asyncio.run(run(empty, "SELECT to_regclass('merges') IS NULL"))[0][0]
    asyncio.run(run(empty, "DROP TABLE profiles"))
    upgrade(empty)
    assert revision_of(empty) == NEWEST


def test_the_way_back_is_closed_while_somebody_leads(database_url: str) -> None:
    """A control process that works would meet tables without its columns."""
    lease = "INSERT INTO leader_leases VALUES ('control', 'x', 1, clock_timestamp() + interval '{}')"
    asyncio.run(run(database_url, lease.format("1 hour")))
    with pytest.raises(Conflict, match="a control process leads"):
        downgrade(database_url, "0013")
    asyncio.run(run(database_url, "UPDATE leader_leases SET expires_at = clock_timestamp()"))
    downgrade(database_url, "0013")
    assert revision_of(database_url) == "0013"
    with pytest.raises(Conflict, match="at revision 0013, which is before 0014"):
        downgrade(database_url, "0014")
    with pytest.raises(InvalidInput, match="'base' is no revision; there are 0001 to"):
        downgrade(database_url, "base")


def test_the_way_back_is_a_command(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`downgrade REVISION` ends with 0; a revision that there is not, or none, with 2 and one line."""
    _configure(monkeypatch, database_url)
    assert main(["downgrade", LAST_RELEASE]) == 0
    assert revision_of(database_url) == LAST_RELEASE
    for wrong in (["downgrade"], ["downgrade", "9999"], ["downgrade", "0001", "0002"], ["migrate", "downgrade"]):
        assert main(wrong) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert revision_of(database_url) == LAST_RELEASE


def _configure(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    given = {"DATABASE_URL": url, "OBJECTS_SIGNING_KEY": "k" * 40, "SECRET_KEY": "s" * 40, "PORT": "0"}
    for name, value in given.items():
        monkeypatch.setenv(f"ALLPASS_{name}", value)


async def _fill(url: str) -> None:
    """One row in every table, with a value in every column."""
    connection = await asyncpg.connect(url)
    try:
        for table in metadata.sorted_tables:
            row = {column.name: _value(table, column) for column in table.columns}
            statement = f"INSERT INTO {table.name} SELECT * FROM jsonb_populate_record(NULL::{table.name}, $1::jsonb)"
            await connection.execute(statement, json.dumps(row))
    finally:
        await connection.close()


def _value(table: Table, column: Column[Any]) -> Any:
    if (table.name, column.name) == ("checkpoints", "state"):
        return "committed"  # others are given up on the way back before checkpoints had pieces
    if isinstance(column.type, JSONB):
        return {"a": [1, {"b": None}]}
    if isinstance(column.type, ARRAY):
        return ["x"] if column.type.item_type.python_type is str else [1]
    kind = column.type.python_type
    if kind is bytes:
        return "\\x00ff"
    return {bool: True, int: 1, float: 1.5, Decimal: 1, str: "x"}.get(kind, "2026-01-02T03:04:05+00:00")


async def _content(url: str) -> _Rows:
    tables = await run(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    return {
        name: [json.loads(row[0]) for row in await run(url, f"SELECT to_jsonb(t)::text FROM {name} t ORDER BY 1")]
        for (name,) in tables
        if name != "alembic_version"
    }


async def _columns(url: str) -> dict[tuple[str, str], tuple[str, str, str | None]]:
    rows = await run(
        url,
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns "
        "WHERE table_schema = 'public'",
    )
    return {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows}


async def _constraints(url: str) -> set[tuple[str, str]]:
    rows = await run(
        url,
        "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE conrelid <> 0 AND contype <> 'n' "
        "UNION SELECT indrelid::regclass::text, indexrelid::regclass::text FROM pg_index "
        "WHERE indisunique AND indrelid::regclass::text NOT LIKE 'pg_%'",
    )
    return {(row[0], row[1]) for row in rows}
