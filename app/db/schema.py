"""Which schema a database has, and what that means for this release. Asking writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import asyncpg
from alembic.config import Config
from alembic.script import ScriptDirectory

from app.errors import Conflict

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
_OURS = frozenset({"projects", "jobs", "runs", "nodes", "ledger"})  # since the first revision
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SchemaState:
    """`revision` None: no migration has run. `others`: tables that are there, and not because of an extension."""

    revision: str | None
    tables: frozenset[str]

    @property
    def is_empty(self) -> bool:
        return self.revision is None and not self.tables

    @property
    def is_ours(self) -> bool:
        return self.tables >= _OURS


@cache
def revisions() -> tuple[str, ...]:
    """Those that this release knows, oldest first."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    return tuple(reversed(known))


async def check_schema(database_url: str, *, timeout_s: float, may_migrate: bool = False) -> SchemaState:
    """How the database stands. Raises Conflict, in one sentence with what to do, when this release cannot work with it;
    `may_migrate`: where what is missing is about to be added."""
    connection = await asyncpg.connect(database_url, timeout=timeout_s, command_timeout=timeout_s)
    try:
        standing = await read_standing(connection)
    finally:
        await connection.close()
    check_standing(standing)
    if not may_migrate:
        _check_newest(standing)
    return standing


async def read_standing(connection: asyncpg.Connection) -> SchemaState:
    """What is there now. Raises Conflict when the user may not look."""
    try:
        tables = {row[0] for row in await connection.fetch(_TABLES)}
        found = await connection.fetch("SELECT version_num FROM alembic_version") if "alembic_version" in tables else []
    except asyncpg.InsufficientPrivilegeError as error:
        raise Conflict(f"the database's user may not read its schema ({error}); connect as its owner") from None
    return SchemaState(found[0][0] if found else None, frozenset(tables - {"alembic_version"}))


def check_standing(standing: SchemaState) -> None:
    """Raises Conflict when the database is of a newer release, or is not Allpass's."""
    known = revisions()
    if standing.is_empty or standing.revision in known:
        return
    if standing.is_ours and standing.revision is not None:
        raise Conflict(
            f"the database is at revision {standing.revision}, of a newer release than this one, which knows up to "
            f"{known[-1]}; start the newer release, or let it take the database back first: "
            f"python -m app.main downgrade {known[-1]}"
        )
    if standing.is_ours:
        raise Conflict(
            "the database holds tables of Allpass and no revision, so it is not known what they are; "
            "restore it from a dump that has the table alembic_version"
        )
    raise Conflict(
        f"the database is not Allpass's: it holds {_some(sorted(standing.tables) or ['alembic_version'])}; "
        "name an empty database, or make one with CREATE DATABASE"
    )


def _check_newest(standing: SchemaState) -> None:
    if standing.is_empty:
        raise Conflict("the database holds no tables of Allpass; start one process with ALLPASS_MIGRATE_ON_START=true")
    if standing.revision != revisions()[-1]:
        raise Conflict(
            f"the database is at revision {standing.revision}, and this release needs {revisions()[-1]}; "
            "bring it up to date: python -m app.main migrate"
        )


def _some(names: Sequence[str]) -> str:
    left = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {left} more" if left > 0 else "")


_TABLES = """
    SELECT c.relname FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
"""
