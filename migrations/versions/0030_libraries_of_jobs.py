"""The versions of libraries that a fine-tuning began with, for all its machines

Revision: 0030, after 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("libraries", postgresql.JSONB))


def downgrade() -> None:
    op.drop_column("jobs", "libraries")
