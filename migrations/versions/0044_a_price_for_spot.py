"""Spot jobs pay a share of a pool's price: which, since when, and what it left of the bill; which class is a project's
default; how long jobs have to leave a pool

Revision: 0044, after 0043

What a machine has been metered for (`nodes.metered_micros`) stays what it costs at the full price. So an older release
goes on from there: it bills spot jobs the full price from its first reading on, and claims no discount back that was
given before. What it bills stays billed. New jobs that name no class are guaranteed there, whatever their project's
default is.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    full = sa.text("1000000")
    op.add_column("pools", sa.Column("spot_share_parts", sa.Integer, nullable=False, server_default=full))
    op.add_column("pools", sa.Column("grace_ms", sa.Integer, nullable=True))
    op.create_table(
        "pool_spot_shares",
        sa.Column("launcher", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("from_ms", sa.BigInteger, nullable=False),
        sa.Column("parts", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("launcher", "pool", "from_ms", name=op.f("pk_pool_spot_shares")),
    )
    none = sa.text("0")
    op.add_column("ledger", sa.Column("discount_micros", sa.BigInteger, nullable=False, server_default=none))
    op.add_column("nodes", sa.Column("spot_carried", sa.Integer, nullable=False, server_default=none))
    guaranteed = sa.text("'guaranteed'")
    op.add_column("projects", sa.Column("default_class", sa.Text, nullable=False, server_default=guaranteed))


def downgrade() -> None:
    op.drop_column("projects", "default_class")
    op.drop_column("nodes", "spot_carried")
    op.drop_column("ledger", "discount_micros")
    op.drop_table("pool_spot_shares")
    op.drop_column("pools", "grace_ms")
    op.drop_column("pools", "spot_share_parts")
