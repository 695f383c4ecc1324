"""The tables of queues: where jobs stand that share machines with elastic ones."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, Integer, Table, Text, text

from app.db.tables.base import ID, MS, metadata

# Where a job stands (app.core.elastic.standing). What it has had of GPUs is in allocations, and not repeated here.
job_queues = Table(
    "job_queues",
    metadata,
    Column("job_id", ID, primary_key=True),  # no reference: a check would wait for whoever has the job locked
    Column("project_id", ID, nullable=False),
    Column("kind", Text, nullable=False),
    Column("source", Integer, nullable=False),  # app.core.elastic.kinds.KindSource
    Column("because", Text, nullable=False),
    Column("queue", Integer, nullable=False),  # 1 interactive, 2 batch, 3 long
    Column("since_ms", MS, nullable=False),
    Column("base_s", Double, nullable=False),
    Column("forgiven_gpu_s", Double, nullable=False),
    Column("updated_ms", MS, nullable=False),
    Column("counted", Boolean, nullable=False, server_default=text("false")),  # its run time is in the means
    Index("ix_job_queues_not_counted", "job_id", postgresql_where=text("NOT counted")),
)

# From which running time on jobs of a project leave a queue, and what has ended since that was last estimated.
queue_thresholds = Table(
    "queue_thresholds",
    metadata,
    Column("project_id", ID, ForeignKey("projects.id"), primary_key=True),
    Column("interactive_s", Double, nullable=False),
    Column("batch_s", Double, nullable=False),
    Column("interactive_sum_s", Double, nullable=False),
    Column("batch_sum_s", Double, nullable=False),
    Column("interactive_count", BigInteger, nullable=False),
    Column("batch_count", BigInteger, nullable=False),
    Column("updated_ms", MS, nullable=False),
)
