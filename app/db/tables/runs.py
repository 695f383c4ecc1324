"""The tables of runs, the GPUs they hold, and what they leave behind."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, Table, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from app.db.tables.base import ID, MS, metadata

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
    Column("wanted_gpus", Integer),  # so many of those that it holds; NULL: as many as its job asked for
    Column("wanted_ms", MS),  # since when
    Column("keeps_gpus_ms", MS),  # since when it is known to keep what it holds, whatever it is to use
    Column("evicted_for_job_id", ID),  # it was asked to leave for this guaranteed job
    # Of a job on several machines: each has a run, all but the first with the run that leads them.
    Column("member_of", ID),
    Column("node_rank", Integer),  # 0: it leads
    Column("prepared_ms", MS),  # its agent has all that its code needs
    Column("meeting", JSONB),  # of the run that leads: where its machine can be reached by the others
    Column("stops_together", Boolean, nullable=False, server_default=text("false")),  # with those on other machines
    Column("network_bits_per_s", BigInteger),  # of a member: measured between the first machine and its own
    Column("exit_told", JSONB),  # its process has failed: what that means is said when all of them are over
    Column("exit_told_ms", MS),
    Column("gpus_told", JSONB),  # which of them its training uses; NULL: it does not say that it can change them
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    Index("ix_runs_to_learn", "id", postgresql_where=text("state = 'ended' AND facts IS NOT NULL AND NOT learned")),
    Index("ix_runs_live", "id", postgresql_where=text("state <> 'ended'")),
    Index("ix_runs_evicted_for", "evicted_for_job_id", postgresql_where=text("evicted_for_job_id IS NOT NULL")),
    Index("ix_runs_exit_told", "id", postgresql_where=text("exit_told IS NOT NULL AND state <> 'ended'")),
    Index("ix_runs_member_of", "member_of", postgresql_where=text("member_of IS NOT NULL")),
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


# What its processes and GPUs used, by instant: of the machine, and so apart from what the job measures.
system_samples = Table(
    "system_samples",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id"), primary_key=True),
    Column("at_ms", MS, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("values", JSONB, nullable=False),
)


# What a run left behind in its folders, beside its rows of `artifacts`, as its agent said last.
run_results = Table(
    "run_results",
    metadata,
    Column("job_id", ID, ForeignKey("jobs.id"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("run_id", ID, ForeignKey("runs.id"), nullable=False, index=True),
    Column("left_behind", JSONB, nullable=False),  # the largest: [{"path", "size_bytes", "files", "why"}]
    Column("left_files", BigInteger, nullable=False),
    Column("left_bytes", BigInteger, nullable=False),
    Column("final", Boolean, nullable=False),  # told when its processes were gone
    Column("told_ms", MS, nullable=False),
)
