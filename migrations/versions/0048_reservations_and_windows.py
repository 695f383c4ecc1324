"""Reservations of GPUs in pools, and windows in which jobs stand by again and again

Revision: 0048, after 0047

An older release knows of neither: what was reserved is anybody's, and no window begins by itself. Both go on as they
are written with the next release; windows that were missed are not begun late.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _reservations()
    _reserved_gpus()
    _windows()


def _reservations() -> None:
    none = sa.text("0")
    op.create_table(
        "reservations",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("gpu_type", sa.Text, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("from_ms", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("short_gpus", sa.Integer, nullable=False, server_default=none),
        sa.Column("blocked_gpus", sa.Integer, nullable=False, server_default=none),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_why", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_reservations_project_id_projects")),
    )
    open_ = sa.text("ended_ms IS NULL")
    op.create_index("ix_reservations_project_id", "reservations", ["project_id", "created_ms"])
    op.create_index("ix_reservations_open", "reservations", ["from_ms"], postgresql_where=open_)
    op.create_index("ix_reservations_pool_open", "reservations", ["pool"], postgresql_where=open_)


def _reserved_gpus() -> None:
    op.create_table(
        "reserved_gpus",
        sa.Column("reservation_id", sa.Text, nullable=False),
        sa.Column("host_id", sa.Text, nullable=False),
        sa.Column("gpu_index", sa.Integer, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("told_ms", sa.BigInteger, nullable=True),
        sa.Column("until_ms", sa.BigInteger, nullable=True),
        sa.PrimaryKeyConstraint("reservation_id", "host_id", "gpu_index", "since_ms", name=op.f("pk_reserved_gpus")),
        sa.ForeignKeyConstraint(
            ["reservation_id"],
            ["reservations.id"],
            name=op.f("fk_reserved_gpus_reservation_id_reservations"),
            ondelete="CASCADE",
        ),
    )
    kept = sa.text("until_ms IS NULL")
    op.create_index(
        "uq_reserved_gpus_kept", "reserved_gpus", ["host_id", "gpu_index"], unique=True, postgresql_where=kept
    )


def _windows() -> None:
    op.create_table(
        "standby_windows",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("days", sa.Text, nullable=False),
        sa.Column("from_minute", sa.Integer, nullable=False),
        sa.Column("until_minute", sa.Integer, nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("lose_steps", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("next_from_ms", sa.BigInteger, nullable=False),
        sa.Column("next_until_ms", sa.BigInteger, nullable=False),
        sa.Column("try_ms", sa.BigInteger, nullable=False),
        sa.Column("told_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_why", sa.Text, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_standby_windows")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_standby_windows_project_id_projects")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_standby_windows_job_id_jobs")),
    )
    op.create_index("ix_standby_windows_job_id", "standby_windows", ["job_id"])
    open_ = sa.text("ended_ms IS NULL")
    op.create_index("ix_standby_windows_due", "standby_windows", ["try_ms"], postgresql_where=open_)


def downgrade() -> None:
    op.drop_table("standby_windows")
    op.drop_table("reserved_gpus")
    op.drop_table("reservations")
