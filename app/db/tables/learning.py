"""The tables of what ended runs taught."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Integer, Table, Text, UniqueConstraint, text

from app.db.tables.base import ID, MS, metadata

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


# What a step of training took, by all that decides it (app.core.throughput.StepKey), newer runs counting more.
step_times = Table(
    "step_times",
    metadata,
    Column("project_id", ID, ForeignKey("projects.id"), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("gpu_type", Text, primary_key=True),
    Column("gpus", Integer, primary_key=True),
    Column("micro_batch", BigInteger, primary_key=True),
    Column("accumulation", BigInteger, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("method", Text, primary_key=True),
    Column("frozen_layers", Integer, primary_key=True),
    Column("precision", Text, primary_key=True),
    Column("checkpointing", Boolean, primary_key=True),
    Column("parallelism", Text, primary_key=True),
    Column("step_ms", Double, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("roofline_ms", Double),
    Column("updated_ms", MS, nullable=False),
)


# How far memory predictions were off for runs of one kind (app.core.memory.calibration).
calibrations = Table(
    "calibrations",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("family", Text, nullable=False),
    Column("method", Text, nullable=False),
    Column("kernel", Text, nullable=False),
    Column("gpu_type", Text, nullable=False),
    Column("versions", Text, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("log_ratio", Double, nullable=False),
    Column("fragmentation", Double, nullable=False),
    Column("overhead_bytes", BigInteger, nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("updated_ms", MS, nullable=False),
    UniqueConstraint("project_id", "family", "method", "kernel", "gpu_type", "versions", name="uq_calibrations_kind"),
)


# How fast jobs of an app were at each number of GPUs that one of them really had (app.core.elastic.size_table).
size_speeds = Table(
    "size_speeds",
    metadata,
    Column("app_id", ID, primary_key=True),
    Column("shape", Text, primary_key=True),  # of model and training; empty: not stated
    Column("gpu_type", Text, primary_key=True),
    Column("gpus", Integer, primary_key=True),
    Column("steps_per_s", Double, nullable=False),
    Column("noise", Double, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("updated_ms", MS, nullable=False),
)
