"""The tables of bytes on their way: the names of very many files, how far transfers have got, and what runs left."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Integer, LargeBinary, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from app.db import merge_tables, tables

metadata = merge_tables.metadata  # complete once this module is loaded

# The paths and sizes of a checkpoint of very many files, which has one row of `checkpoint_files` for all of them.
checkpoint_listings = Table(
    "checkpoint_listings",
    metadata,
    Column("checkpoint_id", tables.ID, ForeignKey("checkpoints.id"), primary_key=True),
    Column("file_count", Integer, nullable=False),
    Column("listing", LargeBinary, nullable=False),  # app.core.model.listing
)

# How far a run has got with bytes that nobody can go on without. One row per run: the newest.
transfers = Table(
    "transfers",
    metadata,
    Column("run_id", tables.ID, ForeignKey("runs.id"), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("done_bytes", BigInteger, nullable=False),  # as its agent says
    Column("total_bytes", BigInteger, nullable=False),
    Column("begun_ms", tables.MS, nullable=False),
    Column("begun_bytes", BigInteger, nullable=False),  # what was done when it was first heard of
    Column("grown_ms", tables.MS, nullable=False),  # when its agent last said that there is more
    Column("arrived_ms", tables.MS),  # when we last saw for ourselves that something came
)

# What a run left behind in its folders, beside its rows of `artifacts`, as its agent said last.
run_results = Table(
    "run_results",
    metadata,
    Column("job_id", tables.ID, ForeignKey("jobs.id"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("run_id", tables.ID, ForeignKey("runs.id"), nullable=False, index=True),
    Column("left_behind", JSONB, nullable=False),  # the largest: [{"path", "size_bytes", "files", "why"}]
    Column("left_files", BigInteger, nullable=False),
    Column("left_bytes", BigInteger, nullable=False),
    Column("final", Boolean, nullable=False),  # told when its processes were gone
    Column("told_ms", tables.MS, nullable=False),
)
