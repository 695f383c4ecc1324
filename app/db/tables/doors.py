"""The tables of doors: what clients of another API have sent, and which of our jobs came of it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, Table, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB

from app.db.tables.base import ID, MS, metadata

door_files = Table(
    "door_files",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("state", Text, nullable=False),  # uploading | stored | deleted
    Column("row_count", Integer),  # of a training file whose rows are good
    Column("report", JSONB),  # of a training file that was looked at: shape, tokens, problems by line
    Column("created_ms", MS, nullable=False),
    Column("expires_ms", MS),
    Index("ix_door_files_project_id_id", "project_id", "id"),
    Index("ix_door_files_state_created_ms", "state", "created_ms"),
    Index("ix_door_files_expires_ms", "expires_ms"),
)

door_uploads = Table(
    "door_uploads",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("mime_type", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("state", Text, nullable=False),  # pending | completed | cancelled | expired
    Column("file_id", ID),
    Column("file_life_s", Integer),
    Column("created_ms", MS, nullable=False),
    Column("expires_ms", MS, nullable=False),
    Index("ix_door_uploads_state_expires_ms", "state", "expires_ms"),
)

door_parts = Table(
    "door_parts",
    metadata,
    Column("id", ID, primary_key=True),
    Column("upload_id", ID, ForeignKey("door_uploads.id", ondelete="CASCADE"), nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("state", Text, nullable=False),  # uploading | stored
    Column("created_ms", MS, nullable=False),
    Index("ix_door_parts_upload_id", "upload_id"),
)

tunings = Table(
    "tunings",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("job_id", ID, ForeignKey("jobs.id")),  # null: its rows are still being packed, or were refused
    Column("request", JSONB, nullable=False),  # as it was accepted: method, seed, suffix, metadata, ...
    Column("model", Text, nullable=False),  # as it was asked for
    Column("base_model", Text, nullable=False),  # what is trained
    Column("adapter_of", ID),  # the tuning whose result this one goes on from
    Column("training_file_id", ID, nullable=False),
    Column("validation_file_id", ID),
    Column("author", JSONB, nullable=False),  # who asked: the key that the job is of
    Column("fine_tuned_model", Text, nullable=False),
    Column("error", JSONB),
    Column("created_ms", MS, nullable=False),
    Column("ended_ms", MS),  # of one that ended before it was a job
    Column("model_deleted_ms", MS),
    UniqueConstraint("project_id", "fine_tuned_model"),
    Index("ix_tunings_project_id_id", "project_id", "id"),
    Index("ix_tunings_job_id", "job_id"),
    Index("ix_tunings_unfinished", "id", postgresql_where=text("job_id IS NULL AND ended_ms IS NULL")),
)

model_names = Table(
    "model_names",
    metadata,
    Column("name", Text, primary_key=True),
    Column("model", Text),  # null: a name of ours that is not to be known any more
    Column("updated_ms", MS, nullable=False),
)

model_servers = Table(
    "model_servers",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("base_model", Text, nullable=False),
    Column("author", JSONB, nullable=False),  # who asked first: the key that the job is of
    Column("job_id", ID, ForeignKey("jobs.id")),  # null: the job is not submitted yet
    Column("instance", Text),  # the process that asks for requests now
    Column("created_ms", MS, nullable=False),
    Column("ended_ms", MS),
    Index("uq_model_servers_open", "project_id", "base_model", unique=True, postgresql_where=text("ended_ms IS NULL")),
)

completions = Table(
    "completions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("server_id", ID, ForeignKey("model_servers.id"), nullable=False),
    Column("adapter_of", ID),  # the tuning whose adapter is to answer; null: the base model
    Column("key_id", ID),  # that asks; null: of a release before several were answered at once
    Column("body", JSONB, nullable=False),
    Column("state", Text, nullable=False),  # waiting | taken | done | failed | left
    Column("instance", Text),  # the process that has taken it
    Column("prompt_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("finish_reason", Text),
    Column("error", JSONB),
    Column("created_ms", MS, nullable=False),
    Index("ix_completions_server_id_state_id", "server_id", "state", "id"),
    Index("ix_completions_created_ms", "created_ms"),
)

completion_pieces = Table(
    "completion_pieces",
    metadata,
    Column("completion_id", ID, ForeignKey("completions.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("text", Text, nullable=False),
)
