"""The tables of what may be spent in a period, and of what has been.

No reference is checked: '' stands for what a budget does not ask for, and what was spent stays spent, whatever became
of the key.
"""

from __future__ import annotations

from sqlalchemy import Column, Numeric, Table, Text, UniqueConstraint, text

from app.db import provider_tables, tables

metadata = provider_tables.metadata  # complete once this module is loaded

budgets = Table(
    "budgets",
    metadata,
    Column("id", tables.ID, primary_key=True),
    Column("project_id", tables.ID, nullable=False, server_default=text("''")),  # '': the whole installation
    Column("key_id", tables.ID, nullable=False, server_default=text("''")),  # '': whoever submitted
    Column("provider", Text, nullable=False, server_default=text("''")),  # '': all
    Column("period", Text, nullable=False),  # app.core.model.budget.Period
    Column("amount_micros", tables.MICROS, nullable=False),
    Column("set_by", tables.ID, nullable=False),  # the API key
    Column("set_ms", tables.MS, nullable=False),
    UniqueConstraint("project_id", "key_id", "provider", "period"),
)

# The sums of the ledger, by the period in which each line ends. Written by a trigger of that table alone (migration
# 0029), so that every release adds to them. `key_id` '': no job pays, or nobody knows who submitted it.
spending = Table(
    "spending",
    metadata,
    Column("period", Text, primary_key=True),
    Column("begins_ms", tables.MS, primary_key=True),
    Column("project_id", tables.ID, primary_key=True),
    Column("key_id", tables.ID, primary_key=True),
    Column("provider", Text, primary_key=True),
    Column("amount_micros", Numeric, nullable=False),  # wider than any line, so that no sum is too large
)
