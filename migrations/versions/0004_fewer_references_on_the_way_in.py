"""No reference that a submission checks twice

Revision: 0004, after 0003
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_DROPPED = (
    ("jobs", "project_id", "projects"),
    ("jobs", "app_id", "apps"),
    ("job_events", "job_id", "jobs"),
    ("idempotency_keys", "project_id", "projects"),
)


def upgrade() -> None:
    for table, column, parent in _DROPPED:
        op.drop_constraint(op.f(f"fk_{table}_{column}_{parent}"), table, type_="foreignkey")


def downgrade() -> None:
    for table, column, parent in reversed(_DROPPED):
        op.create_foreign_key(op.f(f"fk_{table}_{column}_{parent}"), table, parent, [column], ["id"])
