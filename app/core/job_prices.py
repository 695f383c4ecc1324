"""What an hour of work costs a job on a machine: more than it costs others, where it saves less, or leaves soon.

`weighed_micros` takes the job to save every few minutes. One that saves by itself does so when it likes, and one that
never saves does all of its work in one stretch: where machines fail, they lose more. And whoever comes to a fresh
machine pays for its arrival (`app.core.arrivals`), which an hour of a long job bears better than one of a short job.
An hour of work is one by the job's times: where GPUs are slower it takes longer, and all of that is paid for.
"""

from __future__ import annotations

from app.core.gpu_speeds import SAME, GpuSpeeds, time_permille
from app.core.machine_lives import SAVES_EVERY_MS, weighed_micros
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, NodeView

OWN_SAVES_MS = 1_800_000
"""How far apart the saves of a job are taken to be that saves by itself: half an hour. Assumed; nobody tells it."""

HOUR_MS = 3_600_000
_LEAST_MS = 60_000


def stretch_ms(job: JobView) -> int:
    """How much work is lost at most when its machine fails; 0: as little as of any job that saves when it is asked."""
    if job.saves:
        return 0
    if job.saves_by_itself:
        return OWN_SAVES_MS
    if not job.never_saves or job.total_run_ms is None:
        return 0
    return max(SAVES_EVERY_MS, _floor_ms(job.total_run_ms))


def staying_ms(job: JobView) -> int:
    """The work that it brings to its next machine, down to a power of two of minutes, so that all of about one length
    are answered alike; 0: nobody knows."""
    return 0 if job.total_run_ms is None else _floor_ms(job.total_run_ms - job.done_ms)


def _floor_ms(time_ms: int) -> int:
    minutes = max(1, time_ms // _LEAST_MS)
    return _LEAST_MS << (minutes.bit_length() - 1)


def job_micros(one: Offer | NodeView, job: JobView) -> int:
    """What an hour of the job's work costs there, in micro-dollars, once it is there."""
    return slowed_micros(weighed_micros(one, stretch_ms(job)), one, job.speeds)


def usual_micros(one: Offer | NodeView, job: JobView) -> int:
    """The same of a job that saves every few minutes, whatever this one does."""
    return slowed_micros(weighed_micros(one), one, job.speeds)


def slowed_micros(hourly: int, one: Offer | NodeView, speeds: GpuSpeeds | None) -> int:
    """What an hour of work costs, of what an hour there does."""
    return hourly if speeds is None else hourly * time_permille(speeds, one.gpu_type) // SAME


def entered_micros(one: Offer | NodeView, stretch: int, staying: int, speeds: GpuSpeeds | None = None) -> int:
    """As `job_micros`, on a machine that is rented for it, with its arrival. `stretch`, `staying`: of the job, as
    above."""
    micros = slowed_micros(weighed_micros(one, stretch), one, speeds)
    return micros if not staying else micros + arrival_cost(one) // staying


def arrival_cost(one: Offer | NodeView) -> int:
    """What one arrival costs on all of its GPUs, in micro-dollar-milliseconds per hour, as moves are counted in."""
    return one.price_per_hour.micros * one.arrival_ms + one.arrival_micros * HOUR_MS
