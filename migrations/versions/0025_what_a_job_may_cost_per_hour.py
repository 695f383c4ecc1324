"""What the GPUs that a job gets may cost per hour

Revision: 0025, after 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("max_hourly_micros", sa.BigInteger))


def downgrade() -> None:
    op.drop_column("jobs", "max_hourly_micros")
