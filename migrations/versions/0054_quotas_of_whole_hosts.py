"""Quotas of whole hosts: reservations without an end, of so many GPUs at a time on one host

Revision: 0054, after 0053

An older release keeps them as reservations that end in the year 9999: nothing else of other projects begins on their
GPUs, and spot jobs leave them; replaced hosts are no whole ones then, and what others borrow there is not taken back.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reservations", sa.Column("piece_gpus", sa.Integer, nullable=True))


def downgrade() -> None:
    op.drop_column("reservations", "piece_gpus")
