"""Any world with ranges comes to its end, and what was played is what is paid and what was done.

The books are kept anew: between two decisions nothing changes, so what each run holds, and how fast it is, is summed
over the time from one to the next.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.invariants import plan_breaches, snapshot_breaches
from app.core.model.node import RENTED_TIERS, NodeState, Tier
from app.core.model.plan import Plan
from app.core.model.run import RunState
from app.core.policies import policy_named
from app.core.policy import MoveCost, PolicyConfig, PolicyState
from app.simulator.engine import Simulation
from app.simulator.outcomes import SimulationResult
from app.simulator.own.machines import HostEvent, OwnMachines
from app.simulator.own.words import read_pools
from app.simulator.prices import flat
from app.simulator.ranges.drawing import TaskRange, parallel_speeds
from app.simulator.ranges.kinds import simulation_of
from app.simulator.ranges.playing import WithRanges
from app.simulator.scenario import Scenario, SimulatedMarket, StartUp, Task
from app.simulator.worlds.known import FRIENDLY, WORLDS
from tests.simulator.scenarios import NO_LIMIT, config

MOST_DECISIONS = 60_000
CLOUDS = SimulatedMarket({tier: flat(FRIENDLY.of(tier).usd) for tier in RENTED_TIERS})


@dataclass(slots=True)
class Books:
    """By job and number of GPUs: milliseconds, and micro-dollars times milliseconds an hour; by job: work done, in
    thousandths of milliseconds."""

    held_ms: Counter[tuple[str, int]] = field(default_factory=Counter)
    paid: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)


def watched(kind: type[Simulation], books: Books) -> type[Simulation]:
    """The same, with books of its own; and no more decisions than a world can need."""

    class Watched(kind):  # type: ignore[misc, valid-type] # whichever it is
        def _decide(self) -> int | None:
            self._book()
            wake_ms: int | None = super()._decide()
            assert self.decisions < MOST_DECISIONS, "it runs for ever"
            assert wake_ms is None or wake_ms >= self._now_ms
            self._check_gpus()
            self._seen = (self._now_ms, [*self._held()])
            return wake_ms

        def _held(self) -> Any:
            for run in self._runs.values():
                life = self._lives[run.view.job_ids[0]]
                machine = self._cloud.machines[run.view.node_id]
                is_paid = machine.billed_from_ms is not None and machine.view.state is not NodeState.TERMINATED
                stay = self._stays.get(run.view.run_id)
                trains = run.view.state is RunState.RUNNING and not run.over
                speed = 1000 if stay is None else life.task.elastic.speed(stay.uses)
                stands = stay is not None and stay.uses != stay.wanted
                share = machine.view.price_per_hour.micros * len(run.gpus) / machine.view.gpu_count
                yield life.task.job_id, len(run.gpus), share if is_paid else None, speed * (trains and not stands)

        def _book(self) -> None:
            before_ms, held = getattr(self, "_seen", (0, []))
            passed_ms = self._now_ms - before_ms
            for job_id, gpus, share, speed in held:
                if share is not None:
                    books.held_ms[job_id, gpus] += passed_ms
                    books.paid[job_id] += share * passed_ms
                books.done[job_id] += speed * passed_ms

        def _check_gpus(self) -> None:
            """No GPU is two runs', and what none holds is free."""
            for node_id, machine in self._cloud.machines.items():
                held = [gpu for run in self._runs.values() if run.view.node_id == node_id for gpu in run.gpus]
                assert len(held) == len(set(held)), f"{node_id}: {held}"
                assert sorted((*held, *machine.view.free_gpus)) == list(range(machine.view.gpu_count))

    return Watched


def drawn_task(chance: random.Random, number: int, *, all_ranges: bool) -> Task:
    work_ms, submit_ms = round(1000 * 10 ** chance.uniform(1.3, 4.6)), chance.randint(0, 3_600_000)
    gpus = chance.choice((1, 1, 2, 4, 8))
    least = chance.randint(1, gpus)
    most = chance.randint(max(least, 1), 8)
    curve = parallel_speeds(chance.uniform(0, 1), gpus, 8)
    if chance.random() < 0.2:  # nobody's law
        curve = tuple(chance.randint(50, 6_000) for _ in range(8))
    stated = tuple(max(1, round(one * chance.uniform(0.5, 2))) for one in curve) if chance.random() < 0.7 else ()
    elastic = TaskRange(least, most, curve, stated) if all_ranges or chance.random() < 0.6 else None
    knows = chance.random()
    return Task(
        f"job{number:02d}",
        submit_ms,
        work_ms,
        gpus,
        submit_ms + round(work_ms * chance.choice((0.01, 0.4, 0.7, 0.9, 1.2, 10))),
        predicted_ms=round(work_ms * chance.choice((0.2, 1, 5))) if knows < 0.8 else None,
        known_after_ms=0 if knows < 0.4 else 60_000,
        refined=knows < 0.3,
        kind="interactive" if chance.random() < 0.2 else "batch",
        elastic=elastic,
        project=chance.choice(("red", "blue")),
    )


def drawn_scenario(seed: int, world_name: str) -> tuple[Scenario, PolicyConfig]:
    chance = random.Random(f"{seed} range worlds")
    all_ranges = chance.random() < 0.3
    tasks = [drawn_task(chance, number, all_ranges=all_ranges) for number in range(chance.randint(2, 12))]
    world = WORLDS[world_name].having({"resize_s": chance.choice((0.0, 1.0, 10.0, 400.0))})
    is_alone = chance.random() < 0.3  # nothing is rented
    pools = (
        ("8xA100", "2x8xA100") if is_alone else ("none", "none", "4xA100", "8xA100", "2x8xA100@0.3", "2xA100+8xA100")
    )
    own = read_pools(chance.choice(pools))
    if own is not None and chance.random() < 0.5:
        own = with_events(chance, own)
    lives = {tier: chance.choice((600.0, 7_200.0)) for tier in RENTED_TIERS if chance.random() < 0.3}
    on = SimulatedMarket(
        {} if is_alone else {tier: flat(FRIENDLY.of(tier).usd) for tier in RENTED_TIERS},
        startups={tier: StartUp(FRIENDLY.of(tier).startup_mean_s, 1.0) for tier in RENTED_TIERS},
        mean_life_s=lives,
    )
    move_ms = chance.choice((42_000, 2_500))
    moves = MoveCost(move_ms, move_ms)
    limit = chance.choice((NO_LIMIT, NO_LIMIT, 2, 6))
    using = config(
        moves=moves, serverful_limit=limit, serverless_limit=chance.choice((NO_LIMIT, 0, 2)) if own else NO_LIMIT
    )
    scenario = Scenario(
        tuple(sorted(tasks, key=lambda one: one.submit_ms)),
        on,
        seed,
        moves,
        ahead=chance.random() < 0.7,
        world=world,
        own=own,
    )
    return scenario, using


def with_events(chance: random.Random, own: OwnMachines) -> OwnMachines:
    """The first host is unplugged or drained, and returns."""
    at_ms, host = chance.randint(60_000, 7_200_000), own.hosts[0].host_id
    what = chance.choice(("unplug", "drain"))
    within_ms = chance.choice((10_000, 600_000))
    event = HostEvent(at_ms, host, what, within_ms)  # type: ignore[arg-type] # one of both
    back = HostEvent(at_ms + within_ms + chance.choice((5_000, 1_800_000)), host, "join")
    return OwnMachines(own.pools, own.hosts, tuple(sorted((*own.events, event, back), key=lambda one: one.at_ms)))


def play(seed: int, world_name: str, policy: str = "allpass") -> tuple[Scenario, SimulationResult, Books, Any]:
    scenario, using = drawn_scenario(seed, world_name)
    if policy == "modal-only":  # which has nothing else
        using, scenario = replace(using, serverless_limit=NO_LIMIT), replace(scenario, own=None, market=CLOUDS)
    books, told = Books(), []

    def watch(board: Board, plan: Plan, _state: PolicyState) -> None:
        snapshot = board.snapshot()
        told.extend(snapshot_breaches(snapshot))
        if plan.policy != "leaving":
            told.extend(one for one in plan_breaches(snapshot, plan, using) if not one.endswith("is told nothing"))

    kind = watched(simulation_of(scenario, merging=False), books)
    if not issubclass(kind, WithRanges):
        return scenario, SimulationResult((), {}, 0, 0), books, None
    simulation = kind(scenario, policy_named(policy), using, watch)
    result = simulation.run()
    assert told == []
    return scenario, result, books, simulation


def check(scenario: Scenario, result: SimulationResult, books: Books, simulation: Any) -> None:
    ranges = {task.job_id: task for task in scenario.tasks if task.elastic is not None}
    assert all(one.finished_ms for one in result.outcomes)
    assert {key: ms for key, ms in books.held_ms.items() if ms and key[0] in ranges} == {
        key: ms for key, ms in simulation.seen.held_ms.items() if ms
    }
    for one in result.outcomes:
        assert one.cost_usd == pytest.approx(books.paid[one.job_id] / 3.6e12, rel=1e-6, abs=1e-9)
        assert one.lost_ms >= 0
        task = ranges.get(one.job_id)
        if task is not None and task.elastic is not None and scenario.world.name == FRIENDLY.name:
            # A millisecond at each end of a run, for times are whole; in a host that is dead nobody trains.
            most = max(task.elastic.speeds) / 1000
            slack_ms = (3 + one.moves + one.faults + one.lost_bids) * (1 + most)
            done_ms = books.done[one.job_id] / 1000
            unplugged = scenario.own is not None and any(event.what == "unplug" for event in scenario.own.events)
            if not unplugged:
                assert done_ms == pytest.approx(one.work_ms + one.lost_ms, abs=slack_ms)
    assert sum(result.bills.values()) / 1e6 >= sum(one.cost_usd for one in result.outcomes) - 1e-3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_the_friendly_world_ends_and_all_is_accounted_for(seed: int) -> None:
    scenario, result, books, simulation = play(seed, "friendly")
    if simulation is not None:
        check(scenario, result, books, simulation)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["measured", "harsh"]))
def test_rougher_worlds_end_and_all_is_accounted_for(seed: int, world_name: str) -> None:
    scenario, result, books, simulation = play(seed, world_name)
    if simulation is not None:
        check(scenario, result, books, simulation)


@pytest.mark.parametrize("policy", ["modal-only", "hpa", "allpass-drain", "cheapest-first", "sjf", "tiresias-l"])
def test_ranges_are_played_under_every_kind_of_policy(policy: str) -> None:
    for seed in range(3):
        scenario, result, books, simulation = play(seed, "friendly", policy)
        check(scenario, result, books, simulation)


@pytest.mark.parametrize("world_name", ["friendly", "harsh"])
def test_one_seed_plays_one_history(world_name: str) -> None:
    for seed in range(4):
        first, second = (play(seed, world_name) for _ in range(2))
        assert first[1] == second[1]
        assert first[2] == second[2]


def test_where_no_job_takes_a_range_nothing_of_this_is_played() -> None:
    scenario, _ = drawn_scenario(0, "friendly")
    plain = Scenario(tuple(Task(f"a{at}", 0, 1_000, 1, 10_000) for at in range(2)), scenario.market)
    assert not issubclass(simulation_of(plain, merging=False), WithRanges)
    assert Tier.OWN not in plain.market.prices
