"""Decisions are recorded by what is different from the one before

Revision: 0016, after 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tick_offers",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("recorded", sa.LargeBinary, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False),
    )
    op.add_column("ticks", sa.Column("recorded", sa.LargeBinary))
    op.add_column("ticks", sa.Column("base_id", sa.BigInteger))
    op.add_column("ticks", sa.Column("offers_sha256", sa.Text))
    op.add_column("ticks", sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.add_column("ticks", sa.Column("named_ids", sa.ARRAY(sa.Text), nullable=False, server_default=sa.text("'{}'")))
    op.alter_column("ticks", "observed", nullable=True)  # an older release goes on writing it
    op.create_index("ix_ticks_base_id", "ticks", ["base_id"], postgresql_where=sa.text("base_id IS NOT NULL"))
    op.create_index("ix_ticks_size", "ticks", ["id"], postgresql_include=["size_bytes"])
    op.create_index("ix_ticks_named_ids", "ticks", ["named_ids"], postgresql_using="gin")


def downgrade() -> None:
    op.drop_index("ix_ticks_named_ids", "ticks")
    op.drop_index("ix_ticks_size", "ticks")
    op.drop_index("ix_ticks_base_id", "ticks")
    op.execute("UPDATE ticks SET observed = '{}' WHERE observed IS NULL")  # nothing of that release reads it
    op.alter_column("ticks", "observed", nullable=False)
    for column in ("named_ids", "size_bytes", "offers_sha256", "base_id", "recorded"):
        op.drop_column("ticks", column)
    op.drop_table("tick_offers")
