"""Alembic's entry: runs the migrations over asyncpg, each in a transaction of its own. `app.db.migrate` calls it."""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.db.tables import metadata

# Shorter than PostgreSQL's own look for deadlocks: of a migration and the service, it is the migration that gives way.
_LOCK_TIMEOUT_MS = 500


def run(connection: Connection) -> None:
    connection.execute(text(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}"))
    connection.execute(text("SET statement_timeout = 0"))
    connection.commit()
    context.configure(
        connection=connection, target_metadata=metadata, compare_server_default=False, transaction_per_migration=True
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_online() -> None:
    url = context.config.get_main_option("sqlalchemy.url")
    assert url is not None
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(run)
    finally:
        await engine.dispose()


asyncio.run(run_online())
