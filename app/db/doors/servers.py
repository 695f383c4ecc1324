"""Jobs that answer for models: of each base model of a project at most one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import model_servers


@dataclass(frozen=True, slots=True)
class ModelServer:
    """`instance`: the process that asks for requests now."""

    id: str
    project_id: str
    base_model: str
    author: Mapping[str, Any]
    job_id: str | None
    instance: str | None
    created_ms: int
    ended_ms: int | None


_COLUMNS = tuple(model_servers.c[name] for name in ModelServer.__dataclass_fields__)


async def open_server(
    connection: AsyncConnection,
    server_id: str,
    project_id: str,
    base_model: str,
    author: Mapping[str, Any],
    now_ms: int,
) -> ModelServer:
    """The one that is open for this model; one with this id, where there is none."""
    new = insert(model_servers).values(
        id=server_id, project_id=project_id, base_model=base_model, author=dict(author), created_ms=now_ms
    )
    await connection.execute(new.on_conflict_do_nothing())
    mine = (model_servers.c.project_id == project_id) & (model_servers.c.base_model == base_model)
    statement = select(*_COLUMNS).where(mine, model_servers.c.ended_ms.is_(None))
    return ModelServer(*(await connection.execute(statement)).one())


async def find_server(connection: AsyncConnection, server_id: str) -> ModelServer | None:
    row = (await connection.execute(select(*_COLUMNS).where(model_servers.c.id == server_id))).one_or_none()
    return None if row is None else ModelServer(*row)


async def set_server_job(connection: AsyncConnection, server_id: str, job_id: str) -> None:
    await connection.execute(update(model_servers).where(model_servers.c.id == server_id).values(job_id=job_id))


async def set_instance(connection: AsyncConnection, server_id: str, instance: str) -> None:
    """From now on this process asks for the server's requests."""
    await connection.execute(update(model_servers).where(model_servers.c.id == server_id).values(instance=instance))


async def end_server(connection: AsyncConnection, server_id: str, *, now_ms: int) -> None:
    """Its job is over: the next request begins another one."""
    open_still = (model_servers.c.id == server_id) & model_servers.c.ended_ms.is_(None)
    await connection.execute(update(model_servers).where(open_still).values(ended_ms=now_ms))
