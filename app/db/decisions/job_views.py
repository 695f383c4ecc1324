"""A job's row as a decision sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sqlalchemy import Row

from app.core import codec
from app.core.foreign import read_as
from app.core.gpu_speeds import UNKNOWN_SPEEDS, GpuSpeeds
from app.core.model.job import Affinity, Caps, JobKind, JobState, PriorityClass, Resources, StartRule
from app.core.model.money import Money
from app.core.model.run import PREPARED_RUN_STATES, RunState
from app.core.model.snapshot import JobView, RunView
from app.core.predicting import StatedTimes, with_prediction
from app.core.progress import ProgressRate
from app.db.jobs.affinities import most_under_one
from app.db.learning.run_history import RunTimes

# How long after its last failed start (and the back-off that followed) a job rather takes another offer.
AVOID_OFFER_MS = 600_000


def job_view(row: Row[Any], now_ms: int, not_moved_before_ms: int, usual_image: str, affinity: Affinity) -> JobView:
    """A job's row, with its version's `base_image`, as a decision sees it, without what is predicted of it; but for
    what it states of its speed on GPUs."""
    resources = codec.decode_row(Resources, row.resources)
    image = resources.base_image or row.base_image
    if image != resources.base_image or image == usual_image:
        resources = replace(resources, base_image=None if image == usual_image else image)
    remembers = now_ms < row.not_before_ms + AVOID_OFFER_MS
    return JobView(
        job_id=row.id,
        project_id=row.project_id,
        state=read_as(JobState, row.state),
        row_version=row.row_version,
        submitted_ms=row.submitted_ms,
        deadline_ms=row.deadline_ms,
        deadline_given=row.deadline_given,
        resources=resources,
        kind=read_as(JobKind, row.kind),
        priority_class=read_as(PriorityClass, row.priority_class),
        start=read_as(StartRule, row.start),
        caps=Caps(
            None if row.max_cost_micros is None else Money(row.max_cost_micros),
            row.max_duration_ms,
            None if row.max_hourly_micros is None else Money(row.max_hourly_micros),
            row.max_wait_ms,
        ),
        spent=Money(row.spent_micros),
        serverless_used_ms=row.serverless_used_ms,
        step=row.step,
        total_steps=row.total_steps,
        checkpoint_step=row.checkpoint_step,
        done_ms=row.ran_ms,
        not_before_ms=row.not_before_ms,
        avoided_offers=frozenset(row.avoided_offers) if remembers else frozenset(),
        unreached_offers=frozenset(row.unreached_offers) if remembers else frozenset(),
        not_moved_before_ms=not_moved_before_ms,
        affinity=affinity,
        most_under_one=most_under_one(row.affinity),
        locked=bool(row.affinity.get("locked")),
        unsaved=row.refused_ms is not None,
        saves=row.saves_ms is not None,
        leaving=row.pause_reason is not None or _time_used_up(row, now_ms),
        speeds=None if row.gpu_speeds is None else codec.decode_row(GpuSpeeds, row.gpu_speeds),
    )


def _time_used_up(row: Row[Any], now_ms: int) -> bool:
    if row.first_running_ms is None or row.max_duration_ms is None:
        return False
    return bool(now_ms - row.first_running_ms >= row.max_duration_ms)


def holders(live: Sequence[RunView]) -> dict[str, RunView]:
    """The run of each job: of a move, its source until code of the target runs."""
    last_wins = sorted(live, key=lambda run: (run.state not in PREPARED_RUN_STATES, run.state is not RunState.STOPPING))
    return {job_id: run for run in last_wins for job_id in run.job_ids}


def predicted(
    job: JobView,
    run: RunView | None,
    now_ms: int,
    *,
    on: str | None,
    pace: ProgressRate | None,
    usual: RunTimes | None,
    stated_step_ms: float | None,
    earlier_ms: Mapping[str, float] = MappingProxyType({}),
) -> JobView:
    """By what the present run measured, else by what is usual for its app, else by what the job states of itself: as
    long as that takes `on` the type of GPU of its run, or the one that it names. `earlier_ms`: a step of its earlier
    runs, by type of GPU."""
    times = StatedTimes(job.speeds or UNKNOWN_SPEEDS, stated_step_ms)
    if usual is not None:
        never_saves = usual.saves is False and job.has_never_saved
        job = job if job.never_saves == never_saves else replace(job, never_saves=never_saves)
        speeds = usual.speeds if job.speeds is None else job.speeds.seen_from(usual.speeds.gpu_type)
        times = StatedTimes(speeds, usual.step_ms, usual.run_ms)
    trains = run is not None and run.trains_since_ms is not None
    times = times.on(on or job.resources.gpu_type, job.resources.gpus_min, trains_there=trains)
    own_ms = None if pace is None else pace.step_ms()
    step_ms, speeds = times.step_ms, times.speeds
    if own_ms is not None:
        step_ms, speeds = own_ms, speeds.measured(own_ms, earlier_ms) if earlier_ms else speeds
    seen = None if job.resources.gpu_type is not None else speeds
    return with_prediction(job, run, now_ms, step_ms=step_ms, usual_run_ms=times.run_ms, speeds=seen)
