"""For which job on several machines a node is vacated

Revision: 0053, after 0052

An older release vacates nodes for nobody in particular, and leaves this as it is.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node_releases", sa.Column("for_job_id", sa.Text))


def downgrade() -> None:
    op.drop_column("node_releases", "for_job_id")
