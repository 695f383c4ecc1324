"""Provider operations: intended calls, written in the transaction that decided them, carried out under a lease."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.tables import provider_operations


class OperationKind(StrEnum):
    CREATE = "create"
    TERMINATE = "terminate"


class OperationState(StrEnum):
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


async def add_operation(
    connection: AsyncConnection, operation_id: str, node_id: str, provider: str, kind: OperationKind, *, now_ms: int
) -> None:
    """Write the intent. A node has at most one open operation of a kind: a second one is the same intent."""
    statement = (
        insert(provider_operations)
        .values(
            id=operation_id,
            node_id=node_id,
            provider=provider,
            kind=kind,
            state=OperationState.PENDING,
            not_before_ms=now_ms,
            created_ms=now_ms,
        )
        .on_conflict_do_nothing()
    )
    await connection.execute(statement)
    await notify.operations(connection)
