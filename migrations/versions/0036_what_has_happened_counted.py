"""What has happened is counted for monitoring, and what machines cost is added up by tier

Revision: 0036, after 0035

A number that monitoring asks for every few seconds must not take longer with each job that is over. Counts are written
by the leader, a while after what they count; beside a past they begin now, so that nobody has to read all of it. The
sums of the ledger are exact, and so begin with its first line: a trigger adds to them, whatever release writes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_SERIES = ("start_latency", "move_pause", "decision_time", "dropped_actions", "jobs_ended", "moves_ended", "operations")
# By key, so that of two transactions that add to the same sums the one waits for the other.
_ADD = """
    INSERT INTO tier_spending (project_id, tier, provider, amount_micros)
    SELECT l.project_id, coalesce(n.tier, ''), coalesce(n.provider, ''), sum({sign}l.amount_micros::numeric)
    FROM {lines} l LEFT JOIN nodes n ON n.id = l.node_id
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (project_id, tier, provider)
    DO UPDATE SET amount_micros = tier_spending.amount_micros + excluded.amount_micros;
"""
_FUNCTION = f"""
CREATE FUNCTION add_to_tier_spending() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN{_ADD.format(lines="removed", sign="-")}
    END IF;
    IF TG_OP <> 'DELETE' THEN{_ADD.format(lines="added", sign="")}
    END IF;
    RETURN NULL;
END $$
"""
_SEEN = {
    "insert": "NEW TABLE AS added",
    "update": "OLD TABLE AS removed NEW TABLE AS added",
    "delete": "OLD TABLE AS removed",
}
# What each machine has cost is on its row as well: there are fewer of these than lines.
_SO_FAR = """
    INSERT INTO tier_spending (project_id, tier, provider, amount_micros)
    SELECT project_id, tier, provider, sum(metered_micros::numeric) FROM nodes WHERE metered_micros > 0 GROUP BY 1, 2, 3
"""
_FROM_NOW_ON = """
    INSERT INTO counts_until (series, until_ms)
    SELECT unnest(CAST(:series AS text[])), (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    WHERE EXISTS (SELECT FROM jobs)
"""


def upgrade() -> None:
    _make_tables()
    op.execute(sa.text(_FROM_NOW_ON).bindparams(sa.bindparam("series", list(_SERIES), type_=ARRAY(sa.Text))))
    op.execute(_FUNCTION)
    for event, seen in _SEEN.items():  # before the sums so far: from now on nobody adds a line until they are there
        op.execute(
            f"CREATE TRIGGER tier_spending_{event} AFTER {event} ON ledger REFERENCING {seen} "
            "FOR EACH STATEMENT EXECUTE FUNCTION add_to_tier_spending()"
        )
    op.execute(_SO_FAR)
    op.add_column("moves", sa.Column("measured_ms", sa.BigInteger))
    for name in ("measured_ms", "ended_ms"):
        op.create_index(f"ix_moves_{name}", "moves", [name], postgresql_where=sa.text(f"{name} IS NOT NULL"))


def _make_tables() -> None:
    op.create_table(
        "counts",
        sa.Column("series", sa.Text, nullable=False),
        sa.Column("labels", ARRAY(sa.Text), nullable=False),
        sa.Column("le_s", sa.Double, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("total_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("series", "labels", "le_s", name=op.f("pk_counts")),
    )
    op.create_table(
        "counts_until",
        sa.Column("series", sa.Text, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("series", name=op.f("pk_counts_until")),
    )
    op.create_table(
        "tier_spending",
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("tier", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("amount_micros", sa.Numeric, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "tier", "provider", name=op.f("pk_tier_spending")),
    )


def downgrade() -> None:
    for event in _SEEN:
        op.execute(f"DROP TRIGGER tier_spending_{event} ON ledger")
    op.execute("DROP FUNCTION add_to_tier_spending()")
    for name in ("measured_ms", "ended_ms"):
        op.drop_index(f"ix_moves_{name}", table_name="moves")
    op.drop_column("moves", "measured_ms")
    op.drop_table("tier_spending")
    op.drop_table("counts_until")
    op.drop_table("counts")
