"""How fast the machines of a job on several reach the first one

Revision: 0050, after 0047

An older release does not write it, and nothing rests on it: those that it begins have nothing there.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("network_bits_per_s", sa.BigInteger, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "network_bits_per_s")
