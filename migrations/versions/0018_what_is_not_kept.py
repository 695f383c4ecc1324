"""Checkpoints that cannot be kept, how far transfers are, and checkpoints of many files

Revision: 0018, after 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("refused_ms", sa.BigInteger))
    op.add_column("jobs", sa.Column("refused_why", sa.Text))
    op.create_table(
        "transfers",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("done_bytes", sa.BigInteger, nullable=False),
        sa.Column("total_bytes", sa.BigInteger, nullable=False),
        sa.Column("begun_ms", sa.BigInteger, nullable=False),
        sa.Column("begun_bytes", sa.BigInteger, nullable=False),
        sa.Column("grown_ms", sa.BigInteger, nullable=False),
        sa.Column("arrived_ms", sa.BigInteger),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_transfers")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_transfers_run_id_runs")),
    )
    op.create_table(
        "checkpoint_listings",
        sa.Column("checkpoint_id", sa.Text, nullable=False),
        sa.Column("file_count", sa.Integer, nullable=False),
        sa.Column("listing", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("checkpoint_id", name=op.f("pk_checkpoint_listings")),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name=op.f("fk_checkpoint_listings_checkpoint_id_checkpoints")
        ),
    )


def downgrade() -> None:
    op.drop_table("checkpoint_listings")
    op.drop_table("transfers")
    op.drop_column("jobs", "refused_why")
    op.drop_column("jobs", "refused_ms")
