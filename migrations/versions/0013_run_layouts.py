"""How a run is laid out on its GPUs

Revision: 0013, after 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("layout", JSONB))


def downgrade() -> None:
    op.drop_column("runs", "layout")
