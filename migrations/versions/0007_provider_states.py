"""What is known of every provider: states, paces, checks; when machines end, and orphans

Revision: 0007, after 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("ends_ms", sa.BigInteger))
    op.add_column("nodes", sa.Column("orphan", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.create_index(
        "ix_nodes_provider_ref", "nodes", ["provider_ref"], postgresql_where=sa.text("provider_ref IS NOT NULL")
    )
    op.create_index(
        "uq_nodes_machine",
        "nodes",
        ["provider", "provider_ref"],
        unique=True,
        postgresql_where=sa.text("provider_ref IS NOT NULL AND state NOT IN ('terminated','failed')"),
    )
    op.create_table(
        "provider_paces",
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("provider", "lane", name=op.f("pk_provider_paces")),
    )
    _create_states()
    _create_checks()


def downgrade() -> None:
    op.drop_table("provider_checks")
    op.drop_table("provider_errors")
    op.drop_table("provider_states")
    op.drop_table("provider_paces")
    op.drop_index("uq_nodes_machine", "nodes")
    op.drop_index("ix_nodes_provider_ref", "nodes")
    op.drop_column("nodes", "orphan")
    op.drop_column("nodes", "ends_ms")


def _create_states() -> None:
    op.create_table(
        "provider_states",
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("configured", sa.Boolean, nullable=False),
        sa.Column("last_success_ms", sa.BigInteger),
        sa.Column("last_failure_ms", sa.BigInteger),
        sa.Column("last_failure_call", sa.Text),
        sa.Column("last_failure_code", sa.Text),
        sa.Column("last_failure_message", sa.Text),
        sa.Column("refused_ms", sa.BigInteger),
        sa.Column("refused_message", sa.Text),
        sa.Column("paused_until_ms", sa.BigInteger),
        sa.Column("pause_reason", sa.Text),
        sa.Column("quota_errors", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("quota_errors_in_a_row", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("provider", name=op.f("pk_provider_states")),
    )
    op.create_table(
        "provider_errors",
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("call", sa.Text, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("provider", "call", "code", name=op.f("pk_provider_errors")),
    )


def _create_checks() -> None:
    op.create_table(
        "provider_checks",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("requested_ms", sa.BigInteger, nullable=False),
        sa.Column("deadline_ms", sa.BigInteger, nullable=False),
        sa.Column("taken_ms", sa.BigInteger),
        sa.Column("answered_ms", sa.BigInteger),
        sa.Column("error_code", sa.Text),
        sa.Column("message", sa.Text),
        sa.Column("machines", sa.Integer),
        sa.Column("offers", sa.Integer),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_provider_checks")),
    )
    op.create_index(
        "ix_provider_checks_open", "provider_checks", ["requested_ms"], postgresql_where=sa.text("taken_ms IS NULL")
    )
