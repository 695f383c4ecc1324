"""Which jobs' code says that it saves when it is asked to

Revision: 0019, after 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("saves_ms", sa.BigInteger))


def downgrade() -> None:
    op.drop_column("jobs", "saves_ms")
