"""Requests for text, and the answers to them, for as long as somebody waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.arrays import is_none_of
from app.db.tables import completion_pieces, completions

WAITING = "waiting"
TAKEN = "taken"
DONE = "done"
FAILED = "failed"
LEFT = "left"  # nobody waits for it any more


@dataclass(frozen=True, slots=True)
class Completion:
    """`instance`: the process that has taken it."""

    id: str
    project_id: str
    server_id: str
    adapter_of: str | None
    body: Mapping[str, Any]
    state: str
    instance: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    error: Mapping[str, Any] | None
    created_ms: int


_COLUMNS = tuple(completions.c[name] for name in Completion.__dataclass_fields__)


async def add_completion(
    connection: AsyncConnection,
    completion_id: str,
    project_id: str,
    server_id: str,
    adapter_of: str | None,
    body: Mapping[str, Any],
    *,
    key_id: str | None,
    now_ms: int,
) -> None:
    """A request, and a word to the server. `key_id`: of the key that asks."""
    values = {"id": completion_id, "project_id": project_id, "server_id": server_id, "adapter_of": adapter_of}
    values["key_id"] = key_id
    await connection.execute(completions.insert().values(**values, body=dict(body), state=WAITING, created_ms=now_ms))
    await notify.job(connection, server_id)


async def find_completion(connection: AsyncConnection, completion_id: str, *, lock: bool = False) -> Completion | None:
    statement = select(*_COLUMNS).where(completions.c.id == completion_id)
    row = (await connection.execute(statement.with_for_update() if lock else statement)).one_or_none()
    return None if row is None else Completion(*row)


async def take_completion(
    connection: AsyncConnection, server_id: str, instance: str, holding: Sequence[str] = ()
) -> Completion | None:
    """The next one for this process of a server, which is answering those in `holding`. What it has taken beside them
    never arrived there, and comes first. Of what waits, the oldest one of the key of which the fewest are being
    answered: a key that asks much waits for itself."""
    columns = completions.c
    mine = (columns.state == TAKEN) & (columns.instance == instance)
    lost = mine & is_none_of(columns.id, holding)
    others = completions.alias()
    answered = (
        select(func.count())
        .where(
            others.c.server_id == server_id,
            others.c.state == TAKEN,
            others.c.key_id.is_not_distinct_from(columns.key_id),
        )
        .scalar_subquery()
    )
    chosen = (
        select(columns.id)
        .where(columns.server_id == server_id, or_(columns.state == WAITING, lost))
        .order_by(columns.state == WAITING, answered, columns.id)
        .limit(1)
        .with_for_update(skip_locked=True, of=completions)
    )
    statement = (
        update(completions)
        .where(columns.id == chosen.scalar_subquery())
        .values(state=TAKEN, instance=instance)
        .returning(*_COLUMNS)
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else Completion(*row)


async def taken_by_others(connection: AsyncConnection, server_id: str, instance: str) -> list[Completion]:
    """What processes of this server took that are not there any more."""
    columns = completions.c
    statement = select(*_COLUMNS).where(
        columns.server_id == server_id, columns.state == TAKEN, columns.instance != instance
    )
    return [Completion(*row) for row in await connection.execute(statement.with_for_update())]


async def set_waiting(connection: AsyncConnection, completion_id: str) -> None:
    """It waits for its server again."""
    await connection.execute(
        update(completions).where(completions.c.id == completion_id).values(state=WAITING, instance=None)
    )


async def move_completion(connection: AsyncConnection, completion_id: str, server_id: str) -> bool:
    """It waits for another server. False: it does not wait any more."""
    waits = (completions.c.id == completion_id) & (completions.c.state == WAITING)
    moved = await connection.execute(update(completions).where(waits).values(server_id=server_id))
    if moved.rowcount:
        await notify.job(connection, server_id)
    return moved.rowcount == 1


async def add_piece(connection: AsyncConnection, completion_id: str, position: int, text: str) -> None:
    """More of the answer; adding the same piece again changes nothing."""
    new = insert(completion_pieces).values(completion_id=completion_id, position=position, text=text)
    await connection.execute(new.on_conflict_do_nothing())


async def change_completion(connection: AsyncConnection, completion_id: str, changes: Mapping[str, Any]) -> None:
    """And a word to whoever waits for it."""
    await connection.execute(update(completions).where(completions.c.id == completion_id).values(**changes))
    await notify.job(connection, completion_id)


async def pieces_after(connection: AsyncConnection, completion_id: str, after: int) -> Sequence[str]:
    """The text of its pieces from this position on, in order."""
    columns = completion_pieces.c
    mine = (columns.completion_id == completion_id) & (columns.position >= after)
    return list((await connection.execute(select(columns.text).where(mine).order_by(columns.position))).scalars())


async def delete_completion(connection: AsyncConnection, completion_id: str) -> None:
    """What was asked and answered is nobody's business once it was delivered."""
    await connection.execute(delete(completions).where(completions.c.id == completion_id))


async def delete_completions(connection: AsyncConnection, *, before_ms: int) -> int:
    """Those whose API process died before it could."""
    return (await connection.execute(delete(completions).where(completions.c.created_ms < before_ms))).rowcount
