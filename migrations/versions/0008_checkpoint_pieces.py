"""Checkpoints in content-addressed pieces

Revision: 0008, after 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# What keeps content from being collected, looked up by its hash.
_REFERENCES = (("artifacts", "sha256"), ("log_chunks", "sha256"), ("app_versions", "bundle_sha256"))


def upgrade() -> None:
    op.create_table(
        "checkpoint_pieces",
        sa.Column("checkpoint_id", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("start_byte", sa.BigInteger(), nullable=False),
        sa.Column("length_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id", "path"],
            ["checkpoint_files.checkpoint_id", "checkpoint_files.path"],
            name="fk_checkpoint_pieces_checkpoint_files",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("checkpoint_id", "path", "position", name=op.f("pk_checkpoint_pieces")),
    )
    # A file of a checkpoint that is there already is one piece of its own.
    op.execute(
        "INSERT INTO checkpoint_pieces (checkpoint_id, path, position, sha256, size_bytes, start_byte, length_bytes) "
        "SELECT checkpoint_id, path, 0, sha256, size_bytes, 0, size_bytes FROM checkpoint_files"
    )
    op.create_index(op.f("ix_checkpoint_pieces_sha256"), "checkpoint_pieces", ["sha256"])
    op.drop_index(op.f("ix_checkpoint_files_sha256"), table_name="checkpoint_files")
    op.drop_column("checkpoint_files", "sha256")
    op.create_table(
        "condemned_objects",
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("condemned_ms", sa.BigInteger(), nullable=False),
        sa.Column("leased_until_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "sha256", name=op.f("pk_condemned_objects")),
    )
    op.add_column("checkpoints", sa.Column("stored_bytes", sa.BigInteger()))
    op.add_column("checkpoints", sa.Column("kept_ms", sa.BigInteger()))
    op.add_column("runs", sa.Column("resumed_checkpoint_id", sa.Text()))
    op.add_column("jobs", sa.Column("from_checkpoint_id", sa.Text()))
    op.create_index(
        "ix_jobs_from_checkpoint_id",
        "jobs",
        ["from_checkpoint_id"],
        postgresql_where=sa.text("from_checkpoint_id IS NOT NULL"),
    )
    for table, column in _REFERENCES:
        op.create_index(op.f(f"ix_{table}_{column}"), table, [column])


def downgrade() -> None:
    """Files in several pieces have no place in the schema before: their checkpoints are lost to it, and given up."""
    for table, column in reversed(_REFERENCES):
        op.drop_index(op.f(f"ix_{table}_{column}"), table_name=table)
    op.drop_column("jobs", "from_checkpoint_id")
    op.drop_column("runs", "resumed_checkpoint_id")
    op.drop_column("checkpoints", "kept_ms")
    op.drop_column("checkpoints", "stored_bytes")
    op.drop_table("condemned_objects")
    op.add_column("checkpoint_files", sa.Column("sha256", sa.Text()))
    op.execute(
        "UPDATE checkpoint_files f SET sha256 = p.sha256 FROM checkpoint_pieces p "
        "WHERE p.checkpoint_id = f.checkpoint_id AND p.path = f.path AND p.size_bytes = f.size_bytes"
    )
    op.execute("UPDATE checkpoints SET state = 'aborted' WHERE state IN ('pruned', 'damaged')")
    op.execute(
        "UPDATE checkpoints SET state = 'aborted' "
        "WHERE id IN (SELECT checkpoint_id FROM checkpoint_files WHERE sha256 IS NULL)"
    )
    op.execute(
        "UPDATE jobs SET (checkpoint_id, checkpoint_step) = (SELECT c.id, c.step FROM checkpoints c "
        "WHERE c.job_id = jobs.id AND c.state = 'committed' ORDER BY c.epoch DESC, c.step DESC, c.id DESC LIMIT 1) "
        "FROM checkpoints gone WHERE gone.id = jobs.checkpoint_id AND gone.state <> 'committed'"
    )
    op.execute("DELETE FROM checkpoint_files WHERE sha256 IS NULL")
    op.alter_column("checkpoint_files", "sha256", nullable=False)
    op.create_index(op.f("ix_checkpoint_files_sha256"), "checkpoint_files", ["sha256"])
    op.drop_table("checkpoint_pieces")
