"""Provider operations: intended calls, written in the transaction that decided them, carried out under a lease.

`error_code` says what is known of the last call. It is set to `outcome_unknown` in the transaction before a create
call, so that a process that dies inside the call leaves the truth behind: look before any retry.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.moments import database_now_plus
from app.db.tables import provider_operations
from app.errors import OutcomeUnknown


class OperationKind(StrEnum):
    CREATE = "create"
    TERMINATE = "terminate"


class OperationState(StrEnum):
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LeasedOperation:
    """An operation that is ours for a time. `attempts` counts this claim."""

    operation_id: str
    node_id: str
    provider: str
    kind: OperationKind
    attempts: int
    error_code: str | None
    lease_token: str


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
        # Only the second intent is forgiven; an id that repeats is a bug and has to be heard.
        .on_conflict_do_nothing(
            index_elements=[provider_operations.c.node_id, provider_operations.c.kind],
            index_where=text("state = 'pending'"),
        )
    )
    await connection.execute(statement)
    await notify.operations(connection)


async def claim(connection: AsyncConnection, *, limit: int, lease_s: float, now_ms: int) -> list[LeasedOperation]:
    """Take up to `limit` due operations that nobody holds, oldest first; other claimers pass by without waiting."""
    row = provider_operations.c
    due = (
        select(row.id)
        .where(
            row.state == OperationState.PENDING,
            row.not_before_ms <= now_ms,
            or_(row.lease_until.is_(None), row.lease_until < func.clock_timestamp()),
        )
        .order_by(row.not_before_ms, row.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    token = secrets.token_hex(16)
    rows = await connection.execute(
        update(provider_operations)
        .where(row.id.in_(due.scalar_subquery()))
        .values(lease_token=token, lease_until=database_now_plus(lease_s), attempts=row.attempts + 1)
        .returning(row.id, row.node_id, row.provider, row.kind, row.attempts, row.error_code)
    )
    taken = [
        LeasedOperation(
            found.id, found.node_id, found.provider, OperationKind(found.kind), found.attempts, found.error_code, token
        )
        for found in rows
    ]
    return sorted(taken, key=lambda operation: operation.operation_id)


async def hold(connection: AsyncConnection, operation: LeasedOperation) -> bool:
    """Lock the operation for this transaction; False when it is not ours any more and nothing may be written.

    Lock order: take the job, run and node locks first.
    """
    row = provider_operations.c
    found = await connection.execute(
        select(row.id)
        .where(
            row.id == operation.operation_id,
            row.state == OperationState.PENDING,
            row.lease_token == operation.lease_token,
        )
        .with_for_update()
    )
    return found.scalar_one_or_none() is not None


async def renew(connection: AsyncConnection, operation: LeasedOperation, *, lease_s: float) -> bool:
    """Keep the lease for another `lease_s`; False when it is not ours any more."""
    row = provider_operations.c
    renewed = await connection.execute(
        update(provider_operations)
        .where(
            row.id == operation.operation_id,
            row.state == OperationState.PENDING,
            row.lease_token == operation.lease_token,
        )
        .values(lease_until=database_now_plus(lease_s))
    )
    return bool(renewed.rowcount)


async def note_call(connection: AsyncConnection, operation: LeasedOperation, error_code: str) -> None:
    """Keep what would be true if this process died now."""
    await connection.execute(
        update(provider_operations)
        .where(provider_operations.c.id == operation.operation_id)
        .values(error_code=error_code)
    )


async def end_operation(
    connection: AsyncConnection,
    operation: LeasedOperation,
    state: OperationState,
    *,
    now_ms: int,
    error_code: str | None = None,
    error_message: str | None = None,
) -> None:
    """It is over. Call `hold` first."""
    await connection.execute(
        update(provider_operations)
        .where(provider_operations.c.id == operation.operation_id)
        .values(
            state=state,
            ended_ms=now_ms,
            error_code=error_code,
            error_message=error_message,
            lease_token=None,
            lease_until=None,
        )
    )


async def postpone(
    connection: AsyncConnection,
    operation: LeasedOperation,
    *,
    not_before_ms: int,
    error_code: str | None,
    error_message: str | None,
) -> None:
    """Try again from `not_before_ms` on; the lease is given up. Call `hold` first."""
    await connection.execute(
        update(provider_operations)
        .where(provider_operations.c.id == operation.operation_id)
        .values(
            not_before_ms=not_before_ms,
            error_code=error_code,
            error_message=error_message,
            lease_token=None,
            lease_until=None,
        )
    )


async def supersede_create(connection: AsyncConnection, node_id: str, *, now_ms: int) -> bool:
    """Take back the open create operation of a node that is to end. False while a worker may be inside the call."""
    row = provider_operations.c
    open_create = (row.node_id == node_id, row.kind == OperationKind.CREATE, row.state == OperationState.PENDING)
    found = (
        await connection.execute(
            select(row.id, (row.lease_until >= func.clock_timestamp()).label("held"))
            .where(*open_create)
            .with_for_update()
        )
    ).one_or_none()
    if found is None:
        return True
    if found.held:
        return False
    await connection.execute(
        update(provider_operations)
        .where(row.id == found.id)
        .values(
            state=OperationState.FAILED,
            ended_ms=now_ms,
            error_code=func.coalesce(row.error_code, OutcomeUnknown.code),
            error_message="taken back: the node is to end",
            lease_token=None,
            lease_until=None,
        )
    )
    return True


async def next_due_ms(connection: AsyncConnection) -> int | None:
    """When the next operation that nobody holds is due; None when there is none."""
    row = provider_operations.c
    free = or_(row.lease_until.is_(None), row.lease_until < func.clock_timestamp())
    due: int | None = (
        await connection.execute(select(func.min(row.not_before_ms)).where(row.state == OperationState.PENDING, free))
    ).scalar_one()
    return due


async def create_had_no_effect(connection: AsyncConnection, node_id: str) -> bool:
    """Whether the node's last create operation ended in an answer that rules a machine out."""
    row = provider_operations.c
    last = (
        await connection.execute(
            select(row.state, row.error_code)
            .where(row.node_id == node_id, row.kind == OperationKind.CREATE)
            .order_by(row.id.desc())
            .limit(1)
        )
    ).one_or_none()
    if last is None or last.state != OperationState.FAILED:
        return False
    return last.error_code is not None and last.error_code != OutcomeUnknown.code
