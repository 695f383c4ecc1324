"""Whether the jobs of an app have saved, or said that they would

Revision: 0020, after 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run_history", sa.Column("saves", sa.Boolean))


def downgrade() -> None:
    op.drop_column("run_history", "saves")
