"""Defragmentations, and the nodes that they vacate

Revision: 0046, after 0045

An older release does not know them: moves that have begun end as any move does, and nothing more begins.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "defragmentations",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("goal", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=True),
        sa.Column("begun_by", sa.Text, nullable=False),
        sa.Column("most_moves", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("asked_ms", sa.BigInteger, nullable=False),
        sa.Column("planned_ms", sa.BigInteger, nullable=True),
        sa.Column("cancelled_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("found", postgresql.JSONB, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("end_message", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_defragmentations")),
    )
    is_open = sa.text("state IN ('asked','moving')")
    op.create_index("uq_defragmentations_open", "defragmentations", ["goal"], unique=True, postgresql_where=is_open)
    ended = sa.text("ended_ms IS NOT NULL")
    op.create_index("ix_defragmentations_ended_ms", "defragmentations", ["ended_ms"], postgresql_where=ended)
    op.create_table(
        "node_releases",
        sa.Column("defragmentation_id", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("node_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("saved_micros", sa.BigInteger, nullable=False),
        sa.Column("cost_micros", sa.BigInteger, nullable=False),
        sa.Column("pause_ms", sa.BigInteger, nullable=False),
        sa.Column("steps", postgresql.JSONB, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("settled_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("end_message", sa.Text, nullable=True),
        sa.ForeignKeyConstraint(
            ["defragmentation_id"],
            ["defragmentations.id"],
            name=op.f("fk_node_releases_defragmentation_id_defragmentations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("defragmentation_id", "position", name=op.f("pk_node_releases")),
    )


def downgrade() -> None:
    op.drop_table("node_releases")
    op.drop_table("defragmentations")
