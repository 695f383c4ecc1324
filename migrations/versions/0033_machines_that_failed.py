"""When a machine failed, and the machines of the last days found by an index

Revision: 0033, after 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("lost_ms", sa.BigInteger))
    op.create_index("ix_nodes_ended_ms", "nodes", ["ended_ms"], postgresql_where=sa.text("ended_ms IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_nodes_ended_ms", table_name="nodes")
    op.drop_column("nodes", "lost_ms")
