"""How fast the machines of a job on several reach the first one, and since when a node is being vacated

Revision: 0050, after 0049

An older release writes neither: nothing was measured then, and a node that it vacates is open to whoever comes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("network_bits_per_s", sa.BigInteger, nullable=True))
    op.add_column("node_releases", sa.Column("begun_ms", sa.BigInteger, nullable=True))


def downgrade() -> None:
    op.drop_column("node_releases", "begun_ms")
    op.drop_column("runs", "network_bits_per_s")
