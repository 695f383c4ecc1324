"""Since when a run is to use so many GPUs, and that it keeps those that it has

Revision: 0049, after 0048

An older release reads neither. It goes on lending from a run that keeps its GPUs, and waits for it as before; what it
writes itself of a run's size has no time, and the time of the allocation counts then.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("wanted_ms", sa.BigInteger, nullable=True))
    op.add_column("runs", sa.Column("keeps_gpus_ms", sa.BigInteger, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "keeps_gpus_ms")
    op.drop_column("runs", "wanted_ms")
