"""Sessions: who is signed in with a browser

Revision: 0035, after 0034

An older release neither reads nor deletes them: its API knows keys alone.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("token_sha256", sa.LargeBinary, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("scopes", postgresql.ARRAY(sa.Text), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("used_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_sessions_token_sha256")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_sessions_project_id_projects")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_sessions_key_id_api_keys")),
    )
    op.create_index("ix_sessions_key_id_id", "sessions", ["key_id", "id"])
    op.create_index("ix_sessions_expires_ms", "sessions", ["expires_ms"])


def downgrade() -> None:
    op.drop_table("sessions")
