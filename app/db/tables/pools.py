"""The tables of machines of one's own: pools, the hosts that have joined them, and what runs on these."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.db.tables.base import ID, MICROS, MS, metadata

pools = Table(
    "pools",
    metadata,
    Column("name", Text, primary_key=True),
    Column("launcher", Text, nullable=False),
    Column("price_micros", MICROS, nullable=False),  # of a GPU and hour
    Column("preference", Integer, nullable=False, server_default=text("0")),
    Column("projects", ARRAY(Text), nullable=False, server_default=text("'{}'")),  # empty: all
    Column("hours", Text, nullable=False, server_default=text("''")),  # as they were written
    Column("most_gpus", Integer),
    Column("labels", JSONB, nullable=False, server_default=text("'{}'")),
    Column("drains_ms", MS),  # when what runs there has to be gone; NULL: it takes jobs
    Column("quotas", JSONB, nullable=False, server_default=text("'{}'")),  # by project: of how many GPUs it is sure
    # Of the price, what a job does not pay that stands by.
    Column("rebate_parts", Integer, nullable=False, server_default=text("500000")),
    Column("spot_share_parts", Integer, nullable=False, server_default=text("1000000")),  # of its price, in millionths
    Column("grace_ms", Integer),  # of jobs that leave for others; NULL: the service's
    Column("created_ms", MS, nullable=False),
)

# What spot jobs pay of a pool's price from an instant on. It outlives the pool: its last meters are read later.
pool_spot_shares = Table(
    "pool_spot_shares",
    metadata,
    Column("launcher", Text, primary_key=True),
    Column("pool", Text, primary_key=True),
    Column("from_ms", MS, primary_key=True),
    Column("parts", Integer, nullable=False),
)

# What a host shows to join a pool, so many times and so long.
pool_tokens = Table(
    "pool_tokens",
    metadata,
    Column("token_sha256", LargeBinary, primary_key=True),
    Column("pool", Text, ForeignKey("pools.name", ondelete="CASCADE"), nullable=False),
    Column("joins_left", Integer, nullable=False),
    Column("expires_ms", MS, nullable=False),
    Column("created_ms", MS, nullable=False),
)

hosts = Table(
    "hosts",
    metadata,
    Column("id", ID, primary_key=True),
    Column("pool", Text, ForeignKey("pools.name", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),  # as the host calls itself
    Column("nonce_sha256", LargeBinary, nullable=False),  # of the host that has joined: it alone may join again as this
    Column("token_sha256", LargeBinary, unique=True),  # NULL once it has left
    Column("boot_id", Text, nullable=False),
    Column("facts", JSONB, nullable=False),  # what it has, as it said last
    Column("labels", JSONB, nullable=False, server_default=text("'{}'")),
    Column("joined_ms", MS, nullable=False),
    Column("heard_ms", MS, nullable=False),
    Column("drains_ms", MS),  # when what runs there has to be gone; NULL: it takes jobs
    Column("leaves_ms", MS),  # the same, and it leaves its pool then
    Column("left_ms", MS),
    Column("desired_version", Integer, nullable=False, server_default=text("1")),
    Index("ix_hosts_pool", "pool"),
    Index("uq_hosts_nonce", "pool", "nonce_sha256", unique=True, postgresql_where=text("left_ms IS NULL")),
)

# What a node is on a host: a process of ours with some of its GPUs. `sealed_order`: what it is started with.
host_machines = Table(
    "host_machines",
    metadata,
    Column("id", ID, primary_key=True),
    Column("host_id", ID, ForeignKey("hosts.id", ondelete="CASCADE"), nullable=False),
    Column("node_id", Text, nullable=False),
    Column("gpu_indices", ARRAY(Integer), nullable=False),
    Column("price_micros_per_hour", MICROS, nullable=False),
    Column("sealed_order", LargeBinary),  # NULL once it is over
    Column("order_key_id", Text),
    Column("created_ms", MS, nullable=False),
    Column("started_ms", MS),
    Column("ending_ms", MS),  # since when it is to be over
    Column("ended_ms", MS),  # since when its host says that it is, or has gone itself
    Column("detail", Text, nullable=False, server_default=text("''")),
    Column("log_tail", Text, nullable=False, server_default=text("''")),
    Index("ix_host_machines_node_id", "node_id"),
    Index("ix_host_machines_host_id_live", "host_id", postgresql_where=text("ended_ms IS NULL")),
    Index("ix_host_machines_ended_ms", "ended_ms", postgresql_where=text("ended_ms IS NOT NULL")),
)
