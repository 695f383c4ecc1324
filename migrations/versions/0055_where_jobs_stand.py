"""Where jobs stand that share machines with elastic ones, whether their kind was said, and speeds by number of GPUs

Revision: 0055, after 0054

An older release reads none of it. It lends without regard to queues; a job that it lets in has said nothing of its
kind, and is judged by what is known of it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("kind_said", sa.Boolean, nullable=False, server_default=sa.text("false")))
    op.create_table(
        "job_queues",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("source", sa.Integer, nullable=False),
        sa.Column("because", sa.Text, nullable=False),
        sa.Column("queue", sa.Integer, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("base_s", sa.Double, nullable=False),
        sa.Column("forgiven_gpu_s", sa.Double, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("counted", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_queues")),
    )
    op.create_index("ix_job_queues_not_counted", "job_queues", ["job_id"], postgresql_where=sa.text("NOT counted"))
    op.create_table(
        "queue_thresholds",
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("interactive_s", sa.Double, nullable=False),
        sa.Column("batch_s", sa.Double, nullable=False),
        sa.Column("interactive_sum_s", sa.Double, nullable=False),
        sa.Column("batch_sum_s", sa.Double, nullable=False),
        sa.Column("interactive_count", sa.BigInteger, nullable=False),
        sa.Column("batch_count", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_queue_thresholds")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_queue_thresholds_project_id_projects")),
    )
    op.create_table(
        "size_speeds",
        sa.Column("app_id", sa.Text, nullable=False),
        sa.Column("shape", sa.Text, nullable=False),
        sa.Column("gpu_type", sa.Text, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("steps_per_s", sa.Double, nullable=False),
        sa.Column("noise", sa.Double, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("app_id", "shape", "gpu_type", "gpus", name=op.f("pk_size_speeds")),
    )


def downgrade() -> None:
    op.drop_table("size_speeds")
    op.drop_table("queue_thresholds")
    op.drop_table("job_queues")
    op.drop_column("jobs", "kind_said")
