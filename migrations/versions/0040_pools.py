"""Machines of a team's own: pools, the hosts that have joined them, and what runs on these

Revision: 0040, after 0039

An older release neither reads nor writes any of it; it takes nodes of such hosts for those of a provider that is not
configured, and leaves them alone.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("drained_ms", sa.BigInteger))
    op.create_table(
        "pools",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("launcher", sa.Text, nullable=False),
        sa.Column("price_micros", sa.BigInteger, nullable=False),
        sa.Column("preference", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("projects", sa.ARRAY(sa.Text), nullable=False, server_default=sa.text("'{}'")),
        sa.Column("hours", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("most_gpus", sa.Integer),
        sa.Column("labels", JSONB, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("drains_ms", sa.BigInteger),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pools")),
    )
    op.create_table(
        "pool_tokens",
        sa.Column("token_sha256", sa.LargeBinary, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("joins_left", sa.Integer, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_pool_tokens")),
        sa.ForeignKeyConstraint(["pool"], ["pools.name"], name=op.f("fk_pool_tokens_pool_pools"), ondelete="CASCADE"),
    )
    _hosts()
    _host_machines()


def _hosts() -> None:
    op.create_table(
        "hosts",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("nonce_sha256", sa.LargeBinary, nullable=False),
        sa.Column("token_sha256", sa.LargeBinary),
        sa.Column("boot_id", sa.Text, nullable=False),
        sa.Column("facts", JSONB, nullable=False),
        sa.Column("labels", JSONB, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("joined_ms", sa.BigInteger, nullable=False),
        sa.Column("heard_ms", sa.BigInteger, nullable=False),
        sa.Column("drains_ms", sa.BigInteger),
        sa.Column("leaves_ms", sa.BigInteger),
        sa.Column("left_ms", sa.BigInteger),
        sa.Column("desired_version", sa.Integer, nullable=False, server_default=sa.text("1")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hosts")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_hosts_token_sha256")),
        sa.ForeignKeyConstraint(["pool"], ["pools.name"], name=op.f("fk_hosts_pool_pools"), ondelete="CASCADE"),
    )
    op.create_index("ix_hosts_pool", "hosts", ["pool"])
    op.create_index(
        "uq_hosts_nonce", "hosts", ["pool", "nonce_sha256"], unique=True, postgresql_where=sa.text("left_ms IS NULL")
    )


def _host_machines() -> None:
    op.create_table(
        "host_machines",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("host_id", sa.Text, nullable=False),
        sa.Column("node_id", sa.Text, nullable=False),
        sa.Column("gpu_indices", sa.ARRAY(sa.Integer), nullable=False),
        sa.Column("price_micros_per_hour", sa.BigInteger, nullable=False),
        sa.Column("sealed_order", sa.LargeBinary),
        sa.Column("order_key_id", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger),
        sa.Column("ending_ms", sa.BigInteger),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("detail", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("log_tail", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_host_machines")),
        sa.ForeignKeyConstraint(
            ["host_id"], ["hosts.id"], name=op.f("fk_host_machines_host_id_hosts"), ondelete="CASCADE"
        ),
    )
    op.create_index("ix_host_machines_node_id", "host_machines", ["node_id"])
    op.create_index(
        "ix_host_machines_host_id_live", "host_machines", ["host_id"], postgresql_where=sa.text("ended_ms IS NULL")
    )
    op.create_index(
        "ix_host_machines_ended_ms",
        "host_machines",
        ["ended_ms"],
        postgresql_where=sa.text("ended_ms IS NOT NULL"),
    )


def downgrade() -> None:
    for table in ("host_machines", "hosts", "pool_tokens", "pools"):
        op.drop_table(table)
    op.drop_column("nodes", "drained_ms")
