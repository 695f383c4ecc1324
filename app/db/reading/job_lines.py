"""Jobs as lines of a table: what is shown of each, and nothing that is large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Text, case, column, desc, func, literal, or_, select, text, union_all
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.job import JobState, PriorityClass
from app.db.arrays import is_one_of
from app.db.foreign import reads_as_one_of
from app.db.tables import apps, jobs

MOST_COUNTED = 10_000  # of each state: more are told as one more than that


@dataclass(frozen=True, slots=True)
class LineRow:
    id: str
    app_id: str
    app_name: str
    sweep_id: str | None
    name: str
    labels: Mapping[str, str]
    state: JobState
    priority_class: PriorityClass
    pause_reason: str | None
    end_reason: str | None
    end_message: str | None
    wait_reason: str | None
    faults: int
    moves: int
    step: int
    total_steps: int | None
    has_target: bool
    spent_micros: int
    deadline_ms: int
    submitted_ms: int
    first_running_ms: int | None
    ended_ms: int | None


@dataclass(frozen=True, slots=True)
class LineFilter:
    """`q`: the beginning of an id, or a part of a name, an app's name or a label's value, in any case. Empty fields
    filter nothing."""

    states: frozenset[JobState] = frozenset()
    q: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    app_id: str | None = None
    sweep_id: str | None = None
    key_id: str | None = None


_OF_OTHERS = ("app_name", "has_target")
# A template is large, and lies beside its row: only those of jobs that are at it are looked at.
_HAS_TARGET = case((jobs.c.state == JobState.RUNNING, jobs.c.template["target"].astext.is_not(None)), else_=False)
_COLUMNS = (
    *(jobs.c[name] for name in LineRow.__dataclass_fields__ if name not in _OF_OTHERS),
    apps.c.name.label("app_name"),
    _HAS_TARGET.label("has_target"),
)


async def lines_page(
    connection: AsyncConnection, project_id: str, wanted: LineFilter, *, before: str | None, limit: int
) -> list[LineRow]:
    """Newest first, of those with ids below `before`."""
    statement = _lines().where(jobs.c.project_id == project_id, *_conditions(project_id, wanted))
    if wanted.states:
        statement = statement.where(reads_as_one_of(jobs.c.state, JobState, wanted.states))
    if before is not None:
        statement = statement.where(jobs.c.id < before)
    rows = await connection.execute(statement.order_by(desc(jobs.c.id)).limit(limit))
    return [_line(row) for row in rows]


async def lines_by_id(connection: AsyncConnection, project_id: str, job_ids: Sequence[str]) -> list[LineRow]:
    """Those of these jobs that are the project's, newest first."""
    statement = _lines().where(jobs.c.project_id == project_id, is_one_of(jobs.c.id, job_ids))
    return [_line(row) for row in await connection.execute(statement.order_by(desc(jobs.c.id)))]


async def count_by_state(connection: AsyncConnection, project_id: str, wanted: LineFilter) -> dict[JobState, int]:
    """How many jobs of each state there are, whatever states are wanted. Each is counted up to `MOST_COUNTED`, by the
    index of states: so what a long past costs is bounded. States of a newer release are left out."""
    known = func.unnest(literal(sorted(JobState), ARRAY(Text))).table_valued(column("state", Text)).render_derived()
    some = (
        select(literal(1))
        .where(jobs.c.project_id == project_id, jobs.c.state == known.c.state, *_conditions(project_id, wanted))
        .limit(MOST_COUNTED + 1)
        .correlate(known)
        .subquery()
    )
    counted_there = select(func.count()).select_from(some).scalar_subquery()
    statement = select(known.c.state, counted_there)
    counted = {row[0]: int(row[1]) for row in await connection.execute(statement)}
    return {state: counted.get(state, 0) for state in JobState}


async def wait_words(connection: AsyncConnection, project_id: str, states: Sequence[JobState]) -> dict[str, int]:
    """By job in one of these states, what stands for the words that say why it waits."""
    statement = select(jobs.c.id, func.hashtext(jobs.c.wait_reason)).where(
        jobs.c.project_id == project_id, is_one_of(jobs.c.state, states), jobs.c.wait_reason.is_not(None)
    )
    return {row[0]: row[1] for row in await connection.execute(statement)}


def _conditions(project_id: str, wanted: LineFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.app_id is not None:
        yield jobs.c.app_id == wanted.app_id
    if wanted.sweep_id is not None:
        yield jobs.c.sweep_id == wanted.sweep_id
    if wanted.key_id is not None:
        yield jobs.c.key_id == wanted.key_id
    if wanted.labels:
        yield jobs.c.labels.contains(dict(wanted.labels))
    if wanted.q:
        yield _matches(project_id, wanted.q)


def _matches(project_id: str, q: str) -> ColumnElement[bool]:
    """What stands for anything elsewhere (% and _) stands for itself."""
    named = select(apps.c.id).where(apps.c.project_id == project_id, apps.c.name.icontains(q, autoescape=True))
    has_labels = func.jsonb_typeof(jobs.c.labels) == "object"  # one row that has none of ours fails no search
    label = func.jsonb_each_text(case((has_labels, jobs.c.labels), else_=text("'{}'::jsonb"))).table_valued(
        "key", "value"
    )
    labelled = select(literal(1)).select_from(label).where(label.c.value.icontains(q, autoescape=True)).exists()
    return or_(
        jobs.c.id.istartswith(q, autoescape=True),
        jobs.c.name.icontains(q, autoescape=True),
        jobs.c.app_id.in_(union_all(named)),
        labelled,
    )


def _lines() -> Select[Any]:
    return select(*_COLUMNS).join(apps, apps.c.id == jobs.c.app_id)


def _line(row: Row[Any]) -> LineRow:
    fields = dict(row._mapping)
    fields["state"] = read_as(JobState, fields["state"])
    fields["priority_class"] = read_as(PriorityClass, fields["priority_class"])
    return LineRow(**fields)
