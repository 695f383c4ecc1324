"""The tables of decisions: who may take them, and what was seen and chosen."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, DateTime, Identity, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.db import tables, transfer_tables

metadata = transfer_tables.metadata  # complete once this module is loaded

ticks = Table(
    "ticks",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("at_ms", tables.MS, nullable=False),
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
    Column("seen_ms", tables.MS, nullable=False),  # by the first decision that saw it
)

leader_leases = Table(
    "leader_leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)
