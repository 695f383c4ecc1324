"""The tables of jobs and their events."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.db.tables.base import ID, MICROS, MS, metadata

jobs = Table(
    "jobs",
    metadata,
    # Checking a reference costs as much as writing a quarter of the row, so what is written with every submitted job
    # has one: the version, whose own references give the app and the project.
    Column("id", ID, primary_key=True),
    Column("project_id", ID, nullable=False),
    Column("app_id", ID, nullable=False),
    Column("app_version_id", ID, ForeignKey("app_versions.id"), nullable=False),
    Column("sweep_id", ID),
    Column("key_id", ID),  # the API key that submitted it; NULL: not told
    Column("name", Text, nullable=False),
    Column("labels", JSONB, nullable=False, server_default=text("'{}'")),
    Column("parameters", JSONB, nullable=False),  # an object, or a list of command-line words
    Column("template", JSONB, nullable=False),
    Column("resources", JSONB, nullable=False),  # app.core.model.job.Resources
    Column("kind", Text, nullable=False),
    Column("kind_said", Boolean, nullable=False, server_default=text("false")),  # False: it may be inferred
    Column("priority_class", Text, nullable=False),
    Column("start", Text, nullable=False),
    Column("elastic", Boolean, nullable=False, server_default=text("false")),
    Column("sharing", Boolean, nullable=False, server_default=text("true")),
    Column("affinity", JSONB, nullable=False, server_default=text("'{}'")),  # affinity, anti_affinity, locked
    Column("checkpoint_interval_s", Integer, nullable=False),
    Column("max_cost_micros", MICROS),
    Column("max_duration_ms", MS),
    Column("max_hourly_micros", MICROS),  # what the GPUs that it gets may cost per hour
    Column("max_wait_ms", MS),  # from its submission to its first place
    Column("retries", Integer),  # how often it is begun again after failing by itself; NULL: nobody said
    Column("deadline_ms", MS, nullable=False),
    Column("deadline_given", Boolean, nullable=False),  # False: inferred
    Column("state", Text, nullable=False),
    Column("pause_reason", Text),
    Column("end_reason", Text),
    Column("end_message", Text),
    Column("epoch", Integer, nullable=False, server_default=text("0")),
    Column("faults", Integer, nullable=False, server_default=text("0")),
    Column("moves", Integer, nullable=False, server_default=text("0")),
    Column("memory_retries", Integer, nullable=False, server_default=text("0")),  # after running out of memory
    Column("retried", Integer, nullable=False, server_default=text("0")),  # of `retries`, those used up
    Column("failed_step", BigInteger),  # where the last of these failures was
    Column("evictions", Integer, nullable=False, server_default=text("0")),  # a spot job's, for guaranteed ones
    Column("eviction_saves", Integer, nullable=False, server_default=text("0")),  # of these, with all that it had done
    Column("set_aside_place", Text),  # what others leave for it: a node, or GPUs of a host as its offers name it
    Column("set_aside_gpus", Integer),
    Column("set_aside_until_ms", MS),  # until when, and as long as somebody is still leaving for it
    Column("profile_tries", Integer, nullable=False, server_default=text("0")),  # runs that should and did not
    Column("step", BigInteger, nullable=False, server_default=text("0")),
    Column("total_steps", BigInteger),
    Column("plan", Text),  # what the training that it states needs of each GPU, in words
    Column("predicted_step_ms", Double),  # where the job states its training and nothing was measured yet
    Column("gpu_speeds", JSONB),  # GpuSpeeds: on which type that is, and how long a step takes on others
    Column("checkpoint_id", ID),  # the newest committed one
    Column("checkpoint_step", BigInteger),
    Column("from_checkpoint_id", ID),  # of another job: where this one begins
    Column("refused_ms", MS),  # since when its checkpoints cannot be kept; NULL: the newest one was
    Column("refused_why", Text),
    Column("saves_ms", MS),  # since when its code says that it saves when it is asked to
    Column("links", JSONB),  # name to address, as the code of its newest run told them
    Column("libraries", JSONB),  # name to version, as the machine that it began on had them
    Column("spent_micros", MICROS, nullable=False, server_default=text("0")),
    Column("serverless_used_ms", MS, nullable=False, server_default=text("0")),
    Column("ran_ms", MS, nullable=False, server_default=text("0")),  # user code, in runs that are over
    Column("avoided_offers", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("unreached_offers", ARRAY(Text), nullable=False, server_default=text("'{}'")),  # failed in passing
    Column("not_before_ms", MS, nullable=False, server_default=text("0")),
    Column("wait_reason", Text),
    Column("submitted_ms", MS, nullable=False),
    Column("first_running_ms", MS),
    Column("ended_ms", MS),
    Column("event_position", BigInteger, nullable=False, server_default=text("0")),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    CheckConstraint("epoch >= 0", name="epoch_not_negative"),
    Index("ix_jobs_unfinished", "id", postgresql_where=text("state NOT IN ('succeeded','failed','cancelled')")),
    Index(None, "project_id", "id"),
    Index(None, "project_id", "state", "id"),
    Index(None, "project_id", "app_id", "id"),
    Index(None, "project_id", "submitted_ms"),
    Index("ix_jobs_labels", "labels", postgresql_using="gin", postgresql_ops={"labels": "jsonb_path_ops"}),
    Index("ix_jobs_first_running_ms", "first_running_ms", postgresql_where=text("first_running_ms IS NOT NULL")),
    Index("ix_jobs_ended_ms", "ended_ms", postgresql_where=text("ended_ms IS NOT NULL")),
    Index(
        "ix_jobs_set_aside",
        "id",
        postgresql_where=text("set_aside_until_ms IS NOT NULL AND state IN ('queued','waiting')"),
    ),
    Index("ix_jobs_from_checkpoint_id", "from_checkpoint_id", postgresql_where=text("from_checkpoint_id IS NOT NULL")),
    Index("ix_jobs_sweep_id", "sweep_id", postgresql_where=text("sweep_id IS NOT NULL")),
)


job_events = Table(
    "job_events",
    metadata,
    Column("job_id", ID, primary_key=True),
    Column("position", BigInteger, primary_key=True),  # per job, taken under its row lock: no reader skips one
    Column("at_ms", MS, nullable=False),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("data", JSONB, nullable=False, server_default=text("'{}'")),
)
