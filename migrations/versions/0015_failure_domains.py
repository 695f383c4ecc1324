"""What fails apart from the rest: parts of the control loop, and single rows

Revision: 0015, after 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "part_health",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("in_a_row", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("failing_since_ms", sa.BigInteger),
        sa.Column("due_ms", sa.BigInteger),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_part_health")),
    )
    op.create_table(
        "item_failures",
        sa.Column("row_id", sa.Text, nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("in_a_row", sa.Integer, nullable=False),
        sa.Column("first_ms", sa.BigInteger, nullable=False),
        sa.Column("last_ms", sa.BigInteger, nullable=False),
        sa.Column("not_before_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("row_id", "what", name=op.f("pk_item_failures")),
    )


def downgrade() -> None:
    # What the release before does not know: to its users such a job is paused like any other.
    op.execute("UPDATE jobs SET pause_reason = 'user' WHERE pause_reason = 'internal_error'")
    op.drop_table("item_failures")
    op.drop_table("part_health")
