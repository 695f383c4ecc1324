"""Links that a job's code tells of, such as the one to its run in a tracker

Revision: 0024, after 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("links", postgresql.JSONB))


def downgrade() -> None:
    op.drop_column("jobs", "links")
