"""From options to results: every policy on the same scenarios, one for each seed."""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.core.board import Board
from app.core.invariants import plan_breaches
from app.core.model.plan import Plan
from app.core.policies import policy_named, policy_names
from app.core.policy import Policy, PolicyConfig, PolicyState
from app.errors import InvalidInput, UserError
from app.simulator import packages, process_pool
from app.simulator.bound import CLAIRVOYANT, bound
from app.simulator.dynamics import CourseRecorder, Dynamics
from app.simulator.engine import Stuck
from app.simulator.options import Options
from app.simulator.outcomes import JobOutcome, SimulationResult
from app.simulator.ranges.kinds import simulation_of
from app.simulator.scenario import Scenario
from app.simulator.spread import deviations, paired
from app.simulator.traces.job import Trace
from app.simulator.tuning import Tuning

DEFAULT_POLICIES = ("allpass", "allpass-drain", "modal-only", CLAIRVOYANT)
WORTH_A_PROCESS = 20_000  # jobs in all simulations together: fewer are done before processes have paid off
TOLD_EVERY = 500  # decisions


class JobsNeverEnd(UserError):
    """In this scenario the policy leaves jobs waiting for ever."""

    code = "jobs_never_end"


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy under a name, with numbers of its own that go over those of the options."""

    name: str
    policy: str | Policy
    tuning: Tuning = Tuning()  # noqa: RUF009 - a frozen value

    @classmethod
    def plain(cls, policy: str) -> Variant:
        """The policy under its own name. Raises InvalidInput that lists the known ones."""
        known = (*policy_names(), CLAIRVOYANT)
        if policy not in known and policy not in (others := packages.names_of(packages.POLICIES)):
            known += others
            near = difflib.get_close_matches(policy, known, n=1)
            fix = f"the nearest is {near[0]}; " if near else ""
            raise InvalidInput(f"--policy: {policy!r} is not known; {fix}there are {', '.join(known)}", param="policy")
        return cls(policy, policy)

    @classmethod
    def own(cls, policy: Policy) -> Variant:
        """One that a program brings. Raises PackageFailed where it is none."""
        return cls(packages.checked_policy(policy, "policies").name, policy)

    @property
    def is_at_home(self) -> bool:
        """Whether another process could not load it: what is written in a notebook, or holds what lives there alone."""
        if isinstance(self.policy, str):
            return False
        try:
            pickle.dumps(self.policy)
        except Exception:
            return True
        return type(self.policy).__module__ == "__main__"


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """One simulation. `keeps`: whether its jobs and its course are wanted, not only its figures."""

    trace: Trace
    variant: Variant
    options: Options
    seed: int
    keeps_jobs: bool = False
    keeps_course: bool = False
    tells: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """What came of it."""

    name: str
    seed: int
    figures: Mapping[str, Any]
    outcomes: tuple[JobOutcome, ...] = ()
    course: Dynamics | None = None


class OnProgress(Protocol):
    """Called with the number of simulations that are done, with a fraction for those under way, and of all."""

    def __call__(self, done: float, total: int) -> None: ...


def simulate(
    trace: Trace,
    policies: Sequence[str],
    options: Options | None = None,
    seeds: Iterable[int] = (0,),
    progress: OnProgress | None = None,
) -> dict[str, Any]:
    """`{"trace", "jobs", "policies": {NAME: figures}}`, each figure its mean over the seeds."""
    chosen = Options() if options is None else options
    played = play(trace, [Variant.plain(one) for one in policies], chosen, seeds, progress)
    return summary(trace, played)


def play(
    trace: Trace,
    variants: Sequence[Variant],
    options: Options,
    seeds: Iterable[int],
    progress: OnProgress | None = None,
    *,
    keeps_jobs: bool = False,
    keeps_course: bool = False,
) -> list[Played]:
    """All of them, by variant and then by seed. Jobs and courses are kept for the first seed only.

    Several run side by side where that pays; the result is the same.
    """
    questions = [
        SimulationRequest(
            trace, one, options, seed, keeps_jobs and place == 0, keeps_course and place == 0, progress is not None
        )
        for one in variants
        for place, seed in enumerate(seeds)
    ]
    return play_all(questions, progress)


def play_all(questions: Sequence[SimulationRequest], progress: OnProgress | None = None) -> list[Played]:
    """The answer to each question, in their order."""
    shares = dict.fromkeys(range(len(questions)), 0.0)

    def told(place: int, share: float) -> None:
        shares[place] = share
        if progress is not None:
            progress(sum(shares.values()), len(questions))

    many = sum(len(one.trace.jobs) for one in questions) >= WORTH_A_PROCESS
    many = many and not any(one.variant.is_at_home for one in questions)
    return process_pool.answer_all(answer, questions, process_pool.usual_processes() if many else 1, told)


def answer(question: SimulationRequest, tell: Callable[[float], None]) -> Played:
    """Plays one simulation. Raises JobsNeverEnd."""
    options, variant = question.options, question.variant
    course: Dynamics | None = None
    if variant.policy == CLAIRVOYANT:
        result = bound(options.tasks(question.trace, question.seed), options)
    else:
        result, course = _simulated(question, tell)
    tell(1.0)
    outcomes = result.outcomes if question.keeps_jobs else ()
    return Played(variant.name, question.seed, result.figures(), outcomes, course)


def _simulated(question: SimulationRequest, tell: Callable[[float], None]) -> tuple[SimulationResult, Dynamics | None]:
    variant = question.variant
    config = question.options.config(variant.tuning)
    scenario = question.options.scenario(question.trace, question.seed, config)
    recorder = _recorder(scenario, variant, config) if question.keeps_course else None
    policy, is_ours = _policy(variant.policy)
    watches: list[Any] = [recorder] if recorder is not None else []
    if not is_ours:
        watches.append(_judge(variant.name, config))
    if question.tells:
        watches.append(_teller(scenario, tell))

    def watch(*seen: Any) -> None:
        for one in watches:
            one(*seen)

    try:
        kind = simulation_of(scenario, merging=config.merging)
        result = kind(scenario, policy, config, watch if watches else None).run()
    except Stuck as stuck:
        raise JobsNeverEnd(
            f"policy {variant.name}: {stuck}; allow it more nodes (--serverful-limit), or a market that has them",
            param="serverful-limit",
        ) from stuck
    return result, None if recorder is None else recorder.seen


def _policy(given: str | Policy) -> tuple[Policy, bool]:
    """The policy, and whether it is one of Allpass's own."""
    if not isinstance(given, str):
        return given, False
    if given in policy_names():
        return policy_named(given), True
    return packages.policy_of(given), False


def _judge(name: str, config: PolicyConfig) -> Callable[..., None]:
    """Each plan is held against what must never be enacted: an impossible one would show as impossible figures."""
    told = replace(config, explains=False)

    def judge(board: Board, plan: Plan, _state: PolicyState) -> None:
        if not plan.actions:
            return
        breaches = [one for one in plan_breaches(board.snapshot(), plan, told) if not one.endswith("is told nothing")]
        if breaches:
            raise packages.PackageFailed(
                f"policy {name}: what it decides at {board.now_ms / 1000:g} s cannot be: {breaches[0]}", param="policy"
            )

    return judge


def _recorder(scenario: Scenario, variant: Variant, config: PolicyConfig) -> CourseRecorder:
    tasks = scenario.tasks
    end_ms = max(task.submit_ms + task.work_ms for task in tasks)
    fixed_s = config.serverless_budget_ms / 1000 if variant.policy == "fixed-threshold" else None
    return CourseRecorder(tasks[0].submit_ms, tasks[-1].submit_ms, end_ms, fixed_s)


def _teller(scenario: Scenario, tell: Callable[[float], None]) -> Any:
    """Tells by the clock how much is over: until the last submission most of it, then the rest."""
    last_ms = max(1, scenario.tasks[-1].submit_ms)
    decisions = 0

    def told(board: Any, *_: object) -> None:
        nonlocal decisions
        decisions += 1
        if decisions % TOLD_EVERY == 0:
            tell(min(0.95, board.now_ms / last_ms))

    return told


def summary(trace: Trace, played: Iterable[Played]) -> dict[str, Any]:
    """The figures of each policy, as means over its seeds. Of several seeds also `spread`, the standard deviations, and
    `against`, of each policy but the first how it differs from that one (`app.simulator.spread`)."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for one in played:
        by_name.setdefault(one.name, []).append(one.figures)
    found = {
        "trace": trace.name,
        "jobs": len(trace.jobs),
        "policies": {name: mean_figures(figures) for name, figures in by_name.items()},
    }
    first, *others = by_name
    if len(by_name[first]) > 1:
        found["spread"] = {name: deviations(figures) for name, figures in by_name.items()}
        found["against"] = {name: paired(by_name[first], by_name[name]) for name in others}
    return found


def mean_figures(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each figure's mean; of figures by name, the mean of each name, 0 where one lacks it."""
    found: dict[str, Any] = {}
    for name, first in several[0].items():
        if isinstance(first, Mapping):
            inner = sorted({key for one in several for key in one[name]})
            found[name] = {key: _mean([one[name].get(key, 0.0) for one in several]) for key in inner}
        else:
            found[name] = _mean([one[name] for one in several])
    return found


def _mean(values: Sequence[float]) -> float:
    return values[0] if len(set(values)) == 1 else sum(values) / len(values)
