"""What runs leave behind in their folders, and what of it is not kept

Revision: 0021, after 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_results",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("left_behind", postgresql.JSONB, nullable=False),
        sa.Column("left_files", sa.BigInteger, nullable=False),
        sa.Column("left_bytes", sa.BigInteger, nullable=False),
        sa.Column("final", sa.Boolean, nullable=False),
        sa.Column("told_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "epoch", name=op.f("pk_run_results")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_run_results_job_id_jobs")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_results_run_id_runs")),
    )
    op.create_index(op.f("ix_run_results_run_id"), "run_results", ["run_id"])


def downgrade() -> None:
    op.drop_table("run_results")
