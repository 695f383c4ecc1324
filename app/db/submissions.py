"""Writing submitted jobs: any number of submissions in one statement, which is one transaction.

This is the one place that goes past SQLAlchemy to its asyncpg connection: the statement is one round trip, and
when it returns its rows are durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import Text, cast, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.engine import Database
from app.db.idempotency import RequestKey
from app.db.notify import CONTROL
from app.db.tables import app_versions as versions
from app.db.tables import apps, jobs

JOB_QUEUED = "job_queued"


class NewJob(NamedTuple):
    """A row of `jobs` as it is first written, columns by name. JSON columns are JSON text."""

    id: str
    project_id: str
    app_id: str
    app_version_id: str
    sweep_id: str | None
    name: str
    labels: str
    parameters: str
    template: str
    resources: str
    kind: str
    priority_class: str
    start: str
    elastic: bool
    sharing: bool
    affinity: str
    checkpoint_interval_s: int
    max_cost_micros: int | None
    max_duration_ms: int | None
    deadline_ms: int
    deadline_given: bool
    total_steps: int | None
    submitted_ms: int


_JSON_COLUMNS = frozenset({"labels", "parameters", "template", "resources", "affinity"})
_TYPES = {
    "elastic": "boolean",
    "sharing": "boolean",
    "deadline_given": "boolean",
    "checkpoint_interval_s": "integer",
    "max_cost_micros": "bigint",
    "max_duration_ms": "bigint",
    "deadline_ms": "bigint",
    "total_steps": "bigint",
    "submitted_ms": "bigint",
}


@dataclass(frozen=True, slots=True)
class Submission:
    """Jobs that are written together or not at all.

    `owner_id` is the id that the answer names: the job's, or the sweep's. With `pinned` False, `app_version` was
    taken for the newest: when it is not any more, nothing is written.
    """

    owner_id: str
    project_id: str
    jobs: tuple[NewJob, ...]
    app_version: int
    pinned: bool
    key: RequestKey | None
    status: int


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """A submission as it was accepted, read back."""

    app_name: str
    app_version: int
    jobs: tuple[NewJob, ...]


def _statement() -> str:
    columns = NewJob._fields
    types = ["text", "boolean", "boolean", "integer", *(_TYPES.get(name, "text") for name in columns)]
    names = ["owner_id", "keyed", "pinned", "app_version", *columns]
    arrays = ", ".join(f"${number}::{type_}[]" for number, type_ in enumerate(types, 1))
    first_key = len(types) + 1
    key_types = ("text", "text", "text", "text", "bytea", "integer", "bigint")
    key_arrays = ", ".join(f"${number}::{type_}[]" for number, type_ in enumerate(key_types, first_key))
    values = ", ".join(f"w.{name}::jsonb" if name in _JSON_COLUMNS else f"w.{name}" for name in columns)
    return f"""
    WITH wanted AS MATERIALIZED (
        SELECT w.* FROM unnest({arrays}) AS w({", ".join(f'"{name}"' for name in names)})
        JOIN apps ON apps.id = w.app_id AND (w.pinned OR apps.version = w.app_version)
    ), claimed AS (
        INSERT INTO idempotency_keys (project_id, key, route, body_sha256, status, response, created_ms)
        SELECT k.project_id, k.key, k.route, k.body_sha256, k.status, jsonb_build_object('id', k.owner_id), k.now_ms
        FROM unnest({key_arrays}) AS k(owner_id, project_id, key, route, body_sha256, status, now_ms)
        WHERE k.owner_id IN (SELECT owner_id FROM wanted)
        ORDER BY k.project_id, k.key
        ON CONFLICT DO NOTHING
        RETURNING response ->> 'id' AS owner_id
    ), written AS (
        INSERT INTO jobs ({", ".join(f'"{name}"' for name in columns)}, state, event_position)
        SELECT {values}, 'queued', 1 FROM wanted w
        WHERE NOT w.keyed OR w.owner_id IN (SELECT owner_id FROM claimed)
        RETURNING id, submitted_ms
    ), told AS (
        INSERT INTO job_events (job_id, position, at_ms, kind, message)
        SELECT id, 1, submitted_ms, '{JOB_QUEUED}', 'submitted' FROM written
    )
    SELECT array_agg(id), pg_notify('{CONTROL}', '') FROM written HAVING count(*) > 0
    """  # noqa: S608 (built from constants of this module alone)


_WRITE = _statement()


async def write_submissions(database: Database, submissions: Sequence[Submission]) -> list[bool]:
    """Write what can be written, durably; for each submission, in order, whether it was.

    One that was not had its idempotency key taken before, or its app has a newer version than it assumed. Raises
    Unavailable when the database does not answer: whether anything was written is then unknown.
    """
    rows = [row for one in submissions for row in _rows(one)]
    keys = [_key_row(one) for one in submissions if one.key is not None]
    arguments = chain(_columns(rows, 4 + len(NewJob._fields)), _columns(keys, 7))
    async with database.driver() as connection:
        record = await connection.fetchrow(_WRITE, *arguments)
    written = frozenset(record[0]) if record else frozenset()
    return [one.jobs[0].id in written for one in submissions]


async def read_submission(connection: AsyncConnection, owner_id: str) -> StoredSubmission | None:
    """A submission as it was accepted, by the id of its job or sweep."""
    columns = [
        cast(jobs.c[name], Text).label(name) if name in _JSON_COLUMNS else jobs.c[name] for name in NewJob._fields
    ]
    statement = (
        select(apps.c.name.label("app_name"), versions.c.version, *columns)
        .join(apps, apps.c.id == jobs.c.app_id)
        .join(versions, versions.c.id == jobs.c.app_version_id)
        .where((jobs.c.id == owner_id) | (jobs.c.sweep_id == owner_id))
        .order_by(jobs.c.id)
    )
    rows = (await connection.execute(statement)).all()
    if not rows:
        return None
    return StoredSubmission(rows[0][0], rows[0][1], tuple(NewJob(*row[2:]) for row in rows))


def _rows(one: Submission) -> list[tuple[Any, ...]]:
    head = (one.owner_id, one.key is not None, one.pinned, one.app_version)
    return [head + job for job in one.jobs]


def _key_row(one: Submission) -> tuple[Any, ...]:
    assert one.key is not None
    key = one.key
    return one.owner_id, one.project_id, key.key, key.route, key.body_sha256, one.status, one.jobs[0].submitted_ms


def _columns(rows: list[tuple[Any, ...]], width: int) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width
