"""Whether a project has machines kept for jobs to come; whom a node was rented for, found by an index

Revision: 0023, after 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("projects", sa.Column("ahead", sa.Boolean, nullable=False, server_default=sa.text("true")))
    op.create_index("ix_nodes_rented_for_job_id", "nodes", ["rented_for_job_id"])


def downgrade() -> None:
    op.drop_index("ix_nodes_rented_for_job_id", "nodes")
    op.drop_column("projects", "ahead")
