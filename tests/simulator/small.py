"""Traces for tests of what is built on the simulator: a few jobs, some short and some long."""

from __future__ import annotations

from app.simulator.traces.job import Trace, TraceJob

DURATIONS_S = (20, 900, 45, 3600, 8, 1500, 60, 7200, 30, 240)


def small_trace(jobs: int = 20) -> Trace:
    """A job each 40 s; every fourth asks for two GPUs."""
    return Trace.of(
        "small",
        [
            TraceJob(f"job-{n:02d}", 40.0 * n, float(DURATIONS_S[n % len(DURATIONS_S)]), 2 if n % 4 == 3 else 1)
            for n in range(jobs)
        ],
    )
