"""Builds of images at providers, and offers that failed in passing

Revision: 0031, after 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "image_builds",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("took_ms", sa.BigInteger()),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("error_code", sa.Text()),
        sa.Column("why", sa.Text()),
        sa.Column("log", sa.Text()),
        sa.Column("again_ms", sa.BigInteger()),
        sa.CheckConstraint("length(image) BETWEEN 1 AND 500", name=op.f("ck_image_builds_image_has_a_name")),
        sa.PrimaryKeyConstraint("provider", "image", name=op.f("pk_image_builds")),
    )
    op.add_column(
        "provider_states", sa.Column("builds_images", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column(
        "jobs",
        sa.Column("unreached_offers", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("jobs", "unreached_offers")
    op.drop_column("provider_states", "builds_images")
    op.drop_table("image_builds")
