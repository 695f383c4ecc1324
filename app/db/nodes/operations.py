"""Provider operations: intended calls, written in the transaction that decided them, carried out under a lease.

`error_code` says what is known of the last call. It is set to `outcome_unknown` in the transaction before a create
call, so that a process that dies inside the call leaves the truth behind: look before any retry.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.clock import database_now_plus
from app.db.engine import Database
from app.db.tables import nodes, provider_operations
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


class Settlement(NamedTuple):
    """How an operation came out. With `state` PENDING it is to be tried again from `at_ms` on, else it ended then."""

    operation: LeasedOperation
    state: OperationState
    at_ms: int
    error_code: str | None = None
    error_message: str | None = None


async def add_operation(
    connection: AsyncConnection, operation_id: str, node_id: str, provider: str, kind: OperationKind, *, now_ms: int
) -> None:
    """Write the intent. A node has at most one open operation of a kind: a second one is the same intent."""
    statement = (
        insert(provider_operations)
        .values(
            id=operation_id,
            node_id=node_id,
            project_id=select(nodes.c.project_id).where(nodes.c.id == node_id).scalar_subquery(),
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


@dataclass(frozen=True, slots=True)
class ProviderShare:
    """Whose operations a claim takes: those of the providers named, or of all but them."""

    providers: tuple[str, ...] = ()
    all_but: bool = True


ALL = ProviderShare()


async def claim(
    database: Database, *, limit: int, lease_s: float, now_ms: int, share: ProviderShare = ALL
) -> list[LeasedOperation]:
    """Take up to `limit` due operations of `share` that nobody holds: projects in turn, of each the oldest first; other
    claimers pass by without waiting.

    What is under way for a project counts as a turn, so that whoever has many operations waiting does not hold up who
    has few. The leases are durable when it returns. What only a newer release
    knows how to carry out is left to it.
    """
    token = secrets.token_hex(16)
    async with database.driver() as connection:
        rows = await connection.fetch(_CLAIM, limit, token, lease_s, now_ms, list(share.providers), not share.all_but)
    taken = [LeasedOperation(row[0], row[1], row[2], OperationKind(row[3]), row[4], row[5], token) for row in rows]
    return sorted(taken, key=lambda operation: operation.operation_id)


# A kind that this release does not know is left to one that does.
# An array of ids is read by the primary key, and once: a sub-query in its place may be run again for each row. The
# projects are found by jumping from one to the next in the index: what one of them waits with costs the others nothing.
_CLAIM = """
    WITH RECURSIVE waiting AS (
        (SELECT project_id FROM provider_operations WHERE state = 'pending' ORDER BY project_id LIMIT 1)
        UNION ALL
        SELECT (
            SELECT project_id FROM provider_operations
            WHERE state = 'pending' AND project_id > waiting.project_id ORDER BY project_id LIMIT 1
        )
        FROM waiting WHERE waiting.project_id IS NOT NULL
    ), turns AS MATERIALIZED (
        SELECT due.id, due.not_before_ms, due.place + held.number AS turn
        FROM waiting
        CROSS JOIN LATERAL (
            SELECT count(*) AS number FROM provider_operations AS o
            WHERE o.state = 'pending' AND o.project_id = waiting.project_id AND o.lease_until >= clock_timestamp()
                AND (o.provider = ANY($5)) = $6
        ) AS held
        CROSS JOIN LATERAL (
            SELECT o.id, o.not_before_ms, row_number() OVER (ORDER BY o.not_before_ms, o.id) AS place
            FROM provider_operations AS o
            WHERE o.state = 'pending' AND o.project_id = waiting.project_id AND o.not_before_ms <= $4
                AND o.kind IN ('create', 'terminate') AND (o.provider = ANY($5)) = $6
                AND (o.lease_until IS NULL OR o.lease_until < clock_timestamp())
            ORDER BY o.not_before_ms, o.id
            LIMIT 2 * $1
        ) AS due
    )
    UPDATE provider_operations
    SET lease_token = $2, lease_until = clock_timestamp() + make_interval(secs => $3), attempts = attempts + 1
    WHERE id = ANY(ARRAY(
        SELECT o.id FROM turns JOIN provider_operations AS o ON o.id = turns.id
        WHERE o.id = ANY(ARRAY(SELECT id FROM turns)) AND o.state = 'pending' AND o.not_before_ms <= $4
            AND (o.lease_until IS NULL OR o.lease_until < clock_timestamp())
        ORDER BY turns.turn, turns.not_before_ms, turns.id
        LIMIT $1
        FOR UPDATE OF o SKIP LOCKED
    ))
    RETURNING id, node_id, provider, kind, attempts, error_code
"""


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


async def set_called(connection: AsyncConnection, operation: LeasedOperation, error_code: str) -> bool:
    """Keep what would be true if this process died now; False, with nothing kept, when it is not ours any more.

    Lock order, as for `settle`: take the job, run and node locks first.
    """
    row = provider_operations.c
    noted = await connection.execute(
        update(provider_operations)
        .where(
            row.id == operation.operation_id,
            row.state == OperationState.PENDING,
            row.lease_token == operation.lease_token,
        )
        .values(error_code=error_code)
    )
    return bool(noted.rowcount)


async def settle(connection: AsyncConnection, settlement: Settlement) -> bool:
    """Write how an operation came out and give up its lease; whether that counted.

    It does not when the operation is not ours any more: nothing is written of it, and nothing else may be either.
    """
    rows = await connection.exec_driver_sql(_SETTLE, tuple(_settle_arguments([settlement])))
    return rows.one_or_none() is not None


async def settle_together(database: Database, settlements: Sequence[Settlement]) -> list[bool]:
    """`settle` for several operations with which nothing else changes; for each, whether it counted.

    Durable when it returns.
    """
    ordered = sorted(settlements, key=lambda one: one.operation.operation_id)  # everybody locks rows in this order
    async with database.driver() as connection:
        rows = await connection.fetch(_SETTLE, *_settle_arguments(ordered))
    counted = {(row[0], row[1]) for row in rows}
    return [(one.operation.operation_id, one.operation.lease_token) in counted for one in settlements]


def _settle_arguments(settlements: Sequence[Settlement]) -> list[list[Any]]:
    return [
        [one.operation.operation_id for one in settlements],
        [one.operation.lease_token for one in settlements],
        [one.state.value for one in settlements],
        [one.at_ms for one in settlements],
        [one.error_code for one in settlements],
        [one.error_message for one in settlements],
    ]


_SETTLE = """
    UPDATE provider_operations AS o
    SET state = s.state,
        not_before_ms = CASE WHEN s.state = 'pending' THEN s.at_ms ELSE o.not_before_ms END,
        ended_ms = CASE WHEN s.state = 'pending' THEN NULL ELSE s.at_ms END,
        error_code = s.error_code,
        error_message = s.error_message,
        lease_token = NULL,
        lease_until = NULL
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[])
        AS s(id, lease_token, state, at_ms, error_code, error_message)
    WHERE o.id = s.id AND o.state = 'pending' AND o.lease_token = s.lease_token
    RETURNING o.id, s.lease_token
"""


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
