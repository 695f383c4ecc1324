"""A search for cases in which `allpass` is a bad choice: dearer than a simple policy, and no better for it.

A case is a workload and a world, drawn from a number and said in the words of `allpass simulate`, so that whoever is
shown one can play it. What is found is made smaller: fewer jobs, and options as usual where they do not matter.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from app.simulator import process_pool
from app.simulator.options import Options
from app.simulator.running import JobsNeverEnd, Played, SimulationRequest, Variant, answer, mean_figures
from app.simulator.traces.generating import CLUSTERS, generate
from app.simulator.traces.job import Trace
from app.simulator.worlds.known import FRIENDLY

OURS = "allpass"
SIMPLE = ("modal-only", "fixed-threshold", "hpa", "allpass-drain", "cheapest-first")
SEEDS = range(2)
WORTH_PROCESSES = 8  # cases
WAITS_LESS_S, WAITS_LESS_SHARE = 5.0, 0.1  # what makes waiting clearly less
MISSES_LESS_SHARE = 0.01  # of the jobs
_DRAWN: Mapping[str, tuple[str, ...]] = {
    "gpus": ("one", "one", "trace"),
    "knowledge": ("submit:0.2", "none", "after:60:0.2", "submit:ln0.8", "submit:0.2,wrong=0.3", "submit:0.2,bias=0.1"),
    "deadlines": ("1-10", "1.03-1.5", "6h", "1-2"),
    "move-seconds": ("84", "5", "300"),
    "market": ("flat", "flat", "calm"),
    "serverful-limit": ("none", "none", "1", "5", "30"),
    "market.limits.marketplace": ("", "", "2", "10"),
    "market.mean_life_s.marketplace": ("", "", "600", "7200"),
}
_SIZES = (20, 40, 80)


@dataclass(frozen=True, slots=True)
class Case:
    """`jobs` generated ones like a cluster's, of which the first `most_jobs` are played, with options that are not as
    usual."""

    like: str
    jobs: int
    seed: int
    most_jobs: int
    words: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def drawn(cls, number: int, world: str = FRIENDLY.name) -> Case:
        """The case of this number: always the same, in whichever world."""
        chance = random.Random(f"{number} regret")  # noqa: S311 - a simulation
        words = {name: chance.choice(values) for name, values in _DRAWN.items()}
        usual = {name: values[0] for name, values in _DRAWN.items()}
        jobs = chance.choice(_SIZES)
        told = {name: text for name, text in words.items() if text != usual[name]}
        where = {} if world == FRIENDLY.name else {"world": world}
        return cls(chance.choice(CLUSTERS), jobs, number, jobs, where | told)

    def trace(self) -> Trace:
        return generate(self.like, self.jobs, self.seed).cut(most_jobs=self.most_jobs)

    def options(self) -> Options:
        options = Options()
        for name, text in self.words.items():
            options = options.having(name, text)
        return options

    def commands(self) -> tuple[str, ...]:
        """What to type to see it."""
        settings = {name: text for name, text in self.words.items() if "." in name}
        first = f"allpass trace generate --like {self.like} --jobs {self.jobs} --seed {self.seed} -o case.csv"
        said = "".join(f" --{name} {text}" for name, text in self.words.items() if name not in settings)
        policies = "".join(f" --policy {name}" for name in (OURS, *SIMPLE))
        last = f"allpass simulate --trace case.csv --most-jobs {self.most_jobs} --seeds {len(SEEDS)}{said}{policies}"
        if not settings:
            return first, last
        inner = ", ".join(f'"{name}": {text}' for name, text in settings.items())
        return first, f"echo '{{{inner}}}' > case.json", f"{last} --config case.json"


@dataclass(frozen=True, slots=True)
class Regret:
    """`excess`: the share by which `allpass` costs more than `best`; 0 where no simple policy is a better choice."""

    case: Case
    excess: float
    best: str
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]


def regret_of(case: Case) -> Regret:
    """Plays the case with every policy. A policy whose jobs never end is no choice."""
    figures = {name: _figures(case, name) for name in (OURS, *SIMPLE)}
    ours = figures.pop(OURS)
    assert ours is not None, "the default policy ends every job"
    better = {name: its for name, its in figures.items() if its is not None and not _buys_something(ours, its)}
    excesses = {name: ours["cost_usd"] / its["cost_usd"] - 1 for name, its in better.items() if its["cost_usd"]}
    best = max(excesses, key=lambda name: excesses[name], default=None)
    if best is None or excesses[best] <= 0:
        return Regret(case, 0.0, "", ours, {})
    return Regret(case, excesses[best], best, ours, better[best])


def search(
    numbers: Sequence[int], progress: Callable[[float, int], None] | None = None, world: str = FRIENDLY.name
) -> list[Regret]:
    """Of the cases of these numbers, worst first; as many side by side as there are cores, where that pays."""
    done = dict.fromkeys(range(len(numbers)), 0.0)

    def told(place: int, share: float) -> None:
        done[place] = share
        if progress is not None:
            progress(sum(done.values()), len(numbers))

    processes = process_pool.usual_processes() if len(numbers) >= WORTH_PROCESSES else 1
    questions = [(number, world) for number in numbers]
    found = process_pool.answer_all(_regret_of_number, questions, processes, told)
    return sorted(found, key=lambda one: (-one.excess, one.case.seed))


def _regret_of_number(question: tuple[int, str], tell: Callable[[float], None]) -> Regret:
    found = regret_of(Case.drawn(*question))
    tell(1.0)
    return found


def shrunk(found: Regret, most_tries: int = 40) -> Regret:
    """The same regret, by half at least, in a case with fewer jobs and fewer options that are not as usual."""
    least, best, tries = found.excess / 2, found, 0
    while True:
        for smaller in _smaller(best.case):
            tries += 1
            tried = regret_of(smaller)
            if tried.excess >= least:
                best = tried
                break
            if tries >= most_tries:
                return best
        else:
            return best


def _smaller(case: Case) -> Iterator[Case]:
    for many in (case.most_jobs // 2, case.most_jobs * 3 // 4, case.most_jobs - 1):
        if 0 < many < case.most_jobs:
            yield replace(case, most_jobs=many)
    for name in case.words:
        if name == "world":
            continue  # it was asked for
        yield replace(case, words={other: text for other, text in case.words.items() if other != name})


def _buys_something(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether jobs wait clearly less, or fewer of them are late, for what ours costs more."""
    less_s = theirs["mean_wait_s"] - ours["mean_wait_s"]
    waits_less = less_s > max(WAITS_LESS_S, WAITS_LESS_SHARE * theirs["mean_wait_s"])
    return waits_less or bool(theirs["deadline_miss_share"] - ours["deadline_miss_share"] > MISSES_LESS_SHARE)


def _figures(case: Case, policy: str) -> dict[str, Any] | None:
    trace, options = case.trace(), case.options()
    play = partial(_play, trace, Variant.plain(policy), options)
    try:
        return mean_figures([play(seed).figures for seed in SEEDS])
    except JobsNeverEnd:
        return None


def _play(trace: Trace, variant: Variant, options: Options, seed: int) -> Played:
    return answer(SimulationRequest(trace, variant, options, seed), lambda _share: None)
