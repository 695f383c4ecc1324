"""The names that the owner of the installation has given to models, beside those that are known from the start."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import model_names


async def read_names(connection: AsyncConnection) -> dict[str, str | None]:
    """The model by name; None: that name is not to be known."""
    rows = await connection.execute(select(model_names.c.name, model_names.c.model).order_by(model_names.c.name))
    return {row.name: row.model for row in rows}


async def set_name(connection: AsyncConnection, name: str, model: str | None, *, now_ms: int) -> None:
    new = insert(model_names).values(name=name, model=model, updated_ms=now_ms)
    await connection.execute(
        new.on_conflict_do_update(index_elements=["name"], set_={"model": model, "updated_ms": now_ms})
    )


async def delete_name(connection: AsyncConnection, name: str) -> bool:
    """The name means again what it means from the start. False: the owner had said nothing of it."""
    return (await connection.execute(delete(model_names).where(model_names.c.name == name))).rowcount == 1
