"""Plays jobs on the hosts of a pool, decided as a pool of one's own is live.

Whoever comes begins on the host that has the fewest GPUs left then. Jobs on several machines come before others, under
as few switches as can be; for the first of them that has waited for `RESERVE_AFTER_MS` hosts are kept. Others wait in
the order of their submission, and one that does not fit holds up only those that ask for at least as much. What is
vacated, and when, is `Vacating`'s.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import islice

from app.core.defragmentation import MoveHabits, MoveNow, SeenFleet
from app.core.gangs import RESERVE_AFTER_MS
from app.core.model.move import MoveState
from app.simulator.defragmenting.figures import PoolFigures, Watching
from app.simulator.defragmenting.hosts import PoolHosts
from app.simulator.defragmenting.jobs import PoolJob
from app.simulator.defragmenting.seeing import RunningJob, host_of, place_of, see
from app.simulator.defragmenting.vacating import Schedule, Vacating

_MOST_SEEN = 20  # jobs that wait, of each size on several machines; of one on one machine the first speaks for all
_Shape = tuple[int, int]  # machines, and GPUs of each
# What moves take where nothing is measured: settings `move_save_s`, `move_load_s` and `move_prepare_s`.
USUAL_HABITS = MoveHabits(pause_ms=84_000, prepare_ms=20_000, failed_share=0.0)


@dataclass(frozen=True, slots=True)
class PoolSetting:
    """A pool of so many hosts, so many of them under each switch. `counts_from_ms`: what is before is not counted."""

    hosts: int
    schedule: Schedule = field(default_factory=Schedule)
    habits: MoveHabits = USUAL_HABITS
    switch_hosts: int = 32
    counts_from_ms: int = 0


def play_pool(jobs: list[PoolJob], setting: PoolSetting) -> PoolFigures:
    """From the first submission to the last. Raises ValueError for a job that is larger than the pool."""
    play = _Play(setting)
    for job in jobs:
        if job.parts > setting.hosts:
            raise ValueError(f"{job.job_id} needs {job.parts} of {setting.hosts} hosts")
        play.submit(job)
    return play.to_the_last_submission()


class _Kind(IntEnum):
    """Of events at one instant the first comes first."""

    ENDS = 0  # a job is done
    PAUSES = 1  # a job that moves: the next place is prepared
    LEAVES = 2  # it goes on there
    COMES = 3
    TICKS = 4  # of the defragmentation: a round
    LOOKS = 5
    WAKES = 6  # whoever has waited for long


class _Play:
    def __init__(self, setting: PoolSetting) -> None:
        self._setting, self._now_ms = setting, 0
        self._hosts = PoolHosts(setting.hosts, setting.switch_hosts)
        self._watching = Watching(setting.hosts, setting.counts_from_ms)
        self._vacating = Vacating(setting.schedule, self._begin_move, self._moves_now)
        self._events: list[tuple[int, _Kind, str, int]] = []
        self._jobs: dict[str, PoolJob] = {}
        self._running: dict[str, RunningJob] = {}
        self._waiting: dict[_Shape, list[tuple[int, str]]] = {}
        self._moves: dict[str, MoveNow] = {}
        self._move_of: dict[str, str] = {}  # by job
        self._kept: dict[str, str] = {}  # hosts for a job on several machines
        self._last_ms = 0

    def submit(self, job: PoolJob) -> None:
        self._jobs[job.job_id] = job
        self._last_ms = max(self._last_ms, job.submit_ms)
        heappush(self._events, (job.submit_ms, _Kind.COMES, job.job_id, 0))

    def to_the_last_submission(self) -> PoolFigures:
        heappush(self._events, (self._setting.schedule.every_ms, _Kind.LOOKS, "", 0))
        while self._events and self._events[0][0] <= self._last_ms:
            self._watching.pass_until(self._events[0][0], self._hosts.partly_used, self._hosts.used_gpus)
            self._now_ms = self._events[0][0]
            while self._events and self._events[0][0] == self._now_ms:
                self._handle(*heappop(self._events)[1:])
            self._place_all()
        for line in self._waiting.values():
            for _, job_id in line:
                self._watching.waited(self._jobs[job_id], self._last_ms, has_begun=False)
        return self._watching.figures(self._vacating.vacated, self._vacating.dropped)

    def _handle(self, kind: _Kind, job_id: str, turn: int) -> None:
        if kind is _Kind.COMES:
            self._come(self._jobs[job_id])
        elif kind is _Kind.LOOKS:
            self._at(self._setting.schedule.every_ms, _Kind.LOOKS)
            if self._vacating.may_look:
                self._vacating.look(self._seen())
                self._go_on()
        elif kind is _Kind.TICKS:
            self._go_on()
        elif kind is not _Kind.WAKES:
            one = self._running.get(job_id)
            if one is not None and (kind is not _Kind.ENDS or one.turn == turn):
                self._handle_run(kind, one)

    def _handle_run(self, kind: _Kind, one: RunningJob) -> None:
        if kind is _Kind.ENDS:
            self._end(one)
        elif kind is _Kind.PAUSES and one.target is not None:
            self._pause(one)
        elif kind is _Kind.LEAVES and one.target is not None:
            self._leave(one, one.target)

    def _at(self, in_ms: int, kind: _Kind, job_id: str = "", turn: int = 0) -> None:
        heappush(self._events, (self._now_ms + in_ms, kind, job_id, turn))

    # Jobs come, begin and end

    def _come(self, job: PoolJob) -> None:
        insort(self._waiting.setdefault((job.parts, job.part_gpus), []), (job.submit_ms, job.job_id))
        if job.parts > 1:
            self._at(RESERVE_AFTER_MS, _Kind.WAKES)

    def _place_all(self) -> None:
        closed = {host_of(place) for place in self._vacating.closed()}
        self._kept = {}
        self._place_those([shape for shape in self._waiting if shape[0] > 1], closed)
        self._place_those([shape for shape in self._waiting if shape[0] == 1], closed)

    def _place_those(self, shapes: list[_Shape], closed: set[str]) -> None:
        """In the order of their submission, each shape until one of it finds no place."""
        stuck: list[_Shape] = []
        while heads := sorted(
            (self._waiting[one][0], one) for one in shapes if self._waiting[one] and one not in stuck
        ):
            for (_, job_id), shape in heads:
                if any(parts <= shape[0] and gpus <= shape[1] for parts, gpus in stuck):
                    stuck.append(shape)
                elif self._place(self._jobs[job_id], closed):
                    self._waiting[shape].pop(0)
                else:
                    stuck.append(shape)

    def _place(self, job: PoolJob, closed: set[str]) -> bool:
        shut = closed | self._kept.keys()
        if job.parts == 1:
            found = self._hosts.tightest(job.part_gpus, shut)
            hosts = None if found is None else [found]
        else:
            hosts = self._hosts.whole(job.parts, shut)
        if hosts is None:
            if job.parts > 1 and not self._kept and self._now_ms - job.submit_ms >= RESERVE_AFTER_MS:
                self._kept = dict.fromkeys(self._hosts.emptiest(job.parts, closed), job.job_id)
            return False
        for host in hosts:
            self._hosts.take(host, job.part_gpus)
        ends_ms = self._now_ms + job.work_ms
        self._running[job.job_id] = RunningJob(job, tuple(hosts), self._now_ms, ends_ms)
        self._at(job.work_ms, _Kind.ENDS, job.job_id)
        self._watching.waited(job, self._now_ms, has_begun=True)
        return True

    def _end(self, one: RunningJob) -> None:
        del self._running[one.job.job_id]
        for host in one.hosts:
            self._hosts.take(host, -one.job.part_gpus)
        if one.target is not None:
            self._hosts.take(one.target, -one.job.part_gpus)
            self._moves[self._move_of.pop(one.job.job_id)] = MoveNow(MoveState.ABANDONED, "its job has ended")

    # Moves

    def _seen(self) -> SeenFleet:
        lines = [(line, _MOST_SEEN if parts > 1 else 1) for (parts, _), line in self._waiting.items()]
        waiting = [self._jobs[job_id] for line, most in lines for _, job_id in islice(line, most)]
        kept = {place_of(host): job_id for host, job_id in self._kept.items()}
        return see(self._hosts, self._running, waiting, kept, self._setting.habits, self._now_ms)

    def _go_on(self) -> None:
        if self._vacating.is_open:
            self._vacating.go_on(self._seen())
        if self._vacating.is_open:
            self._at(self._setting.schedule.tick_ms, _Kind.TICKS)
        else:
            self._moves.clear()

    def _moves_now(self, move_id: str) -> MoveNow | None:
        return self._moves.get(move_id)

    def _begin_move(self, job_id: str, place: str) -> str | None:
        one, target = self._running.get(job_id), host_of(place)
        if one is None or one.target is not None or self._hosts.free[target] < one.job.part_gpus:
            return None
        self._hosts.take(target, one.job.part_gpus)
        one.target = target
        move_id = f"{job_id}@{self._now_ms}"
        self._moves[move_id], self._move_of[job_id] = MoveNow(MoveState.PREPARING), move_id
        self._at(self._setting.habits.prepare_ms, _Kind.PAUSES, job_id)
        return move_id

    def _pause(self, one: RunningJob) -> None:
        """It trains no further until it has left."""
        pause_ms = self._setting.habits.pause_ms
        one.done_ms += self._now_ms - one.since_ms
        one.ends_ms += pause_ms
        one.turn += 1
        self._at(one.ends_ms - self._now_ms, _Kind.ENDS, one.job.job_id, one.turn)
        self._at(pause_ms, _Kind.LEAVES, one.job.job_id)
        self._watching.moved(one.job, self._now_ms, pause_ms)

    def _leave(self, one: RunningJob, target: str) -> None:
        (source,) = one.hosts
        self._hosts.take(source, -one.job.part_gpus)
        one.hosts, one.since_ms, one.target = (target,), self._now_ms, None
        self._moves[self._move_of.pop(one.job.job_id)] = MoveNow(MoveState.DONE)
