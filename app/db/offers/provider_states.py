"""What is known of every provider: what its calls came to, and whether it rents to us now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.snapshot import ClosedProvider
from app.db import notify
from app.db.arrays import is_none_of
from app.db.tables import provider_errors, provider_states

# After a quota error nothing is rented for so long; each further one in a row doubles it.
FIRST_PAUSE_MS = 120_000
LONGEST_PAUSE_MS = 1_800_000


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed, in our words."""

    call: str
    code: str
    message: str
    at_ms: int


class Condition(StrEnum):
    """How a provider is doing."""

    OK = "ok"
    FAILING = "failing"  # its last call failed
    PAUSED = "paused"  # the account's limit was reached
    REFUSED = "refused"  # it does not take our credentials
    UNKNOWN = "unknown"  # nobody has asked it yet


@dataclass(frozen=True, slots=True)
class ProviderState:
    """`refused_ms`: since when our credentials are refused. `paused_until_ms`: nothing is rented before that."""

    provider: str
    configured: bool
    last_success_ms: int | None
    last_failure: Failure | None
    refused_ms: int | None
    refused_message: str | None
    paused_until_ms: int | None
    pause_reason: str | None
    quota_errors: int

    def is_failing(self) -> bool:
        """Whether its last call failed."""
        return self.last_failure is not None and self.last_failure.at_ms > (self.last_success_ms or 0)

    def is_paused(self, now_ms: int) -> bool:
        return self.paused_until_ms is not None and self.paused_until_ms > now_ms

    def condition(self, now_ms: int) -> Condition:
        """The worst that holds."""
        if self.refused_ms is not None:
            return Condition.REFUSED
        if self.is_paused(now_ms):
            return Condition.PAUSED
        if self.is_failing():
            return Condition.FAILING
        return Condition.UNKNOWN if self.last_success_ms is None else Condition.OK


@dataclass(frozen=True, slots=True)
class ErrorCount:
    provider: str
    call: str
    code: str
    count: int


async def set_configured(connection: AsyncConnection, names: Collection[str]) -> None:
    """These providers are in the settings, and no others. Writes what changed only."""
    row = provider_states.c
    for name in sorted(names):
        fresh = insert(provider_states).values(provider=name, configured=True)
        here = fresh.on_conflict_do_update(
            index_elements=[row.provider], set_={"configured": True}, where=~row.configured
        )
        await connection.execute(here)
    gone = update(provider_states).where(row.configured, is_none_of(row.provider, names))
    await connection.execute(gone.values(configured=False))


async def set_success(connection: AsyncConnection, provider: str, *, at_ms: int) -> None:
    """A call was answered as it should be. Says nothing of credentials that are refused: that takes a check."""
    await _put(connection, provider, last_success_ms=at_ms)


async def set_failure(connection: AsyncConnection, provider: str, failure: Failure) -> None:
    """Keep the newest failure."""
    await _put(
        connection,
        provider,
        last_failure_ms=failure.at_ms,
        last_failure_call=failure.call,
        last_failure_code=failure.code,
        last_failure_message=failure.message,
    )


async def add_errors(
    connection: AsyncConnection, provider: str, counts: Mapping[tuple[str, str], int], *, quota_errors: int = 0
) -> None:
    """Count errors by call and code."""
    for (call, code), count in sorted(counts.items()):
        fresh = insert(provider_errors).values(provider=provider, call=call, code=code, count=count)
        await connection.execute(
            fresh.on_conflict_do_update(
                index_elements=[provider_errors.c.provider, provider_errors.c.call, provider_errors.c.code],
                set_={"count": provider_errors.c.count + fresh.excluded.count},
            )
        )
    if quota_errors:
        await _put(connection, provider, quota_errors=provider_states.c.quota_errors + quota_errors)


async def refuse(connection: AsyncConnection, provider: str, message: str, *, now_ms: int) -> bool:
    """It refuses our credentials: rent nothing there. True when that is news."""
    row = provider_states.c
    fresh = insert(provider_states).values(
        provider=provider, configured=True, refused_ms=now_ms, refused_message=message
    )
    refused = fresh.on_conflict_do_update(
        index_elements=[row.provider],
        set_={"refused_ms": now_ms, "refused_message": message},
        where=row.refused_ms.is_(None),
    ).returning(row.provider)
    news = (await connection.execute(refused)).first() is not None
    if news:
        await notify.control(connection)
    return news


async def accept(connection: AsyncConnection, provider: str) -> bool:
    """A check has shown that it takes our credentials. True when they had been refused."""
    row = provider_states.c
    accepted = update(provider_states).where(row.provider == provider, row.refused_ms.is_not(None))
    news = (await connection.execute(accepted.values(refused_ms=None, refused_message=None))).rowcount > 0
    if news:
        await notify.control(connection)
    return news


async def pause(connection: AsyncConnection, provider: str, reason: str, *, now_ms: int) -> None:
    """The account's limit is reached: rent nothing there for a while, longer with each time in a row."""
    row = provider_states.c
    await _put(connection, provider)
    doubled = cast(FIRST_PAUSE_MS * func.power(2, func.least(row.quota_errors_in_a_row, 10)), BigInteger)
    await connection.execute(
        update(provider_states)
        .where(row.provider == provider, or_(row.paused_until_ms.is_(None), row.paused_until_ms <= now_ms))
        .values(
            paused_until_ms=now_ms + func.least(doubled, LONGEST_PAUSE_MS),
            pause_reason=reason,
            quota_errors_in_a_row=row.quota_errors_in_a_row + 1,
        )
    )
    await notify.control(connection)


async def rented(connection: AsyncConnection, provider: str, *, now_ms: int) -> None:
    """It has rented us a machine: the next pause is a short one again. A pause that lasts is not cut short."""
    row = provider_states.c
    over = (row.provider == provider, row.quota_errors_in_a_row > 0, row.paused_until_ms <= now_ms)
    await connection.execute(
        update(provider_states).where(*over).values(quota_errors_in_a_row=0, paused_until_ms=None, pause_reason=None)
    )


def rents_nothing(now_ms: int) -> ColumnElement[bool]:
    """Of a row: whether nothing is rented there now."""
    row = provider_states.c
    return row.refused_ms.is_not(None) | (func.coalesce(row.paused_until_ms, 0) > now_ms)


async def closed_providers(connection: AsyncConnection, *, now_ms: int) -> tuple[ClosedProvider, ...]:
    """Configured providers from which nothing is rented now, by name, each with the reason in words."""
    row = provider_states.c
    found = await connection.execute(
        select(provider_states).where(row.configured, rents_nothing(now_ms)).order_by(row.provider)
    )
    states = map(_state, found)
    return tuple(ClosedProvider(one.provider, why_closed(one, now_ms) or "") for one in states)


async def provider_states_now(connection: AsyncConnection) -> list[ProviderState]:
    """Every configured provider, by name."""
    row = provider_states.c
    found = await connection.execute(select(provider_states).where(row.configured).order_by(row.provider))
    return [_state(one) for one in found]


async def refused_providers(connection: AsyncConnection) -> list[str]:
    """Whose credentials are refused, by name."""
    row = provider_states.c
    found = await connection.execute(
        select(row.provider).where(row.refused_ms.is_not(None), row.configured).order_by(row.provider)
    )
    return list(found.scalars())


def why_closed(state: ProviderState, now_ms: int) -> str | None:
    """Why nothing is rented there now; None when something may be."""
    if state.refused_ms is not None:
        return (
            f"it refuses our credentials ({state.refused_message}); its machines are left alone, and renting goes on "
            "after `allpass providers check` succeeds"
        )
    return f"{state.pause_reason}; tried again later" if state.is_paused(now_ms) else None


def _state(row: Any) -> ProviderState:
    failure = None
    if row.last_failure_ms is not None:
        failure = Failure(row.last_failure_call, row.last_failure_code, row.last_failure_message, row.last_failure_ms)
    return ProviderState(
        provider=row.provider,
        configured=row.configured,
        last_success_ms=row.last_success_ms,
        last_failure=failure,
        refused_ms=row.refused_ms,
        refused_message=row.refused_message,
        paused_until_ms=row.paused_until_ms,
        pause_reason=row.pause_reason,
        quota_errors=row.quota_errors,
    )


async def _put(connection: AsyncConnection, provider: str, **columns: Any) -> None:
    """Write columns of the provider's row, which is made when it is missing."""
    there = insert(provider_states).values(provider=provider, configured=True)
    await connection.execute(there.on_conflict_do_nothing(index_elements=[provider_states.c.provider]))
    if columns:
        await connection.execute(
            update(provider_states).where(provider_states.c.provider == provider).values(**columns)
        )
