"""The table of jobs that stand by."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, Table, Text, text

from app.db.tables.base import ID, MS, metadata

# A job that lends the GPUs of its machine to spot jobs for a while, and comes back to them.
standbys = Table(
    "standbys",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("job_id", ID, ForeignKey("jobs.id"), nullable=False),
    Column("node_id", ID, ForeignKey("nodes.id"), nullable=False),
    Column("gpus", Integer, nullable=False),  # of the machine, all of which are lent
    Column("rebate_parts", Integer, nullable=False),  # of its price, in millionths, as it was agreed on
    Column("lose_steps", Boolean, nullable=False, server_default=text("false")),
    Column("left_step", BigInteger, nullable=False, server_default=text("0")),  # its job's, when it left
    Column("asked_ms", MS, nullable=False),
    Column("until_ms", MS, nullable=False),
    Column("left_ms", MS),  # since when its job has left its GPUs
    Column("called_ms", MS),  # since when they are to be its own again
    Column("called_why", Text),
    Column("failures", Integer, nullable=False, server_default=text("0")),  # of its job to begin again there
    Column("over_why", Text),  # why its job does not come back to them: the machine is to end
    Column("back_ms", MS),  # when it began there again
    Column("ended_ms", MS),
    Column("ended_why", Text),
    Index("uq_standbys_open", "job_id", unique=True, postgresql_where=text("ended_ms IS NULL")),
    Index("ix_standbys_job_id", "job_id"),
    Index("ix_standbys_node_id", "node_id"),
    Index("ix_standbys_ended_ms", "ended_ms", postgresql_where=text("ended_ms IS NOT NULL")),
)

# Hours of a local clock in which a job stands by, again and again. `next_from_ms`: of the window that comes, or is open
# and has not been begun.
standby_windows = Table(
    "standby_windows",
    metadata,
    Column("id", ID, primary_key=True),
    Column("project_id", ID, ForeignKey("projects.id"), nullable=False),
    Column("job_id", ID, ForeignKey("jobs.id"), nullable=False),
    Column("days", Text, nullable=False),  # as they are written: mon,tue
    Column("from_minute", Integer, nullable=False),
    Column("until_minute", Integer, nullable=False),
    Column("zone", Text, nullable=False),
    Column("lose_steps", Boolean, nullable=False, server_default=text("false")),
    Column("created_ms", MS, nullable=False),
    Column("next_from_ms", MS, nullable=False),
    Column("next_until_ms", MS, nullable=False),
    Column("try_ms", MS, nullable=False),  # when it is tried to begin it
    Column("told_ms", MS),  # of which window its owner was told that it cannot be begun
    Column("ended_ms", MS),
    Column("ended_why", Text),
    Index("ix_standby_windows_job_id", "job_id"),
    Index("ix_standby_windows_due", "try_ms", postgresql_where=text("ended_ms IS NULL")),
)
