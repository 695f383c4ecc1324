"""Jobs that answer for fine-tuned models, and what they are asked

Revision: 0038, after 0037

What was asked and answered is deleted as soon as it was delivered. An older release neither reads nor writes any of it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "model_servers",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("base_model", sa.Text, nullable=False),
        sa.Column("author", JSONB, nullable=False),
        sa.Column("job_id", sa.Text),
        sa.Column("instance", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_servers")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_model_servers_project_id_projects")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_model_servers_job_id_jobs")),
    )
    op.create_index(
        "uq_model_servers_open",
        "model_servers",
        ["project_id", "base_model"],
        unique=True,
        postgresql_where=sa.text("ended_ms IS NULL"),
    )
    op.create_table(
        "completions",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("server_id", sa.Text, nullable=False),
        sa.Column("adapter_of", sa.Text),
        sa.Column("body", JSONB, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("instance", sa.Text),
        sa.Column("prompt_tokens", sa.Integer),
        sa.Column("completion_tokens", sa.Integer),
        sa.Column("finish_reason", sa.Text),
        sa.Column("error", JSONB),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_completions")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_completions_project_id_projects")),
        sa.ForeignKeyConstraint(
            ["server_id"], ["model_servers.id"], name=op.f("fk_completions_server_id_model_servers")
        ),
    )
    op.create_index("ix_completions_server_id_state_id", "completions", ["server_id", "state", "id"])
    op.create_index("ix_completions_created_ms", "completions", ["created_ms"])
    op.create_table(
        "completion_pieces",
        sa.Column("completion_id", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("completion_id", "position", name=op.f("pk_completion_pieces")),
        sa.ForeignKeyConstraint(
            ["completion_id"],
            ["completions.id"],
            name=op.f("fk_completion_pieces_completion_id_completions"),
            ondelete="CASCADE",
        ),
    )


def downgrade() -> None:
    for table in ("completion_pieces", "completions", "model_servers"):
        op.drop_table(table)
