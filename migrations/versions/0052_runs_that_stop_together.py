"""Whether the processes of a job on several machines stop after the same step, as its code says

Revision: 0052, after 0051

An older release writes nothing and moves no such job.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("stops_together", sa.Boolean, nullable=False, server_default=sa.text("false")))


def downgrade() -> None:
    op.drop_column("runs", "stops_together")
