"""Which rows have changed, so that a decision reads no others

Revision: 0034, after 0033

Each transaction writes down the jobs, runs, nodes and merges that it has changed, by whatever release and whoever
writes them. Readers ask for what was written by transactions that they have not seen. What is older than all readers is
deleted; a reader that comes back later reads everything once.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

# `versioned`: decisions depend on it. The rest (progress, what was spent) is read with the next one.
_FUNCTION = """
CREATE FUNCTION note_changed_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO changed_rows (xid, of_table, row_id, versioned)
        VALUES (pg_current_xact_id()::text::bigint, TG_TABLE_NAME, NEW.id, NEW.row_version <> OLD.row_version);
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO changed_rows (xid, of_table, row_id, versioned)
        VALUES (pg_current_xact_id()::text::bigint, TG_TABLE_NAME, NEW.id, true);
    ELSE
        INSERT INTO changed_rows (xid, of_table, row_id, versioned)
        VALUES (pg_current_xact_id()::text::bigint, TG_TABLE_NAME, OLD.id, true);
    END IF;
    RETURN NULL;
END $$
"""
# What an allocation gives or takes changes the free GPUs of its node, and on which node its run is.
_OF_ALLOCATIONS = """
CREATE FUNCTION note_changed_allocation() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    one allocations%ROWTYPE;
BEGIN
    IF TG_OP = 'DELETE' THEN one := OLD; ELSE one := NEW; END IF;
    INSERT INTO changed_rows (xid, of_table, row_id, versioned) VALUES
        (pg_current_xact_id()::text::bigint, 'nodes', one.node_id, false),
        (pg_current_xact_id()::text::bigint, 'runs', one.run_id, false);
    RETURN NULL;
END $$
"""
_EVERY_WRITE = "AFTER INSERT OR UPDATE OR DELETE"
# Why a job waits is words for its owner: nobody decides by it, and it is written for many jobs at once.
_NOT_WORDS_ALONE = "WHEN (OLD.row_version <> NEW.row_version OR OLD.wait_reason IS NOT DISTINCT FROM NEW.wait_reason)"
_TRIGGERS = (
    ("note_change", "jobs", "AFTER INSERT OR DELETE", "", "note_changed_row"),
    ("note_update", "jobs", "AFTER UPDATE", _NOT_WORDS_ALONE, "note_changed_row"),
    ("note_change", "runs", _EVERY_WRITE, "", "note_changed_row"),
    ("note_change", "nodes", _EVERY_WRITE, "", "note_changed_row"),
    ("note_change", "merges", _EVERY_WRITE, "", "note_changed_row"),
    ("note_change", "allocations", _EVERY_WRITE, "", "note_changed_allocation"),
)


def upgrade() -> None:
    op.create_table(
        "changed_rows",
        sa.Column("xid", sa.BigInteger, nullable=False),
        sa.Column("of_table", sa.Text, nullable=False),
        sa.Column("row_id", sa.Text, nullable=False),
        sa.Column("versioned", sa.Boolean, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")),
    )
    op.create_index("ix_changed_rows_xid", "changed_rows", ["xid"])
    op.execute(_FUNCTION)
    op.execute(_OF_ALLOCATIONS)
    for name, table, when, which, function in _TRIGGERS:
        op.execute(f"CREATE TRIGGER {name} {when} ON {table} FOR EACH ROW {which} EXECUTE FUNCTION {function}()")


def downgrade() -> None:
    for name, table, _when, _which, _function in _TRIGGERS:
        op.execute(f"DROP TRIGGER {name} ON {table}")
    op.execute("DROP FUNCTION note_changed_row()")
    op.execute("DROP FUNCTION note_changed_allocation()")
    op.drop_table("changed_rows")
