"""What is counted: where each series is found, what tells its counts apart, and in which buckets its durations fall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class CountedSeries(StrEnum):
    """A new one begins with its first row, unless its migration says in `counts_until` that it begins later."""

    START_LATENCY = "start_latency"  # by the job's rule of starting
    MOVE_PAUSE = "move_pause"
    DECISION_TIME = "decision_time"
    DROPPED_ACTIONS = "dropped_actions"
    JOBS_ENDED = "jobs_ended"  # by state, reason, and whether its deadline had passed (yes, no)
    MOVES_ENDED = "moves_ended"  # by state
    OPERATIONS = "operations"  # by provider, kind, and error code or ok


@dataclass(frozen=True, slots=True)
class Source:
    """A row of `table` counts `number` times, at the moment in its indexed column `at_ms`: SQL, but for the bounds of
    its buckets. None: nothing is timed."""

    table: str
    at_ms: str
    labels: str
    took_ms: str = "0"
    number: str = "1"
    bounds_s: tuple[float, ...] | None = None


SOURCES: Mapping[CountedSeries, Source] = {
    CountedSeries.START_LATENCY: Source(
        table="jobs",
        at_ms="first_running_ms",
        labels="ARRAY[start]",
        took_ms="CAST(first_running_ms AS numeric) - submitted_ms",
        bounds_s=(1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400),
    ),
    CountedSeries.MOVE_PAUSE: Source(
        table="moves",
        at_ms="measured_ms",
        labels="CAST('{}' AS text[])",
        took_ms="pause_ms",
        bounds_s=(0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600),
    ),
    CountedSeries.DECISION_TIME: Source(
        table="ticks",
        at_ms="at_ms",
        labels="CAST('{}' AS text[])",
        took_ms="duration_ms",
        bounds_s=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
    ),
    CountedSeries.DROPPED_ACTIONS: Source(
        table="ticks", at_ms="at_ms", labels="CAST('{}' AS text[])", number="greatest(dropped, 0)"
    ),
    CountedSeries.JOBS_ENDED: Source(
        table="jobs",
        at_ms="ended_ms",
        labels="ARRAY[state, coalesce(end_reason, ''), CASE WHEN ended_ms > deadline_ms THEN 'yes' ELSE 'no' END]",
    ),
    CountedSeries.MOVES_ENDED: Source(table="moves", at_ms="ended_ms", labels="ARRAY[state]"),
    CountedSeries.OPERATIONS: Source(
        table="provider_operations",
        at_ms="ended_ms",
        labels="ARRAY[provider, kind, CASE WHEN state = 'done' THEN 'ok' ELSE coalesce(error_code, state) END]",
        took_ms="CAST(ended_ms AS numeric) - created_ms",
        bounds_s=(0.1, 0.3, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600),
    ),
}
