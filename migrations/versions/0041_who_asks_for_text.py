"""The key that asks for a text, so that keys of a project share its machine

Revision: 0041, after 0040

An older release neither reads nor writes it: its requests count as one key's.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("completions", sa.Column("key_id", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("completions", "key_id")
