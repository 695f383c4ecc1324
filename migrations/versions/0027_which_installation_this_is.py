"""Which installation this is, for the labels of its machines

Revision: 0027, after 0025
"""

from __future__ import annotations

import secrets
import time

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def upgrade() -> None:
    table = op.create_table(
        "installations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
    )
    new = "inst_" + "".join(secrets.choice(_DIGITS) for _ in range(20))
    op.bulk_insert(table, [{"id": new, "since_ms": time.time_ns() // 1_000_000}])


def downgrade() -> None:
    op.drop_table("installations")
