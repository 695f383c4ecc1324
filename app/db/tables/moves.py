"""The tables of planned moves."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Table, Text, text

from app.db.tables.base import ID, MS, metadata

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
    Column("measured_ms", MS),  # when that was known; NULL: it is not, or a release before migration 0036 wrote it
    Column("end_message", Text),
    Column("not_before_ms", MS, nullable=False, server_default=text("0")),  # of the job's next move
    Index(None, "job_id"),
    Index("ix_moves_not_before_ms", "not_before_ms", postgresql_where=text("not_before_ms > 0")),
    Index("ix_moves_measured_ms", "measured_ms", postgresql_where=text("measured_ms IS NOT NULL")),
    Index("ix_moves_ended_ms", "ended_ms", postgresql_where=text("ended_ms IS NOT NULL")),
    Index("uq_moves_open", "job_id", unique=True, postgresql_where=text("state IN ('preparing','saving','promoting')")),
)
