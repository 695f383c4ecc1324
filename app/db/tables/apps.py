"""The tables of apps and their versions."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, Table, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import ARRAY

from app.db.tables.base import ID, MS, metadata

apps = Table(
    "apps",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("version", Integer, nullable=False),  # the newest
    Column("created_ms", MS, nullable=False),
    UniqueConstraint("project_id", "name"),
)


app_versions = Table(
    "app_versions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("app_id", ID, ForeignKey("apps.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("base_image", Text),
    Column("pip", ARRAY(Text), nullable=False),
    Column("environment_sha256", Text, nullable=False),  # hash of the sorted pip set
    Column("bundle_sha256", Text, nullable=False, index=True),
    Column("bundle_size_bytes", BigInteger, nullable=False),
    Column("entrypoint", Text, nullable=False),
    Column("created_ms", MS, nullable=False),
    UniqueConstraint("app_id", "version"),
)
