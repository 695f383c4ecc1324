"""The tables of machines, how they were asked for, and their hosts."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.db.tables.base import ID, MICROS, MS, metadata

nodes = Table(
    "nodes",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("provider", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("provider_ref", Text),
    Column("offer", JSONB, nullable=False),  # app.core.model.offer.Offer as it was agreed
    Column("gpu_type", Text, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("gpu_memory_bytes", BigInteger, nullable=False),
    Column("cpus", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("region", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("switch", Text, nullable=False, server_default=text("''")),
    Column("image", Text, nullable=False),
    Column("lendable_window", JSONB),
    Column("eviction_history", JSONB, nullable=False, server_default=text("'[]'")),
    Column("price_micros_per_hour", MICROS, nullable=False),
    Column("billing_unit_ms", MS, nullable=False),
    Column("billing_starts", Text, nullable=False),
    Column("billing_minimum_ms", MS, nullable=False),
    Column("state", Text, nullable=False),
    Column("end_message", Text),
    Column("token_sha256", LargeBinary, unique=True),  # the agent's identity; NULL once the node is gone
    Column("rented_for_job_id", ID),
    Column("desired_version", BigInteger, nullable=False, server_default=text("1")),  # of what its agent should do
    Column("requested_ms", MS, nullable=False),
    Column("expected_ready_ms", MS, nullable=False),
    Column("startup_deadline_ms", MS, nullable=False),
    Column("ready_ms", MS),
    Column("idle_since_ms", MS),
    Column("unreachable_since_ms", MS),
    Column("missing_since_ms", MS),  # from the provider's listing
    Column("lost_ms", MS),  # when it failed; NULL: it has not, or its provider went down as a whole
    Column("ends_ms", MS),  # when the machine ends by itself: its lifetime is limited, or its lease is
    Column("drained_ms", MS),  # since when its owner wants it empty by then; NULL: nobody does
    Column(
        "orphan", Boolean, nullable=False, server_default=text("false")
    ),  # a machine of nobody, taken in to be ended
    Column("ended_ms", MS),
    Column("billed_from_ms", MS),  # the provider's own times
    Column("billed_to_ms", MS),
    Column("metered_until_ms", MS),
    Column("metered_micros", MICROS, nullable=False, server_default=text("0")),
    Column("spot_carried", Integer, nullable=False, server_default=text("0")),  # of a micro-dollar, in millionths
    Column("meter_closed", Boolean, nullable=False, server_default=text("false")),
    Column("event_position", BigInteger, nullable=False, server_default=text("0")),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    Index("ix_nodes_not_gone", "id", postgresql_where=text("state NOT IN ('terminated','failed')")),
    Index("ix_nodes_ended_ms", "ended_ms", postgresql_where=text("ended_ms IS NOT NULL")),
    Index("ix_nodes_unmetered", "id", postgresql_where=text("NOT meter_closed")),
    Index(None, "rented_for_job_id"),
    Index("ix_nodes_provider_ref", "provider_ref", postgresql_where=text("provider_ref IS NOT NULL")),
    # One machine belongs to one node that is not gone.
    Index(
        "uq_nodes_machine",
        "provider",
        "provider_ref",
        unique=True,
        postgresql_where=text("provider_ref IS NOT NULL AND state NOT IN ('terminated','failed')"),
    ),
)


node_events = Table(
    "node_events",
    metadata,
    Column("node_id", ID, ForeignKey("nodes.id"), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("at_ms", MS, nullable=False),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("data", JSONB, nullable=False, server_default=text("'{}'")),
)


# What the machine of each create call proves itself with, once. `nonce_sha256` is of the machine that did.
node_joins = Table(
    "node_joins",
    metadata,
    Column("node_id", ID, ForeignKey("nodes.id"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("token_sha256", LargeBinary, nullable=False, unique=True),
    Column("expires_ms", MS, nullable=False),  # for its first use
    Column("superseded", Boolean, nullable=False, server_default=text("false")),  # a later call's machine is the node's
    Column("nonce_sha256", LargeBinary),
    Column("joined_ms", MS),
    Column("refusals", Integer, nullable=False, server_default=text("0")),
    CheckConstraint("(nonce_sha256 IS NULL) = (joined_ms IS NULL)", name="joined_whole"),
    # One machine for each node, whatever happens.
    Index("ix_node_joins_joined", "node_id", unique=True, postgresql_where=text("nonce_sha256 IS NOT NULL")),
)


# Apart from nodes: written every few seconds, and a heartbeat must never make a planned action stale.
node_heartbeats = Table(
    "node_heartbeats",
    metadata,
    Column("node_id", ID, ForeignKey("nodes.id"), primary_key=True),
    Column("at_ms", MS, nullable=False),
    Column("report", JSONB, nullable=False),
)


provider_operations = Table(
    "provider_operations",
    metadata,
    Column("id", ID, primary_key=True),
    Column("node_id", ID, ForeignKey("nodes.id"), nullable=False),
    Column("project_id", ID, nullable=False, server_default=text("''")),  # of the node; '': not told
    Column("provider", Text, nullable=False),
    Column("kind", Text, nullable=False),  # create | terminate
    Column("state", Text, nullable=False),  # pending | done | failed
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("not_before_ms", MS, nullable=False),
    Column("lease_token", Text),
    Column("lease_until", DateTime(timezone=True)),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("created_ms", MS, nullable=False),
    Column("ended_ms", MS),
    Index("ix_provider_operations_ended_ms", "ended_ms", postgresql_where=text("ended_ms IS NOT NULL")),
    Index("ix_provider_operations_pending", "not_before_ms", postgresql_where=text("state = 'pending'")),
    Index(
        "ix_provider_operations_leased",
        "project_id",
        postgresql_where=text("state = 'pending' AND lease_until IS NOT NULL"),
    ),
    Index(
        "ix_provider_operations_turns",
        "project_id",
        "not_before_ms",
        "id",
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "uq_provider_operations_open",
        "node_id",
        "kind",
        unique=True,
        postgresql_where=text("state = 'pending'"),
    ),
)


# Machines that came to nothing, by the host that was to run them; `machine` is the provider's reference.
host_failures = Table(
    "host_failures",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("host", Text, primary_key=True),
    Column("machine", Text, primary_key=True),
    Column("at_ms", MS, nullable=False),
)
