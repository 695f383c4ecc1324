"""The tables of reservations: what a project keeps of a pool for a window, and which GPUs that were."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, Table, Text, text

from app.db.tables.base import ID, MS, metadata

reservations = Table(
    "reservations",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("pool", Text, nullable=False),
    Column("gpu_type", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("from_ms", MS, nullable=False),
    Column("until_ms", MS, nullable=False),
    Column("created_ms", MS, nullable=False),
    Column("short_gpus", Integer, nullable=False, server_default=text("0")),  # that the pool does not have now
    Column("blocked_gpus", Integer, nullable=False, server_default=text("0")),  # that others' guaranteed jobs have
    Column("ended_ms", MS),
    Column("ended_why", Text),
    Column("piece_gpus", Integer),  # of a quota of hosts: so many at a time on one host; NULL: of a window
    Index("ix_reservations_project_id", "project_id", "created_ms"),
    Index("ix_reservations_open", "from_ms", postgresql_where=text("ended_ms IS NULL")),
    Index("ix_reservations_pool_open", "pool", postgresql_where=text("ended_ms IS NULL")),
)

# A GPU of a host that is kept for a reservation, from when until when.
reserved_gpus = Table(
    "reserved_gpus",
    metadata,
    Column("reservation_id", ID, ForeignKey("reservations.id", ondelete="CASCADE"), primary_key=True),
    Column("host_id", Text, primary_key=True),
    Column("gpu_index", Integer, primary_key=True),
    Column("since_ms", MS, primary_key=True),
    Column("told_ms", MS),  # when those were told whose guaranteed jobs were there
    Column("until_ms", MS),
    Index("uq_reserved_gpus_kept", "host_id", "gpu_index", unique=True, postgresql_where=text("until_ms IS NULL")),
)
