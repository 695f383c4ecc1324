"""Requests to find out whether providers take our credentials, or what they would rent now, and their answers.

Whoever asks and whoever holds the credentials may be different processes: they meet in rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import any_, delete, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.arrays import is_one_of
from app.db.tables import provider_checks, provider_states


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """`prices`: what it would rent now is to be kept."""

    check_id: str
    provider: str
    prices: bool = False


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """`error_code` None: the credentials are taken; then so many machines and offers are listed."""

    error_code: str | None
    message: str
    machines: int | None = None
    offers: int | None = None


@dataclass(frozen=True, slots=True)
class CheckRow:
    """`answer` None: nobody has answered yet."""

    check_id: str
    provider: str
    requested_ms: int
    answered_ms: int | None
    answer: CheckAnswer | None


async def configured_providers(connection: AsyncConnection) -> list[str]:
    """Names of the providers that have credentials, as the control loop has last told."""
    row = provider_states.c
    return list((await connection.execute(select(row.provider).where(row.configured).order_by(row.provider))).scalars())


async def ask_for_check(
    connection: AsyncConnection, check_id: str, provider: str, *, now_ms: int, deadline_ms: int, prices: bool = False
) -> None:
    """Wanted from whoever holds this provider's credentials, before the deadline; `prices` from the leader."""
    row = {"id": check_id, "provider": provider, "requested_ms": now_ms, "deadline_ms": deadline_ms}
    await connection.execute(provider_checks.insert().values(**row, prices=prices))
    await notify.checks(connection)


async def take_checks(
    connection: AsyncConnection, providers: Collection[str], *, now_ms: int, leads: bool = True
) -> list[CheckRequest]:
    """Open requests that this process can answer, each given to one process only."""
    row = provider_checks.c
    can = (is_one_of(row.provider, providers), true() if leads else ~row.prices)
    wanted = (
        select(row.id)
        .where(row.taken_ms.is_(None), row.deadline_ms > now_ms, *can)
        .order_by(row.id)
        .with_for_update(skip_locked=True)
    )
    taken = (
        update(provider_checks)
        .where(row.id == any_(wanted.scalar_subquery()))
        .values(taken_ms=now_ms)
        .returning(row.id, row.provider, row.prices)
    )
    return sorted((CheckRequest(*one) for one in await connection.execute(taken)), key=lambda one: one.check_id)


async def answer_check(connection: AsyncConnection, check_id: str, answer: CheckAnswer, *, now_ms: int) -> None:
    """Whoever asked reads this."""
    await connection.execute(
        update(provider_checks)
        .where(provider_checks.c.id == check_id)
        .values(
            answered_ms=now_ms,
            error_code=answer.error_code,
            message=answer.message,
            machines=answer.machines,
            offers=answer.offers,
        )
    )
    await notify.checks(connection)


async def read_checks(connection: AsyncConnection, check_ids: Collection[str]) -> list[CheckRow]:
    """These requests, by provider."""
    row = provider_checks.c
    found = await connection.execute(select(provider_checks).where(is_one_of(row.id, check_ids)).order_by(row.provider))
    return [
        CheckRow(
            one.id,
            one.provider,
            one.requested_ms,
            one.answered_ms,
            None
            if one.answered_ms is None
            else CheckAnswer(one.error_code, one.message or "", one.machines, one.offers),
        )
        for one in found
    ]


async def delete_checks(connection: AsyncConnection, *, before_ms: int) -> None:
    """Delete requests from before that moment, answered or not."""
    await connection.execute(delete(provider_checks).where(provider_checks.c.requested_ms < before_ms))
