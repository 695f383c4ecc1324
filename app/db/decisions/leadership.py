"""Who leads: one lease row per name, held for a time by the database's own clock, with a term that only grows.

The term is the fence: whatever a leader writes is checked against it inside the same transaction, under a share
lock, so that no other process can become leader between the check and the commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningInsert

from app.db.clock import database_now_plus
from app.db.tables import leader_leases
from app.errors import Fenced

CONTROL = "control"  # the lease of who decides


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to lead under `term`. It has been granted; it may have ended since."""

    name: str
    holder: str
    term: int


async def take_over(connection: AsyncConnection, name: str, holder: str, *, lease_s: float) -> Lease:
    """Become leader with the next term, whoever leads: that one is fenced from now on. For who is about to end it."""
    statement = _next_term(name, holder, lease_s, only_when_over=False)
    return Lease(name, holder, (await connection.execute(statement)).scalar_one())


async def acquire(connection: AsyncConnection, name: str, holder: str, *, lease_s: float) -> Lease | None:
    """Become leader with the next term when nobody holds the lease; None when somebody does."""
    statement = _next_term(name, holder, lease_s, only_when_over=True)
    term = (await connection.execute(statement)).scalar_one_or_none()
    return None if term is None else Lease(name, holder, term)


async def renew(connection: AsyncConnection, lease: Lease, *, lease_s: float) -> bool:
    """Hold on for another `lease_s`. False when the lease has ended or passed to somebody else: it is over."""
    statement = (
        update(leader_leases)
        .where(_is_mine(lease), leader_leases.c.expires_at > func.clock_timestamp())
        .values(expires_at=database_now_plus(lease_s))
    )
    return (await connection.execute(statement)).rowcount == 1


async def release(connection: AsyncConnection, lease: Lease) -> None:
    """Let the next one lead at once. Harmless when the lease is not ours any more."""
    await connection.execute(update(leader_leases).where(_is_mine(lease)).values(expires_at=func.clock_timestamp()))


async def check_term(connection: AsyncConnection, lease: Lease) -> None:
    """Raise Fenced unless this lease still holds; until this transaction ends nobody else can take it."""
    statement = (
        select(leader_leases.c.term)
        .where(_is_mine(lease), leader_leases.c.expires_at > func.clock_timestamp())
        .with_for_update(read=True)
    )
    if (await connection.execute(statement)).scalar_one_or_none() is None:
        raise Fenced(f"the leader's term {lease.term} is over: another process decides now")


def _next_term(name: str, holder: str, lease_s: float, *, only_when_over: bool) -> ReturningInsert[Any]:
    fresh = insert(leader_leases).values(name=name, holder=holder, term=1, expires_at=database_now_plus(lease_s))
    return fresh.on_conflict_do_update(
        index_elements=[leader_leases.c.name],
        set_={
            "holder": fresh.excluded.holder,
            "term": leader_leases.c.term + 1,
            "expires_at": fresh.excluded.expires_at,
        },
        where=leader_leases.c.expires_at <= func.clock_timestamp() if only_when_over else None,
    ).returning(leader_leases.c.term)


def _is_mine(lease: Lease) -> ColumnElement[bool]:
    row = leader_leases.c
    return and_(row.name == lease.name, row.holder == lease.holder, row.term == lease.term)
