"""Indexes for lists, usage and monitoring

Revision: 0003, after 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_jobs_project_id_state_id"), "jobs", ["project_id", "state", "id"])
    op.create_index(op.f("ix_jobs_project_id_app_id_id"), "jobs", ["project_id", "app_id", "id"])
    op.create_index(op.f("ix_jobs_project_id_submitted_ms"), "jobs", ["project_id", "submitted_ms"])
    op.create_index(
        "ix_jobs_labels", "jobs", ["labels"], postgresql_using="gin", postgresql_ops={"labels": "jsonb_path_ops"}
    )
    op.create_index(
        "ix_jobs_first_running_ms",
        "jobs",
        ["first_running_ms"],
        postgresql_where=sa.text("first_running_ms IS NOT NULL"),
    )
    op.create_index("ix_jobs_ended_ms", "jobs", ["ended_ms"], postgresql_where=sa.text("ended_ms IS NOT NULL"))
    op.create_index(
        "ix_provider_operations_ended_ms",
        "provider_operations",
        ["ended_ms"],
        postgresql_where=sa.text("ended_ms IS NOT NULL"),
    )
    op.create_index(op.f("ix_ledger_project_id_from_ms"), "ledger", ["project_id", "from_ms"])


def downgrade() -> None:
    op.drop_index(op.f("ix_ledger_project_id_from_ms"), table_name="ledger")
    op.drop_index("ix_provider_operations_ended_ms", table_name="provider_operations")
    op.drop_index("ix_jobs_ended_ms", table_name="jobs")
    op.drop_index("ix_jobs_first_running_ms", table_name="jobs")
    op.drop_index("ix_jobs_labels", table_name="jobs")
    op.drop_index(op.f("ix_jobs_project_id_submitted_ms"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_project_id_app_id_id"), table_name="jobs")
    op.drop_index(op.f("ix_jobs_project_id_state_id"), table_name="jobs")
