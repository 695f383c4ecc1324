"""A job that would miss its deadline with the GPUs that it needs begins with more of its range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.elastic.deadlines import DeadlineGrowth
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.size_table import KeptSpeed, SpeedKey, profile_of
from app.core.policies.reasons import duration
from app.core.throughput import Throughput
from app.db.connection import Connection
from app.db.jobs.steering import change_job
from app.db.learning.calibrations import steps_by_project
from app.db.learning.size_speeds import StatedRun, WaitingRange, kept_speeds, waiting_ranges
from app.db.lock_order import lock_scope
from app.db.runs.grown import larger_start
from app.db.transitions import Event, add_job_event
from app.services.sizes.measure_sizes import predicted_speeds

BEGINS_LARGER = "begins_larger"


@dataclass(frozen=True, slots=True)
class LargerStart:
    """`least`: the GPUs that it needs, with which it is late."""

    job_id: str
    least: int
    growth: DeadlineGrowth


@dataclass(frozen=True, slots=True)
class KnownOfWaiting:
    """What is known of jobs that have never begun: what they state, speeds kept of their apps, steps of projects."""

    ranges: tuple[WaitingRange, ...]
    kept: Mapping[SpeedKey, Mapping[int, KeptSpeed]]
    throughputs: Mapping[str, Throughput]

    def profile(self, one: WaitingRange, gpu_type: str, least: int) -> SpeedProfile:
        """How fast the job would be with each number of such GPUs. The first of a model takes up to a second: call it
        in a thread."""
        predicted: Mapping[int, float] = {}
        if one.template is not None:
            stated = StatedRun(one.job_id, one.project_id, one.template, {}, gpu_type)
            predicted = predicted_speeds(stated, self.throughputs.get(one.project_id) or Throughput())
        return profile_of(least, self.kept.get(one.key(gpu_type), {}), {}, predicted)


async def read_waiting(connection: Connection, gpu_types: Mapping[str, str]) -> KnownOfWaiting:
    """Of those of these jobs that ask for a range and have never begun. `gpu_types`: by job, where it would begin."""
    ranges = tuple(await waiting_ranges(connection, gpu_types.keys()))
    if not ranges:
        return KnownOfWaiting((), {}, {})
    kept = await kept_speeds(connection, {one.key(gpu_types[one.job_id]) for one in ranges})
    steps = await steps_by_project(connection, sorted({one.project_id for one in ranges}))
    return KnownOfWaiting(ranges, kept, {project_id: Throughput.of(rows) for project_id, rows in steps.items()})


async def begin_larger(connection: Connection, start: LargerStart, *, now_ms: int) -> bool:
    """Whether it is to. False, with nothing written, where it is not what was decided on any more."""
    await lock_scope(connection, [start.job_id])
    gpus, least = start.growth.to.gpus, start.least
    resources = await larger_start(connection, start.job_id, gpus)
    if resources is None:
        return False
    await change_job(connection, start.job_id, {"resources": resources})
    late_s, early = start.growth.late_s, duration(int(start.growth.early_s) * 1000)
    when = f"{duration(int(late_s) * 1000)} after" if late_s > 0 else f"only {duration(int(-late_s) * 1000)} before"
    told = (
        f"would be done {when} its deadline with {least} GPU{'s' * (least > 1)}: begins with {gpus}, which are done "
        f"{early} before it"
    )
    data = {"gpus": gpus, "gpus_before": least}
    await add_job_event(connection, start.job_id, Event(BEGINS_LARGER, told, data), now_ms=now_ms)
    return True
