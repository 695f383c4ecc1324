"""Secrets of projects, as they are stored: sealed. What is inside is known to `app.services` alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import delete, func, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import is_one_of
from app.db.tables import jobs, secrets

_UNFINISHED = text("jobs.state NOT IN ('succeeded', 'failed', 'cancelled')")  # in the words of the partial index


@dataclass(frozen=True, slots=True)
class SecretRow:
    """`used_by_jobs`: unfinished jobs that name it."""

    name: str
    created_ms: int
    changed_ms: int
    used_by_jobs: int


@dataclass(frozen=True, slots=True)
class SealedRow:
    name: str
    sealed: bytes
    seal_key_id: str


@dataclass(frozen=True, slots=True)
class OwnedRow:
    """A sealed value and whose it is."""

    project_id: str
    name: str
    sealed: bytes
    seal_key_id: str


async def set_secret(
    connection: AsyncConnection, project_id: str, name: str, sealed: bytes, seal_key_id: str, *, now_ms: int
) -> None:
    """Store it, in the place of an earlier one of this name."""
    statement = insert(secrets).values(
        project_id=project_id,
        name=name,
        sealed=sealed,
        seal_key_id=seal_key_id,
        created_ms=now_ms,
        changed_ms=now_ms,
    )
    new = statement.excluded
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=[secrets.c.project_id, secrets.c.name],
            set_={"sealed": new.sealed, "seal_key_id": new.seal_key_id, "changed_ms": new.changed_ms},
        )
    )


async def count_secrets(connection: AsyncConnection, project_id: str) -> int:
    """How many the project has."""
    statement = select(func.count()).select_from(secrets).where(secrets.c.project_id == project_id)
    counted: int = (await connection.execute(statement)).scalar_one()
    return counted


async def list_secrets(
    connection: AsyncConnection, project_id: str, *, after: str | None, limit: int
) -> list[SecretRow]:
    """By name, from the first one after `after` on."""
    wanted = select(secrets.c.name, secrets.c.created_ms, secrets.c.changed_ms).where(
        secrets.c.project_id == project_id
    )
    if after is not None:
        wanted = wanted.where(secrets.c.name > after)
    rows = (await connection.execute(wanted.order_by(secrets.c.name).limit(limit))).all()
    uses = await _uses(connection, project_id)
    return [SecretRow(row.name, row.created_ms, row.changed_ms, uses.get(row.name, 0)) for row in rows]


async def find_secret(connection: AsyncConnection, project_id: str, name: str) -> SecretRow | None:
    """The secret of this name, without its value."""
    row = (
        await connection.execute(
            select(secrets.c.name, secrets.c.created_ms, secrets.c.changed_ms).where(
                secrets.c.project_id == project_id, secrets.c.name == name
            )
        )
    ).one_or_none()
    if row is None:
        return None
    uses = await _uses(connection, project_id)
    return SecretRow(row.name, row.created_ms, row.changed_ms, uses.get(name, 0))


async def delete_secret(connection: AsyncConnection, project_id: str, name: str) -> bool:
    """False when there was none."""
    statement = delete(secrets).where(secrets.c.project_id == project_id, secrets.c.name == name)
    return (await connection.execute(statement)).rowcount == 1


async def known_names(connection: AsyncConnection, project_id: str, names: Collection[str]) -> set[str]:
    """Which of these the project has."""
    found = await connection.execute(
        select(secrets.c.name).where(secrets.c.project_id == project_id, is_one_of(secrets.c.name, names))
    )
    return set(found.scalars())


async def sealed_secrets(connection: AsyncConnection, project_id: str, names: Collection[str]) -> list[SealedRow]:
    """Those of these that the project has."""
    found = await connection.execute(
        select(secrets.c.name, secrets.c.sealed, secrets.c.seal_key_id)
        .where(secrets.c.project_id == project_id, is_one_of(secrets.c.name, names))
        .order_by(secrets.c.name)
    )
    return [SealedRow(row.name, bytes(row.sealed), row.seal_key_id) for row in found.all()]


async def lock_sealed_under(
    connection: AsyncConnection, key_ids: Collection[str], *, after: tuple[str, str], limit: int
) -> list[OwnedRow]:
    """Those sealed under one of these keys, by project and name, locked. One that somebody else holds is left out."""
    columns = secrets.c
    found = await connection.execute(
        select(columns.project_id, columns.name, columns.sealed, columns.seal_key_id)
        .where(is_one_of(columns.seal_key_id, key_ids), tuple_(columns.project_id, columns.name) > tuple_(*after))
        .order_by(columns.project_id, columns.name)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return [OwnedRow(row.project_id, row.name, bytes(row.sealed), row.seal_key_id) for row in found.all()]


async def replace_seal(
    connection: AsyncConnection, project_id: str, name: str, sealed: bytes, seal_key_id: str
) -> None:
    """The same value under another key: to its owner, nothing has changed."""
    await connection.execute(
        update(secrets)
        .where(secrets.c.project_id == project_id, secrets.c.name == name)
        .values(sealed=sealed, seal_key_id=seal_key_id)
    )


async def _uses(connection: AsyncConnection, project_id: str) -> dict[str, int]:
    """Unfinished jobs by the name of a secret that they need. Jobs from before there were secrets name none."""
    uses = (
        select(jobs.c.id, func.jsonb_array_elements_text(jobs.c.template["secrets"]).label("name"))
        .where(jobs.c.project_id == project_id, _UNFINISHED)
        .subquery()
    )
    rows = await connection.execute(select(uses.c.name, func.count(uses.c.id.distinct())).group_by(uses.c.name))
    return {str(name): int(count) for name, count in rows.all()}
