"""How a machine proves who it is: single-use join tokens

Revision: 0006, after 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "node_joins",
        sa.Column("node_id", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("token_sha256", sa.LargeBinary, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("superseded", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("nonce_sha256", sa.LargeBinary),
        sa.Column("joined_ms", sa.BigInteger),
        sa.Column("refusals", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("node_id", "attempt", name=op.f("pk_node_joins")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_node_joins_node_id_nodes")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_node_joins_token_sha256")),
        sa.CheckConstraint("(nonce_sha256 IS NULL) = (joined_ms IS NULL)", name=op.f("ck_node_joins_joined_whole")),
    )
    op.create_index(
        "ix_node_joins_joined",
        "node_joins",
        ["node_id"],
        unique=True,
        postgresql_where=sa.text("nonce_sha256 IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("node_joins")
