"""Spot jobs leave for guaranteed ones: what is kept for whom, and how often a job had to leave

Revision: 0043, after 0042

An older release neither reads nor writes them: a run that was asked to leave saves and leaves as any other, and what is
free then is anybody's.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("evictions", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("eviction_saves", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("set_aside_place", sa.Text, nullable=True))
    op.add_column("jobs", sa.Column("set_aside_gpus", sa.Integer, nullable=True))
    op.add_column("jobs", sa.Column("set_aside_until_ms", sa.BigInteger, nullable=True))
    waits = sa.text("set_aside_until_ms IS NOT NULL AND state IN ('queued','waiting')")
    op.create_index("ix_jobs_set_aside", "jobs", ["id"], postgresql_where=waits)
    op.add_column("runs", sa.Column("evicted_for_job_id", sa.Text, nullable=True))
    named = sa.text("evicted_for_job_id IS NOT NULL")
    op.create_index("ix_runs_evicted_for", "runs", ["evicted_for_job_id"], postgresql_where=named)
    none = sa.text("'{}'")
    op.add_column("pools", sa.Column("quotas", postgresql.JSONB, nullable=False, server_default=none))


def downgrade() -> None:
    op.drop_column("pools", "quotas")
    op.drop_index("ix_runs_evicted_for", "runs")
    op.drop_column("runs", "evicted_for_job_id")
    op.drop_index("ix_jobs_set_aside", "jobs")
    op.drop_column("jobs", "set_aside_until_ms")
    op.drop_column("jobs", "set_aside_gpus")
    op.drop_column("jobs", "set_aside_place")
    op.drop_column("jobs", "eviction_saves")
    op.drop_column("jobs", "evictions")
