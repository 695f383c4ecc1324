"""Jobs that stand by, whose GPUs are lent meanwhile, and what pools rebate for it

Revision: 0047, after 0046

An older release knows of no job that stands by: it begins it again on its machine as soon as it looks, beside whoever
its GPUs are lent to. End what stands by before going back (allpass standby end). It bills the full price from its first
reading on; rebates that were given stay.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    half = sa.text("500000")
    op.add_column("pools", sa.Column("rebate_parts", sa.Integer, nullable=False, server_default=half))
    op.create_table(
        "standbys",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("node_id", sa.Text, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("rebate_parts", sa.Integer, nullable=False),
        sa.Column("lose_steps", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("left_step", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("asked_ms", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("left_ms", sa.BigInteger, nullable=True),
        sa.Column("called_ms", sa.BigInteger, nullable=True),
        sa.Column("called_why", sa.Text, nullable=True),
        sa.Column("failures", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("over_why", sa.Text, nullable=True),
        sa.Column("back_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_why", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_standbys")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_standbys_project_id_projects")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_standbys_job_id_jobs")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_standbys_node_id_nodes")),
    )
    live = sa.text("ended_ms IS NULL")
    op.create_index("uq_standbys_open", "standbys", ["job_id"], unique=True, postgresql_where=live)
    op.create_index("ix_standbys_job_id", "standbys", ["job_id"])
    op.create_index("ix_standbys_node_id", "standbys", ["node_id"])
    over = sa.text("ended_ms IS NOT NULL")
    op.create_index("ix_standbys_ended_ms", "standbys", ["ended_ms"], postgresql_where=over)


def downgrade() -> None:
    op.drop_table("standbys")
    op.drop_column("pools", "rebate_parts")
