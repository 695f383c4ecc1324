"""Answers that are kept under the key of the request that caused them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, and_, cast, delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import idempotency_keys


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A client's name for one request: the same key with the same route and body is the same request."""

    key: str
    route: str
    body_sha256: bytes


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    route: str
    body_sha256: bytes
    status: int
    response: Mapping[str, Any]


async def find_answer(connection: AsyncConnection, project_id: str, key: str) -> StoredAnswer | None:
    """What was answered to the request of this key."""
    columns = idempotency_keys.c
    row = (
        await connection.execute(
            select(columns.route, columns.body_sha256, columns.status, columns.response).where(
                columns.project_id == project_id, columns.key == key
            )
        )
    ).one_or_none()
    return None if row is None else StoredAnswer(row.route, bytes(row.body_sha256), row.status, row.response)


async def claim(connection: AsyncConnection, project_id: str, key: RequestKey, *, now_ms: int) -> bool:
    """Take the key for the request being handled in this transaction; False when it was taken before.

    Waits while another transaction holds it. The same request may take a key again whose answer has expired.
    """
    columns = idempotency_keys.c
    statement = insert(idempotency_keys).values(
        project_id=project_id,
        key=key.key,
        route=key.route,
        body_sha256=key.body_sha256,
        status=0,
        response={},
        created_ms=now_ms,
    )
    statement = statement.on_conflict_do_update(
        index_elements=[columns.project_id, columns.key],
        set_={"status": 0, "response": {}, "created_ms": now_ms},
        where=and_(
            columns.route == key.route,
            columns.body_sha256 == key.body_sha256,
            cast(columns.response["until_ms"].astext, BigInteger) <= now_ms,
        ),
    )
    return (await connection.execute(statement)).rowcount == 1


async def add_answer(
    connection: AsyncConnection, project_id: str, key: str, status: int, response: Mapping[str, Any]
) -> None:
    """Store the answer of a claimed key, in the transaction that claimed it."""
    await connection.execute(
        update(idempotency_keys)
        .where(idempotency_keys.c.project_id == project_id, idempotency_keys.c.key == key)
        .values(status=status, response=dict(response))
    )


async def delete_answers(connection: AsyncConnection, *, before_ms: int) -> int:
    """Delete answers older than that; returns how many."""
    statement = delete(idempotency_keys).where(idempotency_keys.c.created_ms < before_ms)
    return (await connection.execute(statement)).rowcount
