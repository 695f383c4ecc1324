"""How long jobs run: what each has run so far, and what those of an app have taken

Revision: 0005, after 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("ran_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.create_table(
        "run_history",
        sa.Column("app_id", sa.Text, nullable=False),
        sa.Column("gpu_type", sa.Text, nullable=False),
        sa.Column("samples", sa.BigInteger, nullable=False),
        sa.Column("run_ms", sa.Double, nullable=False),
        sa.Column("step_ms", sa.Double),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("app_id", "gpu_type", name=op.f("pk_run_history")),
    )


def downgrade() -> None:
    op.drop_table("run_history")
    op.drop_column("jobs", "ran_ms")
