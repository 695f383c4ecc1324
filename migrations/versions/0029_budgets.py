"""Budgets, what counts against them, and which API key submitted a job

Revision: 0029, after 0028

What is spent is added up where a line of the ledger is written, by whatever release: a sum over the ledger would grow
with it. A line counts in the period in which it ends. Of the past, the present month is added up here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

# Moments beyond the calendar are read as its ends: a clock that is off must not keep the ledger from being written.
_MOMENT = "to_timestamp(least(greatest(greatest(l.from_ms, l.to_ms - 1), 0), 250000000000000) / 1000.0)"
# By key, so that of two transactions that add to the same sums the one waits for the other.
_ADD = f"""
    INSERT INTO spending (period, begins_ms, project_id, key_id, provider, amount_micros)
    SELECT p.period, (extract(epoch FROM date_trunc(p.period, {_MOMENT} AT TIME ZONE 'UTC')) * 1000)::bigint,
        l.project_id, {{key}}, coalesce(n.provider, ''), sum({{sign}}l.amount_micros::numeric)
    FROM {{lines}} l
    CROSS JOIN (VALUES ('hour'), ('day'), ('month')) AS p (period)
    LEFT JOIN nodes n ON n.id = l.node_id{{jobs}}
    {{which}}
    GROUP BY 1, 2, 3, 4, 5
    ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (period, begins_ms, project_id, key_id, provider)
    DO UPDATE SET amount_micros = spending.amount_micros + excluded.amount_micros;
"""  # noqa: S608 (built from constants of this module alone)
_WITH_KEYS = {"key": "coalesce(j.key_id, '')", "jobs": "\n    LEFT JOIN jobs j ON j.id = l.job_id", "which": ""}
_FUNCTION = f"""
CREATE FUNCTION add_to_spending() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN{_ADD.format(lines="removed", sign="-", **_WITH_KEYS)}
    END IF;
    IF TG_OP <> 'DELETE' THEN{_ADD.format(lines="added", sign="", **_WITH_KEYS)}
    END IF;
    RETURN NULL;
END $$
"""
_SEEN = {
    "insert": "NEW TABLE AS added",
    "update": "OLD TABLE AS removed NEW TABLE AS added",
    "delete": "OLD TABLE AS removed",
}


def upgrade() -> None:
    op.create_table(
        "budgets",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("key_id", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("provider", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("amount_micros", sa.BigInteger, nullable=False),
        sa.Column("set_by", sa.Text, nullable=False),
        sa.Column("set_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
        sa.UniqueConstraint(
            "project_id", "key_id", "provider", "period", name=op.f("uq_budgets_project_id_key_id_provider_period")
        ),
    )
    op.create_table(
        "spending",
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("begins_ms", sa.BigInteger, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("amount_micros", sa.Numeric, nullable=False),
        sa.PrimaryKeyConstraint("period", "begins_ms", "project_id", "key_id", "provider", name=op.f("pk_spending")),
    )
    op.execute(_FUNCTION)
    for event, seen in _SEEN.items():
        op.execute(
            f"CREATE TRIGGER spending_{event} AFTER {event} ON ledger REFERENCING {seen} "
            "FOR EACH STATEMENT EXECUTE FUNCTION add_to_spending()"
        )
    # From the month on that yesterday was in: the clock of the service may be another one.
    since = "extract(epoch FROM date_trunc('month', now() AT TIME ZONE 'UTC' - interval '1 day')) * 1000"
    op.execute(_ADD.format(lines="ledger", sign="", key="''", jobs="", which=f"WHERE l.to_ms > ({since})::bigint"))
    op.add_column("jobs", sa.Column("key_id", sa.Text))  # last: it keeps others from the table until all is done


def downgrade() -> None:
    for event in _SEEN:
        op.execute(f"DROP TRIGGER spending_{event} ON ledger")
    op.execute("DROP FUNCTION add_to_spending()")
    op.drop_column("jobs", "key_id")
    op.drop_table("spending")
    op.drop_table("budgets")
