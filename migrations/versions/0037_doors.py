"""Doors: files, uploads and fine-tunings of clients that speak another API

Revision: 0037, after 0036

What the files hold lies in the object store under a prefix of its own (`projects/<id>/door/`), which the collector of
unreferenced content never looks at: an older release that runs again beside these tables deletes none of it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _files()
    _uploads()
    _tunings()
    op.create_table(
        "model_names",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_names")),
    )


def downgrade() -> None:
    for table in ("model_names", "tunings", "door_parts", "door_uploads", "door_files"):
        op.drop_table(table)


def _files() -> None:
    op.create_table(
        "door_files",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("row_count", sa.Integer),
        sa.Column("report", JSONB),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_door_files")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_door_files_project_id_projects")),
    )
    op.create_index("ix_door_files_project_id_id", "door_files", ["project_id", "id"])
    op.create_index("ix_door_files_state_created_ms", "door_files", ["state", "created_ms"])
    op.create_index("ix_door_files_expires_ms", "door_files", ["expires_ms"])


def _uploads() -> None:
    op.create_table(
        "door_uploads",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("mime_type", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("file_id", sa.Text),
        sa.Column("file_life_s", sa.Integer),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_door_uploads")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_door_uploads_project_id_projects")),
    )
    op.create_index("ix_door_uploads_state_expires_ms", "door_uploads", ["state", "expires_ms"])
    op.create_table(
        "door_parts",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("upload_id", sa.Text, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_door_parts")),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["door_uploads.id"], name=op.f("fk_door_parts_upload_id_door_uploads"), ondelete="CASCADE"
        ),
    )
    op.create_index("ix_door_parts_upload_id", "door_parts", ["upload_id"])


def _tunings() -> None:
    op.create_table(
        "tunings",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text),
        sa.Column("request", JSONB, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("base_model", sa.Text, nullable=False),
        sa.Column("adapter_of", sa.Text),
        sa.Column("training_file_id", sa.Text, nullable=False),
        sa.Column("validation_file_id", sa.Text),
        sa.Column("author", JSONB, nullable=False),
        sa.Column("fine_tuned_model", sa.Text, nullable=False),
        sa.Column("error", JSONB),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("model_deleted_ms", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tunings")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_tunings_project_id_projects")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_tunings_job_id_jobs")),
        sa.UniqueConstraint("project_id", "fine_tuned_model", name=op.f("uq_tunings_project_id_fine_tuned_model")),
    )
    op.create_index("ix_tunings_project_id_id", "tunings", ["project_id", "id"])
    op.create_index("ix_tunings_job_id", "tunings", ["job_id"])
    op.create_index(
        "ix_tunings_unfinished", "tunings", ["id"], postgresql_where=sa.text("job_id IS NULL AND ended_ms IS NULL")
    )
