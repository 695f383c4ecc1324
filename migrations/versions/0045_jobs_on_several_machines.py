"""Jobs on several machines: the runs of their members, and where these meet

Revision: 0045, after 0044

An older release knows no members: it lets them end, and the code of the run that leads them fails for want of them. End
such jobs before going back.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("member_of", sa.Text, nullable=True))
    op.add_column("runs", sa.Column("node_rank", sa.Integer, nullable=True))
    op.add_column("runs", sa.Column("prepared_ms", sa.BigInteger, nullable=True))
    op.add_column("runs", sa.Column("meeting", postgresql.JSONB, nullable=True))
    op.add_column("runs", sa.Column("exit_told", postgresql.JSONB, nullable=True))
    op.add_column("runs", sa.Column("exit_told_ms", sa.BigInteger, nullable=True))
    named = sa.text("member_of IS NOT NULL")
    op.create_index("ix_runs_member_of", "runs", ["member_of"], postgresql_where=named)
    failed = sa.text("exit_told IS NOT NULL AND state <> 'ended'")
    op.create_index("ix_runs_exit_told", "runs", ["id"], postgresql_where=failed)


def downgrade() -> None:
    op.drop_index("ix_runs_exit_told", "runs")
    op.drop_index("ix_runs_member_of", "runs")
    op.drop_column("runs", "exit_told_ms")
    op.drop_column("runs", "exit_told")
    op.drop_column("runs", "meeting")
    op.drop_column("runs", "prepared_ms")
    op.drop_column("runs", "node_rank")
    op.drop_column("runs", "member_of")
