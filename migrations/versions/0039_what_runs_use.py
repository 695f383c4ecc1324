"""What runs use of their machines: processor, memory and GPUs, by instant

Revision: 0039, after 0038

An older release neither reads nor writes it, and its agents send nothing of the kind.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "system_samples",
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("values", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "at_ms", name=op.f("pk_system_samples")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_system_samples_job_id_jobs")),
    )


def downgrade() -> None:
    op.drop_table("system_samples")
