"""Bring a database to the newest schema."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config

from app.db.engine import as_asyncpg_url

_MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


def upgrade(database_url: str, revision: str = "head") -> None:
    """Run all missing migrations. Blocking: call it before the event loop starts, or in a thread."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("sqlalchemy.url", as_asyncpg_url(database_url).replace("%", "%%"))
    command.upgrade(config, revision)
