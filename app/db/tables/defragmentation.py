"""The tables of defragmentations: what was planned, and how far it has come."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from app.db.tables.base import ID, MICROS, MS, metadata

# One that was asked for, or begun by schedule. Of those that are open there is one for each goal.
defragmentations = Table(
    "defragmentations",
    metadata,
    Column("id", ID, primary_key=True),
    Column("goal", Text, nullable=False),
    Column("pool", Text),  # NULL: all
    Column("begun_by", Text, nullable=False),  # `owner` or `schedule`
    Column("most_moves", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("asked_ms", MS, nullable=False),
    Column("planned_ms", MS),
    Column("cancelled_ms", MS),  # since when nothing more of it begins
    Column("ended_ms", MS),
    Column("found", JSONB, nullable=False, server_default=text("'{}'")),  # what the plan says beside its releases
    Column("end_message", Text),
    Index("uq_defragmentations_open", "goal", unique=True, postgresql_where=text("state IN ('asked','moving')")),
    Index("ix_defragmentations_ended_ms", "ended_ms", postgresql_where=text("ended_ms IS NOT NULL")),
)

# A node that is vacated; `app.core.defragmentation.deciding` has the steps. Without foreign keys to jobs and moves:
# they are of other wings, and may be gone.
node_releases = Table(
    "node_releases",
    metadata,
    Column(
        "defragmentation_id",
        ID,
        ForeignKey("defragmentations.id", ondelete="CASCADE"),
        primary_key=True,
        nullable=False,
    ),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("node_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("saved_micros", MICROS, nullable=False),
    Column("cost_micros", MICROS, nullable=False),
    Column("pause_ms", MS, nullable=False),  # expected of its moves, each times its GPUs
    Column("steps", JSONB, nullable=False),  # {"steps": [...]}
    Column("for_job_id", Text),  # a job on several machines, which waits for this node and others
    Column("state", Text, nullable=False),
    Column("settled_ms", MS),  # when a step ended last
    Column("begun_ms", MS),  # when one began last: nobody new comes to the node for a while after that
    Column("ended_ms", MS),
    Column("end_message", Text),
)
