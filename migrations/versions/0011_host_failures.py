"""Hosts that failed, remembered by all processes

Revision: 0011, after 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "host_failures",
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("machine", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("provider", "host", "machine", name=op.f("pk_host_failures")),
    )


def downgrade() -> None:
    op.drop_table("host_failures")
