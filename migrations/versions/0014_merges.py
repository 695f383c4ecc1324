"""Merges: two jobs trained as one, what is known of tasks beforehand, runs that share a process

Revision: 0014, after 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_OPEN = sa.text("state = 'open'")


def upgrade() -> None:
    _merges()
    op.create_table(
        "profiles",
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("fisher", ARRAY(sa.Double), nullable=False),
        sa.Column("pull", ARRAY(sa.Double), nullable=False),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("made_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name=op.f("pk_profiles")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_profiles_project_id_projects")),
    )
    op.add_column("runs", sa.Column("purpose", sa.Text, nullable=False, server_default=sa.text("'train'")))
    op.add_column("runs", sa.Column("companion_of", sa.Text))
    op.create_foreign_key(op.f("fk_runs_companion_of_runs"), "runs", "runs", ["companion_of"], ["id"])
    op.create_index(
        "ix_runs_companion_of", "runs", ["companion_of"], postgresql_where=sa.text("companion_of IS NOT NULL")
    )
    op.drop_column("run_jobs", "share")
    op.drop_column("run_jobs", "role")
    op.add_column("run_jobs", sa.Column("tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.add_column("run_jobs", sa.Column("metered_tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")))
    op.add_column("jobs", sa.Column("profile_tries", sa.Integer, nullable=False, server_default=sa.text("0")))


def _merges() -> None:
    op.create_table(
        "merges",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("lead_job_id", sa.Text, nullable=False),
        sa.Column("companion_job_id", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("score", sa.Double, nullable=False),
        sa.Column("gain", sa.Double, nullable=False),
        sa.Column("fruitless_epochs", sa.Double, nullable=False, server_default=sa.text("0")),
        sa.Column("begun_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("end_message", sa.Text),
        sa.Column("checkpoint_id", sa.Text),
        sa.Column("seen_gain", sa.Double),
        sa.Column("learned", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("row_version", sa.BigInteger, nullable=False, server_default=sa.text("1")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_merges")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_merges_project_id_projects")),
        sa.ForeignKeyConstraint(["lead_job_id"], ["jobs.id"], name=op.f("fk_merges_lead_job_id_jobs")),
        sa.ForeignKeyConstraint(["companion_job_id"], ["jobs.id"], name=op.f("fk_merges_companion_job_id_jobs")),
    )
    for column in ("lead_job_id", "companion_job_id", "project_id", "checkpoint_id"):
        op.create_index(op.f(f"ix_merges_{column}"), "merges", [column])
    for side in ("lead", "companion"):
        op.create_index(f"uq_merges_open_{side}", "merges", [f"{side}_job_id"], unique=True, postgresql_where=_OPEN)


def downgrade() -> None:
    op.drop_column("jobs", "profile_tries")
    op.drop_column("run_jobs", "metered_tokens")
    op.drop_column("run_jobs", "tokens")
    op.add_column("run_jobs", sa.Column("role", sa.Text, nullable=False, server_default=sa.text("'only'")))
    op.add_column("run_jobs", sa.Column("share", sa.Numeric(9, 6), nullable=False, server_default=sa.text("1")))
    op.drop_column("runs", "companion_of")
    op.drop_column("runs", "purpose")
    op.drop_table("profiles")
    op.drop_table("merges")
