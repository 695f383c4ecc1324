"""The tables of who may decide, what was seen and chosen, and what fails apart from the rest."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Identity, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.db.tables.base import MS, metadata

ticks = Table(
    "ticks",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("at_ms", MS, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("trigger", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("policy_state", JSONB, nullable=False),  # after it
    Column("observed", JSONB),  # as releases before migration 0016 wrote it; `recorded` since then
    Column("plan", JSONB, nullable=False),  # without why jobs wait, which `recorded` has
    Column("recorded", LargeBinary),  # app.core.recording
    Column("base_id", BigInteger),  # the tick whose record is whole; NULL: its own is
    Column("offers_sha256", Text),  # what was on offer: in tick_offers
    Column("size_bytes", BigInteger, nullable=False, server_default=text("0")),  # of what is recorded of it
    Column("named_ids", ARRAY(Text), nullable=False, server_default=text("'{}'")),  # the rows that its actions name
    Column("dropped", Integer, nullable=False),  # actions whose row versions had moved on
    Column("duration_ms", Integer, nullable=False),
    Index(None, "at_ms"),
    Index("ix_ticks_base_id", "base_id", postgresql_where=text("base_id IS NOT NULL")),
    Index("ix_ticks_size", "id", postgresql_include=["size_bytes"]),
    Index("ix_ticks_named_ids", "named_ids", postgresql_using="gin"),
)


# What was on offer at one decision or many, by the hash of its record.
tick_offers = Table(
    "tick_offers",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("recorded", LargeBinary, nullable=False),
    Column("seen_ms", MS, nullable=False),  # by the first decision that saw it
)


leader_leases = Table(
    "leader_leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)


# Written by the leader, so that every process tells the same; `app.core.model.health` has kinds and names.
part_health = Table(
    "part_health",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("failures", BigInteger, nullable=False, server_default=text("0")),  # ever
    Column("in_a_row", BigInteger, nullable=False, server_default=text("0")),
    Column("failing_since_ms", MS),  # NULL: it works
    Column("due_ms", MS),  # it will have finished once more by then, unless it hangs
)


# Rows on which something failed again and again: one that succeeds, or is over, is forgotten. Without foreign keys: a
# row of any table may fail.
item_failures = Table(
    "item_failures",
    metadata,
    Column("row_id", Text, primary_key=True),
    Column("what", Text, primary_key=True),
    Column("in_a_row", Integer, nullable=False),
    Column("first_ms", MS, nullable=False),
    Column("last_ms", MS, nullable=False),
    Column("not_before_ms", MS, nullable=False, server_default=text("0")),  # of the next try
)


# Jobs, runs, nodes and merges that a transaction has changed: written by triggers, read by those who decide, and
# deleted when all have read it.
changed_rows = Table(
    "changed_rows",
    metadata,
    Column("xid", BigInteger, nullable=False),  # of the transaction: PostgreSQL's own number
    Column("of_table", Text, nullable=False),
    Column("row_id", Text, nullable=False),
    Column("versioned", Boolean, nullable=False),  # decisions depend on it; else it is read with the next one
    Column("at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Index(None, "xid"),
)
