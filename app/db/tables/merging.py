"""The tables of jobs that are trained as one, and what is known of tasks beforehand."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY

from app.db.tables.base import ID, MS, metadata

# Two jobs that are trained as one; `app.core.model.merge` has modes and states.
merges = Table(
    "merges",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False, index=True),
    Column("lead_job_id", ID, ForeignKey("jobs.id"), nullable=False, index=True),
    Column("companion_job_id", ID, ForeignKey("jobs.id"), nullable=False, index=True),
    Column("mode", Text, nullable=False),
    Column("gpus", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("score", Double, nullable=False),  # on which it was decided, as was the gain
    Column("gain", Double, nullable=False),
    Column("fruitless_epochs", Double, nullable=False, server_default=text("0")),
    Column("begun_ms", MS, nullable=False),
    Column("ended_ms", MS),
    Column("reason", Text, nullable=False),
    Column("end_message", Text),
    Column("checkpoint_id", ID, index=True),  # of the lead: where the companion begins
    Column("seen_gain", Double),  # the gain that came out
    Column("learned", Boolean, nullable=False, server_default=text("false")),  # by the line from score to gain
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    Index("uq_merges_open_lead", "lead_job_id", unique=True, postgresql_where=text("state = 'open'")),
    Index("uq_merges_open_companion", "companion_job_id", unique=True, postgresql_where=text("state = 'open'")),
)


# What short runs on a few rows have found of tasks, before they are trained (`workers.trainer.fisher`).
profiles = Table(
    "profiles",
    metadata,
    Column("project_id", ID, ForeignKey("projects.id"), primary_key=True),
    Column("key", Text, primary_key=True),  # hash of all that decides it: bundle, model, task, length, precision
    Column("fisher", ARRAY(Double), nullable=False),
    Column("pull", ARRAY(Double), nullable=False),
    Column("rows", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("made_ms", MS, nullable=False),
)
