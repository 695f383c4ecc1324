"""Parts of checkpoints, of which each machine of a job on several writes one

Revision: 0051, after 0050

An older release knows of no part, and its server takes none: what was open is never completed, and is written anew by
the next run. Its collector may delete pieces of open parts; a server of this release asks the store for all of them
before it puts them together.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checkpoint_parts",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("lead_run_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("node_rank", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=True),
        sa.Column("files", sa.LargeBinary, nullable=False),
        sa.Column("listing", sa.LargeBinary, nullable=True),
        sa.Column("metrics", JSONB, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("opened_ms", sa.BigInteger, nullable=False),
        sa.Column("stored_ms", sa.BigInteger, nullable=True),
        sa.Column("whole_ms", sa.BigInteger, nullable=True),
        sa.Column("refused_why", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoint_parts")),
        sa.UniqueConstraint(
            "lead_run_id", "node_rank", "step", name=op.f("uq_checkpoint_parts_lead_run_id_node_rank_step")
        ),
    )
    op.create_table(
        "checkpoint_part_pieces",
        sa.Column("part_id", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("part_id", "sha256", name=op.f("pk_checkpoint_part_pieces")),
        sa.ForeignKeyConstraint(
            ["part_id"],
            ["checkpoint_parts.id"],
            name=op.f("fk_checkpoint_part_pieces_part_id_checkpoint_parts"),
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_checkpoint_part_pieces_sha256", "checkpoint_part_pieces", ["sha256"])


def downgrade() -> None:
    op.drop_table("checkpoint_part_pieces")
    op.drop_table("checkpoint_parts")
