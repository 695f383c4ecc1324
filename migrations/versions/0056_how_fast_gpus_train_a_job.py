"""How long a job that states its training takes on other types of GPU

Revision: 0056, after 0055

An older release leaves it empty, and weighs GPUs by what an hour of them costs.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("gpu_speeds", JSONB))


def downgrade() -> None:
    op.drop_column("jobs", "gpu_speeds")
