"""The migrations and the tables say the same."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, func, select
from sqlalchemy.ext.asyncio import create_async_engine

from app.db.engine import Database, as_asyncpg_url
from app.db.tables import jobs, metadata


async def test_a_migrated_database_has_exactly_the_tables_of_the_code(database_url: str) -> None:
    """Autogenerate finds nothing to add or drop after all migrations have run."""
    engine = create_async_engine(as_asyncpg_url(database_url))

    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()


async def test_a_fresh_database_is_empty(database: Database) -> None:
    """Each test starts from no rows."""
    async with database.transaction() as connection:
        assert (await connection.execute(select(func.count()).select_from(jobs))).scalar_one() == 0
