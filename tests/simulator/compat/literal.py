"""The semantics of the public Tiresias simulator as plainly as they can be told: lists that are walked at every event.

Quadratic, and with none of the shortcuts of `app.simulator.compat`, which must agree with it on every job.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.simulator.traces.job import Trace

LIMITS = (3250, 7200)
Result = tuple[int | None, int | None, int, int]  # start, end, preemptions, resumptions


@dataclass(eq=False)
class Job:
    job_id: str
    arrives: int
    duration: int
    gpus: int
    start: int | None = None
    end: int | None = None
    executed: int = 0
    running: bool = False
    preemptions: int = 0
    resumptions: int = 0
    level: int = 0

    def remaining(self) -> int:
        return self.duration - self.executed


def replayed(trace: Trace, schedule: str, gpus: int) -> dict[str, Result]:
    jobs = [Job(one.job_id, int(one.submit_s), int(one.duration_s), one.gpus) for one in trace.jobs]
    starts: dict[int, list[Job]] = {}
    for job in jobs:
        starts.setdefault(job.arrives, []).append(job)
    if schedule in ("fifo", "fjf"):
        _queue(starts, gpus, skip=schedule == "fjf")
    elif schedule == "dlas-gpu":
        _las(starts, gpus)
    else:
        _shortest(starts, gpus, weighted=schedule == "shortest-gpu")
    return {job.job_id: (job.start, job.end, job.preemptions, job.resumptions) for job in jobs}


def _queue(starts: dict[int, list[Job]], gpus: int, *, skip: bool) -> None:
    """An end that is booked at the very instant that is being dealt with is lost."""
    events: dict[int, tuple[list[Job], list[Job]]] = {at: ([], arrived) for at, arrived in starts.items()}
    line: list[Job] = []
    free = gpus
    while events:
        now = min(events)
        ended, arrived = events[now]
        for job in ended:
            free += job.gpus
            job.end = now
        line += arrived
        for job in list(line):
            if job.gpus > free:
                if not skip:
                    break
                continue
            free -= job.gpus
            line.remove(job)
            job.start = now
            events.setdefault(now + job.duration, ([], []))[0].append(job)
        del events[now]


def _advance(jobs: list[Job], by: int) -> None:
    for job in jobs:
        if job.running:
            job.executed += by


def _assign(order: list[Job], gpus: int, now: int) -> None:
    """GPUs for each in turn, as long as there are enough."""
    free = gpus
    for job in order:
        fits = job.gpus <= free
        free -= job.gpus if fits else 0
        if fits and not job.running:
            job.resumptions += 1
            job.start = now if job.start is None else job.start
        elif job.running and not fits:
            job.preemptions += 1
        job.running = fits


def _shortest(starts: dict[int, list[Job]], gpus: int, *, weighted: bool) -> None:
    order: list[Job] = []
    now = 0
    arrivals = sorted(starts)
    while True:
        ends = [now + job.remaining() for job in order if job.running]
        if not ends and not arrivals:
            return
        then = min([*ends, *arrivals[:1]])
        _advance(order, then - now)
        now = then
        for job in [one for one in order if one.running and one.remaining() == 0]:
            job.end = now
            order.remove(job)
        if arrivals and arrivals[0] == now:
            order += starts[arrivals.pop(0)]
        order.sort(key=lambda job: job.remaining() * (job.gpus if weighted else 1))
        _assign(order, gpus, now)


def _las(starts: dict[int, list[Job]], gpus: int) -> None:
    active: list[Job] = []  # in the order of arrival
    levels: list[list[Job]] = [[], [], []]
    noted: dict[int, list[Job]] = {}  # by arrival: what was to end in that second when it was last looked at
    now = 0
    arrivals = sorted(starts)
    while True:
        running = [job for job in active if job.running]
        if not running and not arrivals:
            return
        end = min((now + job.remaining() for job in running), default=None)
        ending = [job for job in running if now + job.remaining() == end]
        arrival = arrivals[0] if arrivals else None
        if arrival is not None and end == arrival:
            noted[arrival] = ending
        then = min(one for one in (end, arrival) if one is not None)
        looks = [now + (LIMITS[job.level] - job.executed) // job.gpus for job in running if job.level < 2]
        gone: list[Job] = []
        fresh: list[Job] = []
        if looks and min(looks) < then:
            then = min(looks)
        elif then == arrival:
            gone, fresh = noted.get(then, []), starts[arrivals.pop(0)]
        else:
            gone = ending
        _advance(active, then - now)
        now = then
        for job in gone:
            job.running = False
            job.end = now
            active.remove(job)
            levels[job.level].remove(job)
        active += fresh
        levels[0] += fresh
        for job in active:
            if job.running and job.level < 2 and job.executed * job.gpus >= LIMITS[job.level]:
                levels[job.level].remove(job)
                job.level += 1
                levels[job.level].append(job)
        _assign([job for level in levels for job in level], gpus, now)
        for number, level in enumerate(levels):
            levels[number] = [job for job in level if job.running] + [job for job in level if not job.running]
