"""Planned moves, step by step

Revision: 0009, after 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_OPEN = sa.text("state IN ('preparing','saving','promoting')")


def upgrade() -> None:
    op.create_table(
        "moves",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("source_run_id", sa.Text, nullable=False),
        sa.Column("target_run_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("begun_ms", sa.BigInteger, nullable=False),
        sa.Column("saving_ms", sa.BigInteger),
        sa.Column("promoted_ms", sa.BigInteger),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("step", sa.BigInteger),
        sa.Column("pause_ms", sa.BigInteger),
        sa.Column("end_message", sa.Text),
        sa.Column("not_before_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_moves")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_moves_job_id_jobs")),
        sa.ForeignKeyConstraint(["source_run_id"], ["runs.id"], name=op.f("fk_moves_source_run_id_runs")),
        sa.ForeignKeyConstraint(["target_run_id"], ["runs.id"], name=op.f("fk_moves_target_run_id_runs")),
        sa.UniqueConstraint("target_run_id", name=op.f("uq_moves_target_run_id")),
    )
    op.create_index(op.f("ix_moves_job_id"), "moves", ["job_id"])
    op.create_index("ix_moves_not_before_ms", "moves", ["not_before_ms"], postgresql_where=sa.text("not_before_ms > 0"))
    op.create_index("uq_moves_open", "moves", ["job_id"], unique=True, postgresql_where=_OPEN)


def downgrade() -> None:
    op.drop_table("moves")
