"""The tables of projects, their keys and secrets, and who did what."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Identity, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.db.tables.base import ID, MS, metadata

projects = Table(
    "projects",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_ms", MS, nullable=False),
    Column("deletions", BigInteger, nullable=False, server_default=text("0")),  # rounds in which content was deleted
    Column("ahead", Boolean, nullable=False, server_default=text("true")),  # machines are kept for jobs to come
    Column("default_class", Text, nullable=False, server_default=text("'guaranteed'")),  # of jobs that name none
    Column("archived_ms", MS),  # since when its keys are refused
)


api_keys = Table(
    "api_keys",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),  # the first characters, to recognise a key by
    Column("key_sha256", LargeBinary, nullable=False, unique=True),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("created_ms", MS, nullable=False),
    Column("expires_ms", MS),
    Column("revoked_ms", MS),
    Column("last_used_ms", MS),
)


# Who is signed in with a browser. A session has its own project and scopes, so that people can have one without a key.
sessions = Table(
    "sessions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("token_sha256", LargeBinary, nullable=False, unique=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("key_id", ID, ForeignKey("api_keys.id")),  # that it was begun with, and ends with; NULL: without one
    Column("scopes", ARRAY(Text), nullable=False),
    Column("created_ms", MS, nullable=False),
    Column("used_ms", MS, nullable=False),
    Column("expires_ms", MS, nullable=False),
    Index(None, "key_id", "id"),
    Index(None, "expires_ms"),
)


# Values are sealed by `app.services.kit.seal`; `seal_key_id` says under which key.
secrets = Table(
    "secrets",
    metadata,
    Column("project_id", ID, ForeignKey("projects.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("seal_key_id", Text, nullable=False),
    Column("created_ms", MS, nullable=False),
    Column("changed_ms", MS, nullable=False),
)


# This installation, by the oldest row. Its id is in the labels of its machines, so that several can share an account.
installations = Table(
    "installations",
    metadata,
    Column("id", ID, primary_key=True),
    Column("since_ms", MS, nullable=False),
)


# Who wrote what through the API. Without foreign keys: each would cost the submit path a look-up.
audit_log = Table(
    "audit_log",
    metadata,
    Column("project_id", ID, primary_key=True),
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("at_ms", MS, nullable=False),
    Column("key_id", ID, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("route", Text, nullable=False),  # "POST /v1/jobs/{job_id}/cancel"
    Column("object_id", Text),
    Column("status", Integer, nullable=False),
)


idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("project_id", ID, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("route", Text, nullable=False),
    Column("body_sha256", LargeBinary, nullable=False),
    Column("status", Integer, nullable=False),
    Column("response", JSONB, nullable=False),
    Column("created_ms", MS, nullable=False),
)
