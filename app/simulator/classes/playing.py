"""Plays jobs of two classes on nodes of eight GPUs: guaranteed jobs evict, spot jobs start where there is room.

Every decision is the core's: `place_beside`, `choose_victims`, `cost_of_ending`, `free_for`. Jobs wait by class and
shape, each in the order of submission; a job that does not fit holds up only those of its own shape. A guaranteed job
for which jobs end has its places reserved, and starts when they are free.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from app.core.eviction import (
    EvictionRule,
    GuaranteedNeed,
    NodeRoom,
    PoolHabits,
    Reservation,
    SpotJob,
    Victims,
    choose_victims,
    cost_of_ending,
    free_for,
    place_beside,
)
from app.simulator.classes.jobs import NODE_GPUS, TwoClassJob
from app.simulator.classes.running import SavingTimes, TwoClassRun

_Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TwoClassSetting:
    """A pool of so many nodes, a rule, and the seed of the rule `random`."""

    nodes: int
    rule: EvictionRule
    seed: int = 0
    times: SavingTimes = field(default_factory=SavingTimes)


def play_two_classes(jobs: Iterable[TwoClassJob], setting: TwoClassSetting) -> list[TwoClassRun]:
    """Every job to its end, in the order given. A job larger than the pool raises ValueError."""
    play = _Play(setting)
    for job in jobs:
        if job.parts > setting.nodes:
            raise ValueError(f"{job.job_id} needs {job.parts} of {setting.nodes} nodes")
        play.submit(job)
    play.to_the_end()
    return list(play.runs.values())


class _Play:
    def __init__(self, setting: TwoClassSetting) -> None:
        self.runs: dict[str, TwoClassRun] = {}
        self._setting = setting
        self._times = setting.times
        self._chance = Random(setting.seed)  # noqa: S311 - a simulation
        self._now_ms = 0
        self._events: list[tuple[int, int, str, int]] = []  # instant, 0 free / 1 submit / 2 look, job, turn
        self._waiting: dict[bool, dict[_Shape, list[tuple[int, str]]]] = {True: {}, False: {}}
        self._rooms = {f"n{number:05d}": NodeRoom(f"n{number:05d}", (NODE_GPUS,)) for number in range(setting.nodes)}
        self._idle = dict.fromkeys(self._rooms, NODE_GPUS)
        self._spot: dict[str, TwoClassRun] = {}  # running, not leaving
        self._reserved: dict[str, list[Reservation]] = {}
        self._awaited: dict[str, tuple[Victims, set[str]]] = {}  # by guaranteed job: for whom it waits
        self._tries = self._saved = 0

    def submit(self, job: TwoClassJob) -> None:
        self.runs[job.job_id] = TwoClassRun(job)
        heappush(self._events, (job.submit_ms, 1, job.job_id, 0))

    def to_the_end(self) -> None:
        while self._events:
            self._now_ms = self._events[0][0]
            while self._events and self._events[0][0] == self._now_ms:
                _, kind, job_id, turn = heappop(self._events)
                run = self.runs[job_id]
                if kind == 1:
                    self._queue(run)
                elif kind == 0 and run.turn == turn:
                    self._freed(run)
            self._look()

    def _queue(self, run: TwoClassRun) -> None:
        lines = self._waiting[run.job.spot]
        insort(lines.setdefault((run.job.part_gpus, run.job.parts), []), (run.job.submit_ms, run.job.job_id))

    def _freed(self, run: TwoClassRun) -> None:
        """A job is done, or has left."""
        for node_id, parts in run.places.items():
            self._idle[node_id] += parts * run.job.part_gpus
            self._room(node_id, guaranteed=0 if run.job.spot else -1, evicted=run.leaving)
        run.give_back(self._now_ms)
        self._spot.pop(run.job.job_id, None)
        if run.leaving:
            run.leaving = False
            self._queue(run)
        else:
            run.done(self._now_ms)
        for job_id, (victims, left) in list(self._awaited.items()):
            left.discard(run.job.job_id)
            if not left:
                del self._awaited[job_id]
                self._start(self.runs[job_id], victims.places)

    def _look(self) -> None:
        """Whoever waits, guaranteed jobs first, each shape until one of it finds no place."""
        for spot in (False, True):
            lines = self._waiting[spot]
            stuck: set[_Shape] = set()
            while heads := sorted((line[0], shape) for shape, line in lines.items() if line and shape not in stuck):
                for (_, job_id), shape in heads:
                    if any(gpus <= shape[0] and parts <= shape[1] for gpus, parts in stuck):
                        stuck.add(shape)
                    elif self._find(self.runs[job_id]):
                        lines[shape].pop(0)
                    else:
                        stuck.add(shape)

    def _find(self, run: TwoClassRun) -> bool:
        """A place without eviction, else (for a guaranteed job) by eviction."""
        places = self._places(run.job)
        if places is not None:
            self._start(run, places)
            return True
        return not run.job.spot and self._evict_for(run)

    def _places(self, job: TwoClassJob) -> dict[str, int] | None:
        rooms = {one.node_id: one for one in self._rooms.values() if one.free[0] >= job.part_gpus}
        places: dict[str, int] = defaultdict(int)
        for _ in range(job.parts):
            found = place_beside((job.part_gpus,), job.spot, rooms.values(), self._now_ms)
            if found is None:
                return None
            places[found.node_id] += 1
            left = (found.free[0] - job.part_gpus,)
            rooms[found.node_id] = NodeRoom(found.node_id, left, found.guaranteed_jobs, found.evictions)
        return dict(places)

    def _evict_for(self, run: TwoClassRun) -> bool:
        need = GuaranteedNeed(run.job.job_id, (run.job.part_gpus,), run.job.parts)
        jobs = [self._seen(one) for one in self._spot.values()]
        draws = {job.job_id: self._chance.random() for job in jobs} if self._setting.rule is EvictionRule.RANDOM else {}
        chosen = choose_victims(need, self._rooms.values(), jobs, self._setting.rule, self._now_ms, draws)
        if not isinstance(chosen, Victims):
            return False
        # whoever ends leaves within the grace, so these never expire before the job starts
        for one in chosen.reservations(need, self._now_ms + self._times.reserved_ms):
            self._reserved.setdefault(one.node_id, []).append(one)
            self._room(one.node_id)
        for job_id in chosen.ended:
            victim = self._spot.pop(job_id)
            heappush(self._events, (victim.leave(self._now_ms, self._times), 0, job_id, victim.turn))
            self._tries, self._saved = self._tries + 1, self._saved + victim.job.saves
        self._awaited[run.job.job_id] = chosen, set(chosen.ended)
        return True

    def _seen(self, run: TwoClassRun) -> SpotJob:
        saving = run.saving(self._now_ms, self._times)
        habits = PoolHabits((self._tries - self._saved + 1) / (self._tries + 2))
        return SpotJob(
            job_id=run.job.job_id,
            holds={node_id: (parts * run.job.part_gpus,) for node_id, parts in run.places.items()},
            gpus=run.job.gpus,
            started_ms=saving.started_ms,
            saved_ms=saving.saved_ms or 0,
            cost=cost_of_ending(saving, run.job.gpus, habits, self._now_ms),
            protected_until_ms=saving.started_ms + self._times.minimum_run_ms,
        )

    def _start(self, run: TwoClassRun, places: Mapping[str, int]) -> None:
        job = run.job
        heappush(self._events, (run.start(self._now_ms, places, self._times), 0, job.job_id, run.turn))
        if job.spot:
            self._spot[job.job_id] = run
        for node_id, parts in places.items():
            self._idle[node_id] -= parts * job.part_gpus
            if self._idle[node_id] < 0:
                raise RuntimeError(f"{node_id} is given out twice")
            held = [one for one in self._reserved.get(node_id, ()) if one.job_id != job.job_id]
            self._reserved[node_id] = held
            self._room(node_id, guaranteed=0 if job.spot else 1)

    def _room(self, node_id: str, guaranteed: int = 0, evicted: bool = False) -> None:
        """The node as others see it from now on."""
        old = self._rooms[node_id]
        free = free_for("", node_id, (self._idle[node_id],), self._reserved.get(node_id, ()), self._now_ms)
        evictions = old.evictions.one_more(self._now_ms) if evicted else old.evictions
        self._rooms[node_id] = NodeRoom(node_id, free, old.guaranteed_jobs + guaranteed, evictions)
