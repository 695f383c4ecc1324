"""The tables of what could be rented, and what is known of whom."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, DateTime, Index, Integer, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from app.db.tables.base import ID, MICROS, MS, metadata

offers = Table(
    "offers",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("offer_id", Text, primary_key=True),
    Column("tier", Text, nullable=False),
    Column("offer", JSONB, nullable=False),
    Column("price_micros_per_hour", MICROS, nullable=False),
    Column("seen_ms", MS, nullable=False),
)


# When the next call of a lane of a provider may be made, by the database's clock.
provider_paces = Table(
    "provider_paces",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("lane", Text, primary_key=True),
    Column("next_at", DateTime(timezone=True), nullable=False),
)


# What its calls came to. A provider that has left the settings keeps its row, not `configured`.
provider_states = Table(
    "provider_states",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("configured", Boolean, nullable=False),
    Column("last_success_ms", MS),
    Column("last_failure_ms", MS),
    Column("last_failure_call", Text),
    Column("last_failure_code", Text),
    Column("last_failure_message", Text),
    Column("refused_ms", MS),  # since when it refuses our credentials; a check that succeeds takes it away
    Column("refused_message", Text),
    Column("paused_until_ms", MS),
    Column("pause_reason", Text),
    Column("quota_errors", BigInteger, nullable=False, server_default=text("0")),
    Column("quota_errors_in_a_row", Integer, nullable=False, server_default=text("0")),
    Column("builds_images", Boolean, nullable=False, server_default=text("false")),
    Column("price_list", JSONB(none_as_null=True)),  # NULL: its prices come with every listing
)


# Images of which a provider builds a copy before it runs them. The words of `state` are those of `ImageState`.
image_builds = Table(
    "image_builds",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("image", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("since_ms", MS, nullable=False),
    Column("took_ms", MS),  # of the last one that was built
    Column("failures", Integer, nullable=False, server_default=text("0")),  # in a row
    Column("error_code", Text),
    Column("why", Text),
    Column("log", Text),  # the builder's last lines
    Column("again_ms", MS),  # of one that failed: when it is tried again; NULL: when somebody asks for it
    CheckConstraint("length(image) BETWEEN 1 AND 500", name="image_has_a_name"),
)


# Prices that an owner has set in place of those of a provider's list.
own_prices = Table(
    "own_prices",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("micros_per_hour", BigInteger, nullable=False),
    Column("as_of", Text, nullable=False),  # the day, as 2026-05-07
    Column("set_by", Text, nullable=False),
    Column("set_ms", MS, nullable=False),
)


provider_errors = Table(
    "provider_errors",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("call", Text, primary_key=True),
    Column("code", Text, primary_key=True),
    Column("count", BigInteger, nullable=False),
)


# Somebody wants to know whether a provider takes our credentials, or (`prices`) what it would rent now; a process that
# holds them answers, and of prices the leader.
provider_checks = Table(
    "provider_checks",
    metadata,
    Column("id", ID, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("requested_ms", MS, nullable=False),
    Column("deadline_ms", MS, nullable=False),
    Column("taken_ms", MS),
    Column("answered_ms", MS),
    Column("error_code", Text),  # of an answer: None says that the credentials are taken
    Column("message", Text),
    Column("machines", Integer),
    Column("offers", Integer),
    Column("prices", Boolean, nullable=False, server_default=text("false")),
    Index("ix_provider_checks_open", "requested_ms", postgresql_where=text("taken_ms IS NULL")),
)
