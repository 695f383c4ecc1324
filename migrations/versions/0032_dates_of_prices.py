"""Price lists with their date, prices that an owner sets in their place, and prices asked for at once

Revision: 0032, after 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "own_prices",
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("micros_per_hour", sa.BigInteger, nullable=False),
        sa.Column("as_of", sa.Text, nullable=False),
        sa.Column("set_by", sa.Text, nullable=False),
        sa.Column("set_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("provider", "name", name=op.f("pk_own_prices")),
    )
    op.add_column("provider_states", sa.Column("price_list", postgresql.JSONB))
    op.add_column("provider_checks", sa.Column("prices", sa.Boolean, nullable=False, server_default=sa.text("false")))


def downgrade() -> None:
    op.drop_column("provider_checks", "prices")
    op.drop_column("provider_states", "price_list")
    op.drop_table("own_prices")
