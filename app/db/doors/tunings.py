"""Fine-tunings that were asked for through a door, each with the job that it became."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.job import JobState
from app.db.tables import jobs, tunings


@dataclass(frozen=True, slots=True)
class FineTuning:
    """`request`: as it was accepted. `error`: why it ended before it was a job."""

    id: str
    project_id: str
    job_id: str | None
    request: Mapping[str, Any]
    model: str
    base_model: str
    adapter_of: str | None
    training_file_id: str
    validation_file_id: str | None
    author: Mapping[str, Any]
    fine_tuned_model: str
    error: Mapping[str, Any] | None
    created_ms: int
    ended_ms: int | None
    model_deleted_ms: int | None


_UNKNOWN: Mapping[str, Any] = {
    "method": "supervised", "hyperparameters": {}, "settings": {}, "template": {}, "deadline": None, "seed": 0,
    "suffix": None, "metadata": {}, "integrations": [], "estimate": None,
}  # fmt: skip
_KINDS: Mapping[str, Any] = {
    "method": str, "hyperparameters": dict, "settings": dict, "template": dict, "deadline": (str, type(None)),
    "seed": int, "suffix": (str, type(None)), "metadata": dict, "integrations": list,
    "estimate": (str, type(None)),
}  # fmt: skip
_COLUMNS = tuple(tunings.c[name] for name in FineTuning.__dataclass_fields__)


async def add_tuning(connection: AsyncConnection, tuning: FineTuning) -> None:
    values = {name: getattr(tuning, name) for name in FineTuning.__dataclass_fields__}
    values = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    if tuning.error is None:
        del values["error"]  # SQL's null, not JSON's
    await connection.execute(tunings.insert().values(**values))


async def find_tuning(connection: AsyncConnection, project_id: str, tuning_id: str) -> FineTuning | None:
    statement = select(*_COLUMNS).where(tunings.c.id == tuning_id, tunings.c.project_id == project_id)
    return _tuning((await connection.execute(statement)).one_or_none())


async def find_by_model(connection: AsyncConnection, project_id: str, name: str) -> FineTuning | None:
    """The tuning whose result has this name, unless that was deleted."""
    columns = tunings.c
    mine = (columns.project_id == project_id) & (columns.fine_tuned_model == name)
    statement = select(*_COLUMNS).where(mine, columns.model_deleted_ms.is_(None))
    return _tuning((await connection.execute(statement)).one_or_none())


async def list_tunings(
    connection: AsyncConnection,
    project_id: str,
    *,
    metadata: Mapping[str, str] | None = None,
    has_none: bool = False,
    after: str | None,
    limit: int,
) -> list[FineTuning]:
    """Newest first, of those before `after`; only those that have all of `metadata`, or (`has_none`) none at all."""
    columns = tunings.c
    statement = select(*_COLUMNS).where(columns.project_id == project_id)
    told = func.coalesce(columns.request["metadata"], literal({}, JSONB))
    if metadata:
        statement = statement.where(told.op("@>")(literal(dict(metadata), JSONB)))
    if has_none:
        statement = statement.where(told == literal({}, JSONB))
    if after is not None:
        statement = statement.where(columns.id < after)
    return [_read(row) for row in await connection.execute(statement.order_by(columns.id.desc()).limit(limit))]


async def tunings_with_results(
    connection: AsyncConnection, project_id: str, *, limit: int
) -> list[tuple[FineTuning, int]]:
    """Those whose jobs have succeeded, each with when that was, and whose models were not deleted; newest first."""
    columns = tunings.c
    statement = (
        select(*_COLUMNS, jobs.c.ended_ms.label("job_ended_ms"))
        .join(jobs, jobs.c.id == columns.job_id)
        .where(
            columns.project_id == project_id,
            columns.model_deleted_ms.is_(None),
            jobs.c.state == JobState.SUCCEEDED,
        )
        .order_by(columns.id.desc())
        .limit(limit)
    )
    rows = (await connection.execute(statement)).all()
    return [(_read(row), row.job_ended_ms or row.created_ms) for row in rows]


async def set_estimate(connection: AsyncConnection, tuning_id: str, estimate: str) -> None:
    """What it is expected to take, in words."""
    told = tunings.c.request.concat(literal({"estimate": estimate}, JSONB))
    await connection.execute(update(tunings).where(tunings.c.id == tuning_id).values(request=told))


async def set_job(connection: AsyncConnection, tuning_id: str, job_id: str) -> bool:
    """It has become a job. False: it has ended, or is one already."""
    columns = tunings.c
    open_still = (columns.id == tuning_id) & columns.job_id.is_(None) & columns.ended_ms.is_(None)
    return (await connection.execute(update(tunings).where(open_still).values(job_id=job_id))).rowcount == 1


async def end_tuning(
    connection: AsyncConnection, tuning_id: str, *, error: Mapping[str, Any] | None, now_ms: int
) -> bool:
    """It will not become a job: for this reason, or as its owner cancelled it (no error)."""
    columns = tunings.c
    open_still = (columns.id == tuning_id) & columns.job_id.is_(None) & columns.ended_ms.is_(None)
    told = {} if error is None else {"error": dict(error)}
    return (await connection.execute(update(tunings).where(open_still).values(ended_ms=now_ms, **told))).rowcount == 1


async def delete_model(connection: AsyncConnection, tuning_id: str, *, now_ms: int) -> None:
    """Its name opens nothing any more."""
    await connection.execute(update(tunings).where(tunings.c.id == tuning_id).values(model_deleted_ms=now_ms))


async def unfinished_tunings(connection: AsyncConnection, *, before_ms: int, most: int) -> list[FineTuning]:
    """Those that were accepted before then, and are neither jobs nor over: the oldest first."""
    columns = tunings.c
    statement = select(*_COLUMNS).where(
        columns.job_id.is_(None), columns.ended_ms.is_(None), columns.created_ms < before_ms
    )
    return [_read(row) for row in await connection.execute(statement.order_by(columns.id).limit(most))]


def _read(row: Any) -> FineTuning:
    """What nothing of ours would have written counts as what is not known: one such row hides no other."""
    fields = {name: getattr(row, name) for name in FineTuning.__dataclass_fields__}
    fields["request"] = {**_UNKNOWN, **_of_their_kinds(fields["request"])}
    fields["author"] = fields["author"] if isinstance(fields["author"], Mapping) else {}
    error = fields["error"]
    if error is not None and not (isinstance(error, Mapping) and {"code", "message"} <= error.keys()):
        fields["error"] = {"code": "server_error", "message": "why it failed can no longer be read"}
    return FineTuning(**fields)


def _of_their_kinds(told: Any) -> dict[str, Any]:
    if not isinstance(told, Mapping):
        return {}
    return {name: value for name, value in told.items() if isinstance(value, _KINDS.get(name, object))}


def _tuning(row: Any) -> FineTuning | None:
    return None if row is None else _read(row)
