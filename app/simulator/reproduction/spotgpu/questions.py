"""What is asked of the core, one play each; every question can be answered in a process of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from app.core.defragmentation import PackedNode, PackedTask, least_nodes, whole_nodes
from app.core.eviction import EvictionRule
from app.core.ranking import RankerName
from app.core.topology import allocate, allocate_literally, entropy
from app.simulator.classes.figures import TwoClassFigures, figures_of, share_held
from app.simulator.classes.jobs import NODE_GPUS, TwoClassJob, nodes_for, two_classes
from app.simulator.classes.playing import TwoClassSetting, play_two_classes
from app.simulator.classes.running import TwoClassRun
from app.simulator.placing import PlacementWorkload, arrivals, play
from app.simulator.reproduction.spotgpu.fleets import generate_fleet
from app.simulator.reproduction.spotgpu.months import MonthsQuestion
from app.simulator.traces.job import TraceJob

SPOT_SHARE, SAVING_SHARE = 0.3, 0.5
GUARANTEED_SHARE = 0.68  # of the pool's GPUs is asked for by guaranteed jobs: the paper's figure is put in
BACKLOG_SHARE = 0.5  # of the jobs are spot there: as much again is asked for as by guaranteed jobs, more than there is
SWITCH_CASES = 400


@dataclass(frozen=True, slots=True)
class EvictionQuestion:
    """The same jobs under every rule, in a pool of which they ask for so large a part."""

    jobs: tuple[TraceJob, ...]
    load: float
    seed: int

    def answer(self) -> dict[EvictionRule, TwoClassFigures]:
        jobs, nodes = two_classes(self.jobs, SPOT_SHARE, SAVING_SHARE, self.seed), nodes_for(self.jobs, self.load)
        return {
            rule: figures_of(play_two_classes(jobs, TwoClassSetting(nodes, rule, self.seed))) for rule in EvictionRule
        }


@dataclass(frozen=True, slots=True)
class AllocationFigures:
    """`alone`: which part of the GPUs guaranteed jobs hold if nobody else is there; `both`: with spot jobs."""

    alone: float
    both: float
    figures: TwoClassFigures


@dataclass(frozen=True, slots=True)
class AllocationQuestion:
    """A pool in which guaranteed jobs ask for GUARANTEED_SHARE of the GPUs, without and with a backlog of spot jobs."""

    jobs: tuple[TraceJob, ...]
    seed: int

    def answer(self) -> AllocationFigures:
        nodes, guaranteed, jobs = _pool_of(self.jobs, self.seed)
        setting = TwoClassSetting(nodes, EvictionRule.LOST_WORK, self.seed)
        alone, both = play_two_classes(guaranteed, setting), play_two_classes(jobs, setting)
        return AllocationFigures(share_held(alone, nodes), share_held(both, nodes), figures_of(both))


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """`partly`: nodes of which some GPUs are taken and some are free, before and after. `occupied`, `vacated`, `bound`:
    nodes with tasks, nodes that were emptied, and the fewest that could hold all tasks."""

    partly_before: int
    partly_after: int
    occupied: int
    vacated: int
    bound: int
    moves: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FleetQuestion:
    """One defragmentation of a generated fleet."""

    nodes: int
    locked: float
    seed: int

    def answer(self) -> FleetFigures:
        return _defragmented(*generate_fleet(self.nodes, self.locked, self.seed))


@dataclass(frozen=True, slots=True)
class SnapshotQuestion:
    """One defragmentation of the pool of AllocationQuestion, in the middle of the submissions."""

    jobs: tuple[TraceJob, ...]
    locked: float
    seed: int

    def answer(self) -> FleetFigures:
        nodes, _, jobs = _pool_of(self.jobs, self.seed)
        runs = play_two_classes(jobs, TwoClassSetting(nodes, EvictionRule.LOST_WORK, self.seed))
        now_ms = (min(job.submit_ms for job in jobs) + max(job.submit_ms for job in jobs)) // 2
        chance = Random(self.seed)  # noqa: S311 - a simulation
        tasks = [
            PackedTask(f"{name}-{number}", node_id, gpus, 0, 0, locked=chance.random() < self.locked)
            for number, (name, node_id, gpus) in enumerate(_held_at(runs, now_ms))
        ]
        fleet = [PackedNode(f"n{number:05d}", NODE_GPUS, 0, 0) for number in range(nodes)]
        return _defragmented(fleet, tasks)


@dataclass(frozen=True, slots=True)
class SwitchFigures:
    """In how many of the cases another allocation has less entropy."""

    literal: int
    ours: int


@dataclass(frozen=True, slots=True)
class SwitchQuestion:
    """Random gangs on two to five switches with at most eight free GPUs, against all ways to allocate them."""

    seed: int

    def answer(self) -> SwitchFigures:
        chance = Random(self.seed)  # noqa: S311 - a simulation
        literal = ours = 0
        for _ in range(SWITCH_CASES):
            free = {f"s{number}": chance.randint(1, NODE_GPUS) for number in range(chance.randint(2, 5))}
            gpus = chance.randint(2, sum(free.values()))
            least = _least_entropy(list(free.values()), gpus) + 1e-9
            literal += entropy((allocate_literally(free, gpus) or {}).values()) > least
            ours += entropy((allocate(free, gpus) or {}).values()) > least
        return SwitchFigures(literal, ours)


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """The share of the GPUs that is given out once pods have asked for all of them."""

    workload: PlacementWorkload
    ranker: RankerName
    seed: int

    def answer(self) -> float:
        return play(self.workload, self.ranker, arrivals(self.workload, 1.0, self.seed), [1.0]).allocated[1.0]


SpotQuestion = (
    EvictionQuestion
    | AllocationQuestion
    | FleetQuestion
    | SnapshotQuestion
    | SwitchQuestion
    | PlacementQuestion
    | MonthsQuestion
)


def _pool_of(jobs: Sequence[TraceJob], seed: int) -> tuple[int, list[TwoClassJob], list[TwoClassJob]]:
    """Nodes, the guaranteed jobs, and all jobs."""
    drawn = two_classes(jobs, BACKLOG_SHARE, SAVING_SHARE, seed)
    guaranteed = [one for one in drawn if not one.spot]
    asked_for = [job for job, one in zip(jobs, drawn, strict=True) if not one.spot]
    largest = max(one.parts for one in drawn)
    return max(nodes_for(asked_for, GUARANTEED_SHARE), largest), guaranteed, drawn


def _held_at(runs: Iterable[TwoClassRun], now_ms: int) -> Iterator[tuple[str, str, int]]:
    """Job, node and GPUs of each part that runs then."""
    for run in runs:
        for one in run.held:
            if one.from_ms <= now_ms < one.until_ms:
                for node_id, parts in one.places.items():
                    yield from itertools.repeat((run.job.job_id, node_id, run.job.part_gpus), parts)


def _defragmented(fleet: Sequence[PackedNode], tasks: Sequence[PackedTask]) -> FleetFigures:
    began_s = time.perf_counter()
    plan = whole_nodes(fleet, tasks)
    seconds = time.perf_counter() - began_s
    where = {task.id: task.node_id for task in tasks}
    occupied, before = len(set(where.values())), _partly_used(fleet, tasks, where)
    where.update((move.task_id, move.target_id) for move in plan.moves)
    return FleetFigures(
        partly_before=before,
        partly_after=_partly_used(fleet, tasks, where),
        occupied=occupied,
        vacated=occupied - len(set(where.values())),
        bound=least_nodes(fleet, tasks),
        moves=len(plan.moves),
        seconds=seconds,
    )


def _partly_used(fleet: Iterable[PackedNode], tasks: Iterable[PackedTask], where: Mapping[str, str]) -> int:
    taken: dict[str, int] = {}
    for task in tasks:
        taken[where[task.id]] = taken.get(where[task.id], 0) + task.gpus
    return sum(0 < taken.get(node.id, 0) < node.gpus for node in fleet)


def _least_entropy(free: Sequence[int], gpus: int) -> float:
    ways = itertools.product(*(range(min(have, gpus) + 1) for have in free))
    return min(entropy(way) for way in ways if sum(way) == gpus)
