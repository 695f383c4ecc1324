"""Every table. Times are BIGINT milliseconds since the epoch; leases alone use the database's own clock.

Constraint names follow one convention, so that migrations can name what they change.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

ID = Text
MS = BigInteger
MICROS = BigInteger


projects = Table(
    "projects",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("created_ms", MS, nullable=False),
    Column("deletions", BigInteger, nullable=False, server_default=text("0")),  # rounds in which content was deleted
    Column("ahead", Boolean, nullable=False, server_default=text("true")),  # machines are kept for jobs to come
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

# Values are sealed by `app.services.seal`; `seal_key_id` says under which key.
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

# What the object store holds for a project, once its bytes are verified there.
objects = Table(
    "objects",
    metadata,
    Column("project_id", ID, ForeignKey("projects.id"), primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("verified_ms", MS, nullable=False),
)

apps = Table(
    "apps",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("version", Integer, nullable=False),  # the newest
    Column("created_ms", MS, nullable=False),
    UniqueConstraint("project_id", "name"),
)

app_versions = Table(
    "app_versions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("app_id", ID, ForeignKey("apps.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("base_image", Text),
    Column("pip", ARRAY(Text), nullable=False),
    Column("environment_sha256", Text, nullable=False),  # hash of the sorted pip set
    Column("bundle_sha256", Text, nullable=False, index=True),
    Column("bundle_size_bytes", BigInteger, nullable=False),
    Column("entrypoint", Text, nullable=False),
    Column("created_ms", MS, nullable=False),
    UniqueConstraint("app_id", "version"),
)

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
    Column("profile_tries", Integer, nullable=False, server_default=text("0")),  # runs that should and did not
    Column("step", BigInteger, nullable=False, server_default=text("0")),
    Column("total_steps", BigInteger),
    Column("plan", Text),  # what the training that it states needs of each GPU, in words
    Column("predicted_step_ms", Double),  # where the job states its training and nothing was measured yet
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
    Index("ix_jobs_from_checkpoint_id", "from_checkpoint_id", postgresql_where=text("from_checkpoint_id IS NOT NULL")),
    Index("ix_jobs_sweep_id", "sweep_id", postgresql_where=text("sweep_id IS NOT NULL")),
)

# What the jobs of an app that succeeded have taken, newer ones counting more: the prediction for the next.
run_history = Table(
    "run_history",
    metadata,
    Column("app_id", ID, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("samples", BigInteger, nullable=False),
    Column("run_ms", Double, nullable=False),  # of a job's code, from first step to last
    Column("step_ms", Double),
    Column("updated_ms", MS, nullable=False),
    Column("saves", Boolean),  # whether the newest of them saved, or said that it would; NULL: not noted yet
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

nodes = Table(
    "nodes",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("provider", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("provider_ref", Text),
    Column("offer", JSONB, nullable=False),  # app.core.model.offer.Offer as it was agreed
    Column("gpu_type", Text, nullable=False),
    Column("gpu_count", Integer, nullable=False),
    Column("gpu_memory_bytes", BigInteger, nullable=False),
    Column("cpus", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("region", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("switch", Text, nullable=False, server_default=text("''")),
    Column("image", Text, nullable=False),
    Column("lendable_window", JSONB),
    Column("eviction_history", JSONB, nullable=False, server_default=text("'[]'")),
    Column("price_micros_per_hour", MICROS, nullable=False),
    Column("billing_unit_ms", MS, nullable=False),
    Column("billing_starts", Text, nullable=False),
    Column("billing_minimum_ms", MS, nullable=False),
    Column("state", Text, nullable=False),
    Column("end_message", Text),
    Column("token_sha256", LargeBinary, unique=True),  # the agent's identity; NULL once the node is gone
    Column("rented_for_job_id", ID),
    Column("desired_version", BigInteger, nullable=False, server_default=text("1")),  # of what its agent should do
    Column("requested_ms", MS, nullable=False),
    Column("expected_ready_ms", MS, nullable=False),
    Column("startup_deadline_ms", MS, nullable=False),
    Column("ready_ms", MS),
    Column("idle_since_ms", MS),
    Column("unreachable_since_ms", MS),
    Column("missing_since_ms", MS),  # from the provider's listing
    Column("ends_ms", MS),  # when the machine ends by itself: its lifetime is limited, or its lease is
    Column(
        "orphan", Boolean, nullable=False, server_default=text("false")
    ),  # a machine of nobody, taken in to be ended
    Column("ended_ms", MS),
    Column("billed_from_ms", MS),  # the provider's own times
    Column("billed_to_ms", MS),
    Column("metered_until_ms", MS),
    Column("metered_micros", MICROS, nullable=False, server_default=text("0")),
    Column("meter_closed", Boolean, nullable=False, server_default=text("false")),
    Column("event_position", BigInteger, nullable=False, server_default=text("0")),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    Index("ix_nodes_not_gone", "id", postgresql_where=text("state NOT IN ('terminated','failed')")),
    Index("ix_nodes_unmetered", "id", postgresql_where=text("NOT meter_closed")),
    Index(None, "rented_for_job_id"),
    Index("ix_nodes_provider_ref", "provider_ref", postgresql_where=text("provider_ref IS NOT NULL")),
    # One machine belongs to one node that is not gone.
    Index(
        "uq_nodes_machine",
        "provider",
        "provider_ref",
        unique=True,
        postgresql_where=text("provider_ref IS NOT NULL AND state NOT IN ('terminated','failed')"),
    ),
)

node_events = Table(
    "node_events",
    metadata,
    Column("node_id", ID, ForeignKey("nodes.id"), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("at_ms", MS, nullable=False),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("data", JSONB, nullable=False, server_default=text("'{}'")),
)

# What the machine of each create call proves itself with, once. `nonce_sha256` is of the machine that did.
node_joins = Table(
    "node_joins",
    metadata,
    Column("node_id", ID, ForeignKey("nodes.id"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("token_sha256", LargeBinary, nullable=False, unique=True),
    Column("expires_ms", MS, nullable=False),  # for its first use
    Column("superseded", Boolean, nullable=False, server_default=text("false")),  # a later call's machine is the node's
    Column("nonce_sha256", LargeBinary),
    Column("joined_ms", MS),
    Column("refusals", Integer, nullable=False, server_default=text("0")),
    CheckConstraint("(nonce_sha256 IS NULL) = (joined_ms IS NULL)", name="joined_whole"),
    # One machine for each node, whatever happens.
    Index("ix_node_joins_joined", "node_id", unique=True, postgresql_where=text("nonce_sha256 IS NOT NULL")),
)

# Apart from nodes: written every few seconds, and a heartbeat must never make a planned action stale.
node_heartbeats = Table(
    "node_heartbeats",
    metadata,
    Column("node_id", ID, ForeignKey("nodes.id"), primary_key=True),
    Column("at_ms", MS, nullable=False),
    Column("report", JSONB, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("tier", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("stop_mode", Text),
    Column("stop_asked_ms", MS),
    Column("end_reason", Text),
    Column("end_message", Text),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("resumed_from_step", BigInteger),
    Column("resumed_checkpoint_id", ID),  # what its agent was told to begin with
    Column("created_ms", MS, nullable=False),
    Column("starting_ms", MS),
    Column("running_ms", MS),
    Column("ended_ms", MS),
    Column("layout", JSONB),  # on its GPUs, where its job states its training: data parallel, micro-batch, ...
    Column("purpose", Text, nullable=False, server_default=text("'train'")),  # or 'profile': its task is looked at
    Column("companion_of", ID, ForeignKey("runs.id")),  # the run of the lead, whose process it shares
    Column("facts", JSONB),  # what its code told of itself: layout, peak memory, library versions
    Column("learned", Boolean, nullable=False, server_default=text("false")),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    Index("ix_runs_to_learn", "id", postgresql_where=text("state = 'ended' AND facts IS NOT NULL AND NOT learned")),
    Index("ix_runs_live", "id", postgresql_where=text("state <> 'ended'")),
    Index("ix_runs_companion_of", "companion_of", postgresql_where=text("companion_of IS NOT NULL")),
)

run_jobs = Table(
    "run_jobs",
    metadata,
    Column("run_id", ID, ForeignKey("runs.id"), primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id"), primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False, server_default=text("0")),  # that the run has processed for the job
    Column("metered_tokens", BigInteger, nullable=False, server_default=text("0")),  # of them, up to the last bill
    UniqueConstraint("job_id", "epoch"),  # exactly one run ever held an epoch
)

# A job that goes from one run to another that was prepared for it; `app.core.model.move` has the states.
moves = Table(
    "moves",
    metadata,
    Column("id", ID, primary_key=True),
    Column("job_id", ID, ForeignKey("jobs.id"), nullable=False),
    Column("source_run_id", ID, ForeignKey("runs.id"), nullable=False),
    Column("target_run_id", ID, ForeignKey("runs.id"), nullable=False, unique=True),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("begun_ms", MS, nullable=False),
    Column("saving_ms", MS),
    Column("promoted_ms", MS),
    Column("ended_ms", MS),
    Column("step", BigInteger),  # at which the target goes on
    Column("pause_ms", MS),  # from the last step on the source to the first on the target
    Column("end_message", Text),
    Column("not_before_ms", MS, nullable=False, server_default=text("0")),  # of the job's next move
    Index(None, "job_id"),
    Index("ix_moves_not_before_ms", "not_before_ms", postgresql_where=text("not_before_ms > 0")),
    Index("uq_moves_open", "job_id", unique=True, postgresql_where=text("state IN ('preparing','saving','promoting')")),
)

allocations = Table(
    "allocations",
    metadata,
    Column("id", ID, primary_key=True),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False),
    Column("node_id", ID, ForeignKey("nodes.id"), nullable=False),
    Column("gpu_indices", ARRAY(Integer), nullable=False),
    Column("from_ms", MS, nullable=False),
    Column("to_ms", MS),
    Index(None, "run_id"),
    Index(None, "node_id", "to_ms"),
    # What is held now, however much was held before.
    Index("ix_allocations_held", "node_id", postgresql_where=text("to_ms IS NULL")),
)

offers = Table(
    "offers",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("offer_id", Text, primary_key=True),
    Column("tier", Text, nullable=False),
    Column("offer", JSONB, nullable=False),
    Column("price_micros_per_hour", MICROS, nullable=False),
    Column("seen_ms", MS, nullable=False),
)

provider_operations = Table(
    "provider_operations",
    metadata,
    Column("id", ID, primary_key=True),
    Column("node_id", ID, ForeignKey("nodes.id"), nullable=False),
    Column("project_id", ID, nullable=False, server_default=text("''")),  # of the node; '': not told
    Column("provider", Text, nullable=False),
    Column("kind", Text, nullable=False),  # create | terminate
    Column("state", Text, nullable=False),  # pending | done | failed
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("not_before_ms", MS, nullable=False),
    Column("lease_token", Text),
    Column("lease_until", DateTime(timezone=True)),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("created_ms", MS, nullable=False),
    Column("ended_ms", MS),
    Index("ix_provider_operations_ended_ms", "ended_ms", postgresql_where=text("ended_ms IS NOT NULL")),
    Index("ix_provider_operations_pending", "not_before_ms", postgresql_where=text("state = 'pending'")),
    Index(
        "ix_provider_operations_leased",
        "project_id",
        postgresql_where=text("state = 'pending' AND lease_until IS NOT NULL"),
    ),
    Index(
        "ix_provider_operations_turns",
        "project_id",
        "not_before_ms",
        "id",
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "uq_provider_operations_open",
        "node_id",
        "kind",
        unique=True,
        postgresql_where=text("state = 'pending'"),
    ),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("job_id", ID, ForeignKey("jobs.id"), nullable=False),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("manifest_sha256", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("stored_bytes", BigInteger),  # of its pieces that were not in the store when it was opened
    Column("metrics", JSONB, nullable=False, server_default=text("'{}'")),
    Column("opened_ms", MS, nullable=False),
    Column("committed_ms", MS),
    Column("kept_ms", MS),  # when a job was last submitted that begins with it
    Index(None, "job_id", "step"),
)

checkpoint_files = Table(
    "checkpoint_files",
    metadata,
    Column("checkpoint_id", ID, ForeignKey("checkpoints.id"), primary_key=True),
    Column("path", Text, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
)

# What a file consists of, in order: `length_bytes` from `start_byte` on of a stored piece, which has `size_bytes`.
checkpoint_pieces = Table(
    "checkpoint_pieces",
    metadata,
    Column("checkpoint_id", ID, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("sha256", Text, nullable=False, index=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("start_byte", BigInteger, nullable=False),
    Column("length_bytes", BigInteger, nullable=False),
    ForeignKeyConstraint(
        ["checkpoint_id", "path"],
        ["checkpoint_files.checkpoint_id", "checkpoint_files.path"],
        name="fk_checkpoint_pieces_checkpoint_files",
        ondelete="CASCADE",
    ),
)

# Content that nothing refers to and that is being deleted. Until it is gone, nobody may begin to refer to it.
condemned_objects = Table(
    "condemned_objects",
    metadata,
    Column("project_id", ID, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("condemned_ms", MS, nullable=False),
    Column("leased_until_ms", MS, nullable=False, server_default=text("0")),  # to whoever deletes it
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id"), primary_key=True),
    Column("path", Text, primary_key=True),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False),
    Column("sha256", Text, nullable=False, index=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_ms", MS, nullable=False),
)

# The text of logs is in the object store; this is its index. (epoch, sequence) orders a job's log.
log_chunks = Table(
    "log_chunks",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("sequence", Integer, primary_key=True),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False),
    Column("sha256", Text, nullable=False, index=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("line_count", Integer, nullable=False),
    Column("first_ms", MS, nullable=False),
    Column("last_ms", MS, nullable=False),
)

metric_points = Table(
    "metric_points",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id"), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("at_ms", MS, nullable=False),
    Column("values", JSONB, nullable=False),
)

ledger = Table(
    "ledger",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("node_id", ID, ForeignKey("nodes.id"), nullable=False),
    Column("run_id", ID, ForeignKey("runs.id")),
    Column("job_id", ID, ForeignKey("jobs.id")),
    Column("payer", Text, nullable=False),  # run | boot | idle
    Column("from_ms", MS, nullable=False),
    Column("to_ms", MS, nullable=False),
    Column("amount_micros", MICROS, nullable=False),
    CheckConstraint("amount_micros >= 0", name="amount_not_negative"),
    Index(None, "project_id", "from_ms"),
    Index(None, "to_ms"),
    Index(None, "job_id"),
    Index(None, "node_id"),
    ForeignKeyConstraint(["run_id", "job_id"], ["run_jobs.run_id", "run_jobs.job_id"], name="fk_ledger_run_jobs"),
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
