"""The tables of what was used, and what may be spent."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from app.db.tables.base import ID, MICROS, MS, metadata

ledger = Table(
    "ledger",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("node_id", ID, ForeignKey("nodes.id"), nullable=False),
    Column("run_id", ID, ForeignKey("runs.id")),
    Column("job_id", ID, ForeignKey("jobs.id")),
    Column("payer", Text, nullable=False),  # run | boot | idle
    Column("from_ms", MS, nullable=False),
    Column("to_ms", MS, nullable=False),
    Column("amount_micros", MICROS, nullable=False),
    Column("discount_micros", MICROS, nullable=False, server_default=text("0")),  # what it is less for spot jobs
    CheckConstraint("amount_micros >= 0", name="amount_not_negative"),
    Index(None, "project_id", "from_ms"),
    Index(None, "to_ms"),
    Index(None, "job_id"),
    Index(None, "node_id"),
    ForeignKeyConstraint(["run_id", "job_id"], ["run_jobs.run_id", "run_jobs.job_id"], name="fk_ledger_run_jobs"),
)


budgets = Table(
    "budgets",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, nullable=False, server_default=text("''")),  # '': the whole installation
    Column("key_id", ID, nullable=False, server_default=text("''")),  # '': whoever submitted
    Column("provider", Text, nullable=False, server_default=text("''")),  # '': all
    Column("period", Text, nullable=False),  # app.core.model.budget.Period
    Column("amount_micros", MICROS, nullable=False),
    Column("set_by", ID, nullable=False),  # the API key
    Column("set_ms", MS, nullable=False),
    UniqueConstraint("project_id", "key_id", "provider", "period"),
)


# The sums of the ledger, by the period in which each line ends. Written by a trigger of that table alone (migration
# 0029), so that every release adds to them. `key_id` '': no job pays, or nobody knows who submitted it.
spending = Table(
    "spending",
    metadata,
    Column("period", Text, primary_key=True),
    Column("begins_ms", MS, primary_key=True),
    Column("project_id", ID, primary_key=True),
    Column("key_id", ID, primary_key=True),
    Column("provider", Text, primary_key=True),
    Column("amount_micros", Numeric, nullable=False),  # wider than any line, so that no sum is too large
)


# The sums of the ledger by the tier of its machines, over all time. Written by a trigger of the ledger alone (migration
# 0036), and by project, so that no transaction waits for another project's lines.
tier_spending = Table(
    "tier_spending",
    metadata,
    Column("project_id", ID, primary_key=True),
    Column("tier", Text, primary_key=True),
    Column("provider", Text, primary_key=True),
    Column("amount_micros", Numeric, nullable=False),
)


# What an owner settled of how much this installation rents, by name; without a row it is as for a first time.
limits = Table(
    "limits",
    metadata,
    Column("name", Text, primary_key=True),
    Column("amount", BigInteger),  # NULL: no limit
    Column("changed_ms", MS, nullable=False),
)
