"""The tables of what fails apart from the rest: parts of the control loop, and single rows."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, Table, Text, text

from app.db import budget_tables, tables

metadata = budget_tables.metadata  # complete once this module is loaded

# Written by the leader, so that every process tells the same; `app.core.model.health` has kinds and names.
part_health = Table(
    "part_health",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("failures", BigInteger, nullable=False, server_default=text("0")),  # ever
    Column("in_a_row", BigInteger, nullable=False, server_default=text("0")),
    Column("failing_since_ms", tables.MS),  # NULL: it works
    Column("due_ms", tables.MS),  # it will have finished once more by then, unless it hangs
)

# Rows on which something failed again and again: one that succeeds, or is over, is forgotten. Without foreign keys: a
# row of any table may fail.
item_failures = Table(
    "item_failures",
    metadata,
    Column("row_id", Text, primary_key=True),
    Column("what", Text, primary_key=True),
    Column("in_a_row", Integer, nullable=False),
    Column("first_ms", tables.MS, nullable=False),
    Column("last_ms", tables.MS, nullable=False),
    Column("not_before_ms", tables.MS, nullable=False, server_default=text("0")),  # of the next try
)
