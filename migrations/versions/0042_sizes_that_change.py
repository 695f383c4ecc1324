"""How many GPUs a run is to use, and what its training says of them

Revision: 0042, after 0041

An older release neither reads nor writes them: a run that was to change goes on with the GPUs that it holds.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("wanted_gpus", sa.Integer, nullable=True))
    op.add_column("runs", sa.Column("gpus_told", postgresql.JSONB, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "gpus_told")
    op.drop_column("runs", "wanted_gpus")
