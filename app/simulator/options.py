"""What a simulation is asked for, from the words of a command line; and the scenarios that follow from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from app.core.model.node import Tier
from app.core.policy import PolicyConfig
from app.errors import InvalidInput
from app.simulator import packages
from app.simulator.bids import bid_market, with_classes
from app.simulator.gpu_types import GpuTypes, gpus_on_offer, with_speeds
from app.simulator.knowledge import Knowledge
from app.simulator.measured_moves import measured_move_s
from app.simulator.mergeable import with_trainees
from app.simulator.own.words import NONE, read_pools
from app.simulator.preparing import Deadlines, tasks_of
from app.simulator.prices import PriceCurve, calm, flat, from_file, providers_of
from app.simulator.ranges.drawing import with_ranges
from app.simulator.scenario import PROVIDERS, Scenario, SimulatedMarket, Task, start_ups
from app.simulator.traces.job import Trace
from app.simulator.tuning import Tuning
from app.simulator.worlds.calibrating import NOTHING_MEASURED, MeasuredFigures, read_calibration
from app.simulator.worlds.habits import with_habits
from app.simulator.worlds.known import FRIENDLY, WORLDS
from app.simulator.worlds.world import World

PAPER_MOVE_S = 84.0  # of stop-and-go; what moves take here is measured by `benchmarks.migration`
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Options:
    """Everything but the trace, the policies and the seeds. `tuning` goes over what the other options say."""

    gpus: Literal["one", "trace"] = "one"
    serverful_limit: int | None = None
    market: str = "flat"
    startup: Literal["random", "mean"] = "random"
    knowledge: str = "submit:0.2"
    deadlines: str = "1-10"
    move_s: float = PAPER_MOVE_S
    merge_able: float = 0.0
    merging: bool = False
    ahead: bool = True
    max_wait_s: int | None = None
    world_name: str = FRIENDLY.name
    calibration: MeasuredFigures = NOTHING_MEASURED
    pool: str = NONE
    gpu_types: GpuTypes = "one"
    bids: float = 0.0
    elastic: float = 0.0
    tuning: Tuning = field(default_factory=Tuning)

    def having(self, name: str, text: str) -> Options:
        """With an option or a setting of this name: the last word counts, also where two names mean one thing.

        Raises InvalidInput that names it, its value and what would do.
        """
        if name in _READERS:
            place, read = _READERS[name]
            found = replace(self, tuning=self.tuning.without(_SAME_AS.get(name, ())), **{place: read(text)})
            return found._calibrated() if name in ("world", "calibrate") else found
        return replace(self, tuning=self.tuning.having(name, text))

    def _calibrated(self) -> Options:
        """Once a world or figures are given: both have to go together."""
        self.calibration.over(WORLDS[self.world_name])
        move_s = self.calibration.move_s
        return self if move_s is None else replace(self, move_s=move_s)

    def told(self) -> dict[str, str]:
        """Each option with its value in words, as the command line takes it."""
        said = {
            "gpus": self.gpus,
            "serverful-limit": "none" if self.serverful_limit is None else str(self.serverful_limit),
            "market": self.market,
            "startup": self.startup,
            "knowledge": self.knowledge,
            "deadlines": self.deadlines,
            "move-seconds": f"{self.move_s:g}",
        }
        if self.world_name != FRIENDLY.name:
            said = {"world": self.world_name, **said}
        if self.calibration.values:
            said["calibrate"] = self.calibration.name
        if self.merge_able:
            said |= {"merge-able": f"{self.merge_able:g}", "merging": "on" if self.merging else "off"}
        if not self.ahead:
            said["ahead"] = "off"
        if self.max_wait_s is not None:
            said["max-wait"] = str(self.max_wait_s)
        if self.has_own:
            said["pool"] = self.pool
        if self.gpu_types != "one":
            said["gpu-types"] = self.gpu_types
        if self.bids:
            said["bids"] = f"{self.bids:g}"
        if self.elastic:
            said["elastic"] = f"{self.elastic:g}"
        set_apart = {name for name, _ in self.tuning.values}
        said = {name: text for name, text in said.items() if not set_apart.intersection(_SAME_AS.get(name, ()))}
        return said | {name: f"{value:g}" for name, value in self.tuning.values}

    @property
    def world(self) -> World:
        """The named one, with what was measured in the place of its figures."""
        return self.calibration.over(WORLDS[self.world_name])

    @property
    def is_flat(self) -> bool:
        """Whether prices stay as they are."""
        return self.market == "flat"

    @property
    def has_own(self) -> bool:
        """Whether there are machines of the team itself."""
        return self.pool != NONE

    @property
    def has_bound(self) -> bool:
        """Whether `clairvoyant` can be played beside."""
        is_plain = self.gpu_types == "one" and not self.bids and not self.elastic
        return self.is_flat and not self.merges and not self.has_own and is_plain

    @property
    def merges(self) -> bool:
        """Whether there are jobs that a policy may train together."""
        return self.merging and self.merge_able > 0

    def config(self, tuning: Tuning | None = None) -> PolicyConfig:
        """What a policy reads; `tuning` goes over everything."""
        asked = self.tuning.over(self._from_options())
        return replace((asked if tuning is None else tuning.over(asked)).config(), merging=self.merging)

    def flat_usd(self) -> Mapping[Tier, float]:
        """What a GPU-hour costs in a flat market."""
        return self.tuning.market(self.world).prices

    def tasks(self, trace: Trace, seed: int) -> tuple[Task, ...]:
        """The jobs to come: the same for every policy."""
        tasks = tasks_of(
            trace,
            gpus=self.gpus,
            knowledge=Knowledge.parse(self.knowledge),
            deadlines=Deadlines.parse(self.deadlines),
            seed=seed,
        )
        if self.gpu_types != "one":
            if self.merge_able:
                raise InvalidInput(
                    f"--gpu-types: {self.gpu_types} is not played with jobs that may be merged, of which "
                    "nobody knows how fast other GPUs train them; leave --merge-able out, or take --gpu-types one",
                    param="gpu-types",
                )
            tasks = with_speeds(tasks, self.gpu_types, seed)
        tasks = with_trainees(tasks, self.merge_able, seed) if self.merge_able else tasks
        tasks = with_classes(tasks, self.bids, seed) if self.bids else tasks
        world = self.world
        tasks = tasks if world == FRIENDLY else with_habits(tasks, world, seed)
        tasks = with_ranges(tasks, self.elastic, seed) if self.elastic else tasks
        if self.merge_able and any(task.elastic is not None for task in tasks):
            raise InvalidInput(
                "--merge-able: jobs that may be merged are not played with jobs that take ranges of GPUs; take "
                "--merge-able 0, or --elastic 0 and a trace without max_gpus",
                param="merge-able",
            )
        return tasks

    def scenario(self, trace: Trace, seed: int, config: PolicyConfig) -> Scenario:
        """What one seed draws, with moves as in `config`."""
        tasks, world = self.tasks(trace, seed), self.world
        settings = self.tuning.market(world)
        horizon_s = _horizon_s(tasks, config)
        curves = _curves(self, seed, horizon_s)
        on_demand = curves.get(Tier.MARKETPLACE) if self.bids else None
        market = SimulatedMarket(
            curves,
            startups=start_ups(world),
            random_startups=self.startup == "random",
            limits=dict(settings.limits),
            mean_life_s=dict(settings.mean_life_s),
            gpus=gpus_on_offer(self.gpu_types),
            bids=None if on_demand is None else bid_market(world, on_demand, seed, horizon_s, settings.bid_percent),
        )
        max_wait_ms = None if self.max_wait_s is None else self.max_wait_s * 1000
        return Scenario(
            tasks,
            market,
            seed,
            config.moves,
            checkpoint_every_ms=round(world.checkpoint_every_s * 1000),
            ahead=self.ahead,
            max_wait_ms=max_wait_ms,
            world=world,
            own=read_pools(self.pool),
        )

    def _from_options(self) -> Tuning:
        half_ms = round(self.move_s * 500)
        found = Tuning().having("moves.save_ms", half_ms).having("moves.load_ms", half_ms)
        found = found.having("moves.prepare_ms", round(self.world.prepare_s * 1000))
        if self.serverful_limit is not None:
            found = found.having("serverful_limit", self.serverful_limit)
        return found


def _horizon_s(tasks: tuple[Task, ...], config: PolicyConfig) -> float:
    """By when all is over in all likelihood: so long prices are drawn, and then stay."""
    last_ms = max((task.submit_ms + task.work_ms for task in tasks), default=0)
    work_ms = sum(task.work_ms * task.gpus for task in tasks)
    return (last_ms * 1.5 + DAY_MS + work_ms / max(1, config.serverful_limit)) / 1000


def _curves(options: Options, seed: int, horizon_s: float) -> dict[Tier, PriceCurve]:
    curves = {tier: flat(usd) for tier, usd in options.flat_usd().items()}
    if options.market == "calm":
        curves[Tier.MARKETPLACE] = calm(seed, horizon_s)
    elif not options.is_flat and options.market in packages.names_of(packages.MARKETS):
        curves |= packages.market_of(options.market, seed, horizon_s)
    elif not options.is_flat:
        curves |= _from_market_file(options.market)
    return curves


@lru_cache(maxsize=4)
def _from_market_file(text: str) -> Mapping[Tier, PriceCurve]:
    """`FILE`, `FILE:PROVIDER` or `FILE:PROVIDER:GPU`. The curve is the marketplace's; a file that tells our own
    providers apart gives each its own, if none is chosen."""
    name, provider, gpu_type = text, None, None
    if not Path(text).exists():
        name, *choice = text.split(":")
        provider, gpu_type = ((*choice, "", "")[:2]) if len(choice) <= 2 else (None, None)
    path = Path(name)
    there = providers_of(path)
    ours = {tier: one for tier, one in PROVIDERS.items() if one in there}
    if not provider and ours:
        return {tier: from_file(path, provider=one, gpu_type=gpu_type or None) for tier, one in ours.items()}
    return {Tier.MARKETPLACE: from_file(path, provider=provider or None, gpu_type=gpu_type or None)}


# Reading


def _gpus(text: str) -> str:
    return _one_of("gpus", text, ("one", "trace"), "one: every job takes one GPU; trace: as many as it asked for")


def _world(text: str) -> str:
    return _one_of("world", text, tuple(WORLDS), "from what is simplest to the rough end of what users tell")


def _startup(text: str) -> str:
    return _one_of("startup", text, ("random", "mean"), "random: drawn; mean: always the mean")


def _gpu_types(text: str) -> str:
    told = (
        "one: all GPUs are A100s; several: jobs take any of eight types; unseen: those, and policies do not see speeds"
    )
    return _one_of("gpu-types", text, ("one", "several", "unseen"), told)


def _one_of(name: str, text: str, known: tuple[str, ...], told: str) -> str:
    if text not in known:
        more = ", or with --compat a number" if name == "gpus" else ""
        raise InvalidInput(f"--{name}: {text!r} is none of {', '.join(known)} ({told}){more}", param=name)
    return text


def _limit(text: str) -> int | None:
    if text == "none":
        return None
    if not re.fullmatch(r"\d{1,9}", text):
        raise InvalidInput(
            f"--serverful-limit: {text!r} is no number of nodes; give a whole number, or none", param="serverful-limit"
        )
    return int(text)


def _move(text: str) -> float:
    if Path(text).is_file():
        return measured_move_s(Path(text))
    if not re.fullmatch(r"\d{1,7}(\.\d+)?", text):
        raise InvalidInput(
            f"--move-seconds: {text!r} is no length of time; give seconds that a move takes, for instance 84 or 5, "
            "or a file with what benchmarks.migration has measured",
            param="move-seconds",
        )
    return float(text)


def _merge_able(text: str) -> float:
    return _share("merge-able", text, "0.8")


def _bids(text: str) -> float:
    return _share("bids", text, "0.5")


def _elastic(text: str) -> float:
    return _share("elastic", text, "0.5")


def _share(name: str, text: str, example: str) -> float:
    share = float(text) if re.fullmatch(r"\d(\.\d{1,6})?", text) else -1.0
    if not 0 <= share <= 1:
        raise InvalidInput(
            f"--{name}: {text!r} is no share of the jobs; give a number from 0 to 1, for instance {example}", param=name
        )
    return share


def _merging(text: str) -> bool:
    told = "on: jobs of one base model may be trained as one; off: each by itself"
    return _one_of("merging", text, ("on", "off"), told) == "on"


def _ahead(text: str) -> bool:
    told = "on: machines are rented ahead and kept idle for jobs to come; off: none"
    return _one_of("ahead", text, ("on", "off"), told) == "on"


def _max_wait(text: str) -> int | None:
    if text == "none":
        return None
    if not re.fullmatch(r"\d{1,9}", text):
        raise InvalidInput(f"--max-wait: {text!r} is no length of time; give whole seconds, or none", param="max-wait")
    return int(text)


def _market(text: str) -> str:
    if text not in ("flat", "calm") and text not in packages.names_of(packages.MARKETS):
        if not text or not (Path(text).exists() or Path(text.split(":", maxsplit=1)[0]).exists()):
            raise InvalidInput(
                f"--market: {text!r} is neither flat nor calm nor another package's, and there is no such file; give "
                "flat, calm or a csv file of prices, FILE:PROVIDER:GPU to choose from it",
                param="market",
            )
        _from_market_file(text)
    return text


def _pool(text: str) -> str:
    read_pools(text)
    return text


def _knowledge(text: str) -> str:
    Knowledge.parse(text)
    return text


def _deadlines(text: str) -> str:
    Deadlines.parse(text)
    return text


_READERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "world": ("world_name", _world),
    "calibrate": ("calibration", read_calibration),
    "gpus": ("gpus", _gpus),
    "serverful-limit": ("serverful_limit", _limit),
    "market": ("market", _market),
    "startup": ("startup", _startup),
    "knowledge": ("knowledge", _knowledge),
    "deadlines": ("deadlines", _deadlines),
    "move-seconds": ("move_s", _move),
    "merge-able": ("merge_able", _merge_able),
    "merging": ("merging", _merging),
    "ahead": ("ahead", _ahead),
    "max-wait": ("max_wait_s", _max_wait),
    "pool": ("pool", _pool),
    "gpu-types": ("gpu_types", _gpu_types),
    "bids": ("bids", _bids),
    "elastic": ("elastic", _elastic),
}
_SAME_AS = {"serverful-limit": ("serverful_limit",), "move-seconds": ("moves.save_ms", "moves.load_ms")}
OPTION_NAMES = tuple(_READERS)
