"""The tables of what has happened, counted for monitoring."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY

from app.db.tables.base import MS, metadata

# How often what happened, and how long it took, up to the moment in `counts_until`. `app.db.counting.series` has the
# series and their labels. `le_s`: the bucket's upper bound, infinity where nothing is timed.
counts = Table(
    "counts",
    metadata,
    Column("series", Text, primary_key=True),
    Column("labels", ARRAY(Text), primary_key=True),
    Column("le_s", Double, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("total_ms", BigInteger, nullable=False),
)


# Up to when a series is in `counts`; without a row nothing of it is.
counts_until = Table(
    "counts_until",
    metadata,
    Column("series", Text, primary_key=True),
    Column("until_ms", MS, nullable=False),
)
