"""Writing submitted jobs: any number of submissions in one statement, which is one transaction.

This is the one place that goes past SQLAlchemy to its asyncpg connection: the statement is one round trip, and
when it returns its rows are durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import JSON, Row, Text, cast, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.access.audit import Author
from app.db.access.idempotency import RequestKey
from app.db.access.projects import PROJECT_CLASS
from app.db.engine import Database
from app.db.notify import CONTROL
from app.db.tables import app_versions as versions
from app.db.tables import apps, jobs

JOB_QUEUED = "job_queued"


class StatedJob(NamedTuple):
    """The columns of `jobs` that come from the template: the same for all jobs that are submitted with it."""

    labels: str
    template: str
    resources: str
    kind: str
    kind_said: bool
    priority_class: str
    start: str
    elastic: bool
    sharing: bool
    affinity: str
    checkpoint_interval_s: int
    max_cost_micros: int | None
    max_duration_ms: int | None
    max_hourly_micros: int | None
    max_wait_ms: int | None
    retries: int | None
    total_steps: int | None
    plan: str | None
    predicted_step_ms: float | None
    gpu_speeds: str | None


class RequestedJob(NamedTuple):
    """Those that come from the request: the same for all jobs of a sweep."""

    sweep_id: str | None
    name: str
    project_id: str
    app_id: str
    app_version_id: str
    key_id: str | None
    from_checkpoint_id: str | None
    deadline_given: bool


class OneJob(NamedTuple):
    """Those of each job alone."""

    id: str
    parameters: str
    deadline_ms: int
    submitted_ms: int


class NewJob(NamedTuple):
    """A row of `jobs` as it is first written, columns by name: a field added to one of the three parts is written, and
    read back, without another edit here. JSON columns are JSON text."""

    own: OneJob
    requested: RequestedJob
    stated: StatedJob


_SAME = RequestedJob._fields + StatedJob._fields
_COLUMNS = OneJob._fields + _SAME
_JSON_COLUMNS = frozenset(name for name in _COLUMNS if isinstance(jobs.c[name].type, JSON))
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_TYPES = {  # as which each field is sent; one that is not named is text, and JSON is sent as text
    **{name: jobs.c[name].type.compile(_DIALECT).lower() for name in _COLUMNS if name not in _JSON_COLUMNS},
    **dict.fromkeys(("pinned", "class_named"), "boolean"),
    **dict.fromkeys(("app_version", "status", "shared"), "integer"),
    "body_sha256": "bytea",
}
_SHARED_FIELDS = ("app_version", "pinned", "class_named", "route", "status", *_SAME)
_JOB_FIELDS = ("owner_id", "shared", *OneJob._fields)  # owner_id: None for a submission without a key
_ENTRY_FIELDS = ("job_id", "shared", "owner_id", "key_id", "request_id")  # of the audit log, by the first job
_KEY_FIELDS = ("owner_id", "shared", "key", "body_sha256", "submitted_ms")


class Submission(NamedTuple):
    """Jobs that are written together or not at all.

    `owner_id` is the id that the answer names: the job's, or the sweep's. With `pinned` False, `app_version` was
    taken for the newest: when it is not any more, nothing is written. With `class_named` False, the jobs' class was
    taken for the project's default: the same. `author` is noted in the audit log.
    """

    owner_id: str
    project_id: str
    jobs: tuple[NewJob, ...]
    app_version: int
    pinned: bool
    key: RequestKey | None
    status: int
    author: Author | None = None
    class_named: bool = True


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """A submission as it was accepted, read back."""

    app_name: str
    app_version: int
    jobs: tuple[NewJob, ...]


def _unnest(fields: tuple[str, ...], first: int) -> str:
    """Arrays, one parameter for each field from number `first` on, as rows."""
    return ", ".join(f"${number}::{_TYPES.get(name, 'text')}[]" for number, name in enumerate(fields, first))


def _statement() -> str:
    """What jobs share is sent and parsed once: `shared` numbers the distinct sets from 1."""
    own = [f"j.{name}::jsonb" if name in _JSON_COLUMNS else f"j.{name}" for name in OneJob._fields]
    values = own + [f"s.{name}" for name in _SAME]
    parsed = [f"s.{name}::jsonb" if name in _JSON_COLUMNS else f"s.{name}" for name in _SHARED_FIELDS]
    job_first = 1 + len(_SHARED_FIELDS)
    key_first = job_first + len(_JOB_FIELDS)
    entry_first = key_first + len(_KEY_FIELDS)
    return f"""
    WITH shared AS MATERIALIZED (
        SELECT s.no, {", ".join(parsed)}
        FROM unnest({_unnest(_SHARED_FIELDS, 1)}) WITH ORDINALITY AS s({", ".join(_SHARED_FIELDS)}, no)
        JOIN apps ON apps.id = s.app_id AND (s.pinned OR apps.version = s.app_version)
        JOIN projects ON projects.id = apps.project_id AND projects.archived_ms IS NULL
            AND (s.class_named OR s.priority_class = {PROJECT_CLASS})
        FOR KEY SHARE OF projects
    ), claimed AS (
        INSERT INTO idempotency_keys (project_id, key, route, body_sha256, status, response, created_ms)
        SELECT s.project_id, k.key, s.route, k.body_sha256, s.status,
               jsonb_build_object('id', k.owner_id), k.submitted_ms
        FROM unnest({_unnest(_KEY_FIELDS, key_first)}) AS k({", ".join(_KEY_FIELDS)})
        JOIN shared s ON s.no = k.shared
        ORDER BY s.project_id, k.key
        ON CONFLICT DO NOTHING
        RETURNING response ->> 'id' AS owner_id
    ), written AS (
        INSERT INTO jobs ({", ".join(_COLUMNS)}, state, event_position)
        SELECT {", ".join(values)}, 'queued', 1
        FROM unnest({_unnest(_JOB_FIELDS, job_first)}) AS j({", ".join(_JOB_FIELDS)})
        JOIN shared s ON s.no = j.shared
        WHERE j.owner_id IS NULL OR j.owner_id IN (SELECT owner_id FROM claimed)
        RETURNING id, submitted_ms
    ), told AS (
        INSERT INTO job_events (job_id, position, at_ms, kind, message)
        SELECT id, 1, submitted_ms, '{JOB_QUEUED}', 'submitted' FROM written
    ), noted AS (
        INSERT INTO audit_log (project_id, at_ms, key_id, request_id, route, object_id, status)
        SELECT s.project_id, w.submitted_ms, e.key_id, e.request_id, s.route, e.owner_id, s.status
        FROM unnest({_unnest(_ENTRY_FIELDS, entry_first)}) AS e({", ".join(_ENTRY_FIELDS)})
        JOIN written w ON w.id = e.job_id
        JOIN shared s ON s.no = e.shared
    )
    SELECT array_agg(id), pg_notify('{CONTROL}', '') FROM written HAVING count(*) > 0
    """  # noqa: S608 (built from constants of this module alone)


_WRITE = _statement()


async def add_submissions(database: Database, submissions: Sequence[Submission]) -> list[bool]:
    """Write what can be written, durably; for each submission, in order, whether it was.

    One that was not had its idempotency key taken before, its app has a newer version than it assumed, its project has
    another default class than it assumed, or is archived. Raises Unavailable when the database does not answer: whether
    anything was written is then unknown.
    """
    async with database.driver() as connection:
        record = await connection.fetchrow(_WRITE, *_arguments(submissions))
    written = frozenset(record[0]) if record else frozenset()
    return [one.jobs[0].own.id in written for one in submissions]


async def read_submission(connection: AsyncConnection, owner_id: str) -> StoredSubmission | None:
    """A submission as it was accepted, by the id of its job or sweep."""
    columns = [cast(jobs.c[name], Text).label(name) if name in _JSON_COLUMNS else jobs.c[name] for name in _COLUMNS]
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
    return StoredSubmission(rows[0].app_name, rows[0].version, tuple(_read(row) for row in rows))


def _read(row: Row[Any]) -> NewJob:
    return NewJob(
        OneJob(*(getattr(row, name) for name in OneJob._fields)),
        RequestedJob(*(getattr(row, name) for name in RequestedJob._fields)),
        StatedJob(*(getattr(row, name) for name in StatedJob._fields)),
    )


def _arguments(submissions: Sequence[Submission]) -> list[Sequence[Any]]:
    """One array for each field of `shared`, then of the jobs, the keys and the entries of the audit log."""
    shared: dict[tuple[Any, ...], int] = {}
    jobs_: list[tuple[Any, ...]] = []
    keys: list[tuple[Any, ...]] = []
    entries: list[tuple[Any, ...]] = []
    for one in submissions:
        key, author = one.key, one.author
        route = key.route if key is not None else author.route if author is not None else ""
        head = (one.app_version, one.pinned, one.class_named, route, one.status)
        owner_id = None if key is None else one.owner_id
        for job in one.jobs:
            number = shared.setdefault(head + job.requested + job.stated, len(shared) + 1)
            jobs_.append((owner_id, number, *job.own))
        if key is not None:
            keys.append((owner_id, number, key.key, key.body_sha256, one.jobs[0].own.submitted_ms))
        if author is not None:
            entries.append((one.jobs[0].own.id, number, one.owner_id, author.key_id, author.request_id))
    return [
        *_columns(shared, len(_SHARED_FIELDS)),
        *_columns(jobs_, len(_JOB_FIELDS)),
        *_columns(keys, len(_KEY_FIELDS)),
        *_columns(entries, len(_ENTRY_FIELDS)),
    ]


def _columns(rows: Iterable[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    return list(zip(*rows, strict=True)) or [()] * width
