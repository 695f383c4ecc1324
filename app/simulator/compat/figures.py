"""The figures of a replay, under the names that the simulator's own have. There are no prices and no deadlines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.simulator.compat.record import CompatOutcome
from app.simulator.traces.describing import quantile


def figures_of(outcomes: Sequence[CompatOutcome]) -> dict[str, Any]:
    """Of the jobs that end; `unfinished` counts the others. Times are None when no job ends."""
    ended = [(one, one.jct_s) for one in outcomes if one.jct_s is not None]
    jcts = sorted(float(jct_s) for _, jct_s in ended)
    queued = [jct_s - one.executed_s for one, jct_s in ended]
    count = len(ended)
    return {
        "mean_jct_s": sum(jcts) / count if count else None,
        "p50_jct_s": quantile(jcts, 0.5) if count else None,
        "p90_jct_s": quantile(jcts, 0.9) if count else None,
        "p99_jct_s": quantile(jcts, 0.99) if count else None,
        "share_within_10_min": sum(one <= 600 for one in jcts) / count if count else None,
        "mean_queue_s": sum(queued) / count if count else None,
        "makespan_s": max((one.finish_s for one in outcomes if one.finish_s is not None), default=None),
        "preemptions": sum(one.preemptions for one in outcomes),
        "unfinished": len(outcomes) - count,
    }
