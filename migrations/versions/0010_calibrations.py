"""Measured memory and step times

Revision: 0010, after 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TO_LEARN = sa.text("state = 'ended' AND facts IS NOT NULL AND NOT learned")
_STEP_KEY = (
    ("model", sa.Text),
    ("gpu_type", sa.Text),
    ("gpus", sa.Integer),
    ("micro_batch", sa.BigInteger),
    ("accumulation", sa.BigInteger),
    ("sequence", sa.BigInteger),
    ("method", sa.Text),
    ("frozen_layers", sa.Integer),
    ("precision", sa.Text),
    ("checkpointing", sa.Boolean),
    ("parallelism", sa.Text),
)
_CALIBRATION_KEY = ("family", "method", "kernel", "gpu_type", "versions")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("memory_retries", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("plan", sa.Text))
    op.add_column("jobs", sa.Column("predicted_step_ms", sa.Double))
    op.add_column("runs", sa.Column("facts", sa.dialects.postgresql.JSONB))
    op.add_column("runs", sa.Column("learned", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.create_index("ix_runs_to_learn", "runs", ["id"], postgresql_where=_TO_LEARN)
    op.create_table(
        "step_times",
        sa.Column("project_id", sa.Text, nullable=False),
        *(sa.Column(name, kind, nullable=False) for name, kind in _STEP_KEY),
        sa.Column("step_ms", sa.Double, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("roofline_ms", sa.Double),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project_id", *(name for name, _ in _STEP_KEY), name=op.f("pk_step_times")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_step_times_project_id_projects")),
    )
    op.create_table(
        "calibrations",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _CALIBRATION_KEY),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("log_ratio", sa.Double, nullable=False),
        sa.Column("fragmentation", sa.Double, nullable=False),
        sa.Column("overhead_bytes", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calibrations")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_calibrations_project_id_projects")),
        sa.UniqueConstraint("project_id", *_CALIBRATION_KEY, name=op.f("uq_calibrations_kind")),
    )


def downgrade() -> None:
    op.drop_table("calibrations")
    op.drop_table("step_times")
    op.drop_index("ix_runs_to_learn", "runs")
    op.drop_column("runs", "learned")
    op.drop_column("runs", "facts")
    op.drop_column("jobs", "predicted_step_ms")
    op.drop_column("jobs", "plan")
    op.drop_column("jobs", "memory_retries")
