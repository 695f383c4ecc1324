"""How long a job waits to be started, and how often it is begun again after a failure of its own

Revision: 0026, after 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("max_wait_ms", sa.BigInteger))
    op.add_column("jobs", sa.Column("retries", sa.Integer))
    op.add_column("jobs", sa.Column("retried", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("failed_step", sa.BigInteger))


def downgrade() -> None:
    for name in ("failed_step", "retried", "retries", "max_wait_ms"):
        op.drop_column("jobs", name)
