"""All questions of a reproduction, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from app.core.ranking import RankerName
from app.errors import InvalidInput
from app.simulator.classes.jobs import two_classes
from app.simulator.defragmenting.vacating import Looks
from app.simulator.placing import PlacementWorkload, generate_workload
from app.simulator.process_pool import answer_all, usual_processes
from app.simulator.reproduction.spotgpu.months import MonthsQuestion
from app.simulator.reproduction.spotgpu.questions import (
    BACKLOG_SHARE,
    SAVING_SHARE,
    SPOT_SHARE,
    AllocationQuestion,
    EvictionQuestion,
    FleetQuestion,
    PlacementQuestion,
    SnapshotQuestion,
    SpotQuestion,
    SwitchQuestion,
)
from app.simulator.traces.generating import generate
from app.simulator.traces.job import Trace

LOADS, LOCKED = (0.7, 0.85, 1.0), (0.0, 0.4)
FLEETS = (4_000, 37_707)  # nodes: of those that are compared, and of the one that is timed, which has to be larger
RANKERS = (RankerName.BEST_FIT, RankerName.IDLE_GPUS, RankerName.GRADIENT, RankerName.OURS)
USUAL_JOBS, USUAL_NODES = 1_500, 150
POOL_DAYS = 60
Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class SpotReproduced:
    """Each question with its answer."""

    trace: str
    jobs: int
    workload: str
    seeds: tuple[int, ...]
    answers: Sequence[tuple[SpotQuestion, Any]]

    def of(self, kind: type[Asked]) -> Iterator[tuple[Asked, Any]]:
        """The answers to this kind of question."""
        return ((question, found) for question, found in self.answers if isinstance(question, kind))


def usual_jobs() -> Trace:
    """Drawn from Philly's published distributions."""
    return generate("philly", USUAL_JOBS, 1)


def usual_workload() -> PlacementWorkload:
    return generate_workload(USUAL_NODES, 1)


def reproduce_spot(
    trace: Trace,
    workload: PlacementWorkload,
    seeds: Sequence[int],
    progress: Callable[[float, int], None] | None = None,
    processes: int | None = None,
) -> SpotReproduced:
    """Plays everything. InvalidInput for a trace in which nothing runs."""
    questions = list(_questions(trace, workload, seeds))
    shares = [0.0] * len(questions)

    def told(place: int, share: float) -> None:
        shares[place] = share
        if progress is not None:
            progress(sum(shares), len(shares))

    answers: list[Any] = answer_all(_answer, questions, processes or usual_processes(), told)
    return SpotReproduced(
        trace.name, len(trace.jobs), workload.name, tuple(seeds), list(zip(questions, answers, strict=True))
    )


def _questions(trace: Trace, workload: PlacementWorkload, seeds: Sequence[int]) -> Iterator[SpotQuestion]:
    jobs = tuple(job for job in trace.jobs if job.duration_s > 0)
    for share, seed in product((SPOT_SHARE, BACKLOG_SHARE), seeds):
        if len({one.spot for one in two_classes(jobs, share, SAVING_SHARE, seed)}) < 2:
            raise InvalidInput(
                f"trace: {trace.name} has {len(jobs)} jobs that run, and seed {seed} makes them all spot or all "
                "guaranteed; give more jobs",
                param="trace",
            )
    compared, timed = FLEETS
    yield from (MonthsQuestion(POOL_DAYS, looks, seed) for seed in seeds for looks in reversed(Looks))  # the longest
    yield FleetQuestion(timed, LOCKED[-1], seeds[0])
    for seed in seeds:
        yield from (EvictionQuestion(jobs, load, seed) for load in LOADS)
        yield AllocationQuestion(jobs, seed)
        yield from (FleetQuestion(compared, locked, seed) for locked in LOCKED)
        yield from (SnapshotQuestion(jobs, locked, seed) for locked in LOCKED)
        yield SwitchQuestion(seed)
        yield from (PlacementQuestion(workload, name, seed) for name in RANKERS)


def _answer(question: SpotQuestion, _tell: Callable[[float], None]) -> Any:
    return question.answer()
