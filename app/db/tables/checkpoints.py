"""The tables of checkpoints, the content they are made of, and how far it has travelled."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.db.tables.base import ID, MS, metadata

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("job_id", ID, ForeignKey("jobs.id"), nullable=False),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("manifest_sha256", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger),  # of its pieces that were not in the store when it was opened
    Column("metrics", JSONB, nullable=False, server_default=text("'{}'")),
    Column("opened_ms", MS, nullable=False),
    Column("committed_ms", MS),
    Column("kept_ms", MS),  # when a job was last submitted that begins with it
    Index(None, "job_id", "step"),
)


checkpoint_files = Table(
    "checkpoint_files",
    metadata,
    Column("checkpoint_id", ID, ForeignKey("checkpoints.id"), primary_key=True),
    Column("path", Text, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
)


# What a file consists of, in order: `length_bytes` from `start_byte` on of a stored piece, which has `size_bytes`.
checkpoint_pieces = Table(
    "checkpoint_pieces",
    metadata,
    Column("checkpoint_id", ID, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("sha256", Text, nullable=False, index=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("start_byte", BigInteger, nullable=False),
    Column("length_bytes", BigInteger, nullable=False),
    ForeignKeyConstraint(
        ["checkpoint_id", "path"],
        ["checkpoint_files.checkpoint_id", "checkpoint_files.path"],
        name="fk_checkpoint_pieces_checkpoint_files",
        ondelete="CASCADE",
    ),
)


# Content that nothing refers to and that is being deleted. Until it is gone, nobody may begin to refer to it.
condemned_objects = Table(
    "condemned_objects",
    metadata,
    Column("project_id", ID, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("condemned_ms", MS, nullable=False),
    Column("leased_until_ms", MS, nullable=False, server_default=text("0")),  # to whoever deletes it
)


# What the object store holds for a project, once its bytes are verified there.
objects = Table(
    "objects",
    metadata,
    Column("project_id", ID, ForeignKey("projects.id"), primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("verified_ms", MS, nullable=False),
)


# The paths and sizes of a checkpoint of very many files, which has one row of `checkpoint_files` for all of them.
checkpoint_listings = Table(
    "checkpoint_listings",
    metadata,
    Column("checkpoint_id", ID, ForeignKey("checkpoints.id"), primary_key=True),
    Column("file_count", Integer, nullable=False),
    Column("listing", LargeBinary, nullable=False),  # app.core.model.listing
)


# What one machine of a job on several has written of a step, which is no checkpoint before all parts are stored.
checkpoint_parts = Table(
    "checkpoint_parts",
    metadata,
    Column("id", ID, primary_key=True),  # that of the first machine becomes the checkpoint's
    Column("project_id", ID, nullable=False),
    Column("job_id", ID, nullable=False),
    Column("lead_run_id", ID, nullable=False),
    Column("run_id", ID, nullable=False),
    Column("node_rank", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger),  # of its pieces that were not in the store when it was opened
    Column("files", LargeBinary, nullable=False),  # app.core.model.parts
    Column("listing", LargeBinary),
    Column("metrics", JSONB, nullable=False, server_default=text("'{}'")),
    Column("opened_ms", MS, nullable=False),
    Column("stored_ms", MS),  # when all of its pieces were seen in the store
    Column("whole_ms", MS),  # when it became part of a checkpoint
    Column("refused_why", Text),  # why it never will
    UniqueConstraint("lead_run_id", "node_rank", "step"),
)


# What parts consist of: it stays in the store until they are a checkpoint, or given up.
checkpoint_part_pieces = Table(
    "checkpoint_part_pieces",
    metadata,
    Column("part_id", ID, ForeignKey("checkpoint_parts.id", ondelete="CASCADE"), primary_key=True),
    Column("sha256", Text, primary_key=True, index=True),
    Column("size_bytes", BigInteger, nullable=False),
)


# How far a run has got with bytes that nobody can go on without. One row per run: the newest.
transfers = Table(
    "transfers",
    metadata,
    Column("run_id", ID, ForeignKey("runs.id"), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("done_bytes", BigInteger, nullable=False),  # as its agent says
    Column("total_bytes", BigInteger, nullable=False),
    Column("begun_ms", MS, nullable=False),
    Column("begun_bytes", BigInteger, nullable=False),  # what was done when it was first heard of
    Column("grown_ms", MS, nullable=False),  # when its agent last said that there is more
    Column("arrived_ms", MS),  # when we last saw for ourselves that something came
)
