"""Histories of pools, drawn from a seed: what hosts, owners and cables do to jobs in the middle of a run.

Every figure is an assumption, and each is meant to be rougher than a team's own room: in the hour or two that such a
history plays, a host is drained, unplugged or away as often as elsewhere in a month. All sizes are bounded.

pools    1 to 3: free or up to $0.60 a GPU-hour; a third are for one project, a quarter have hours, a quarter a limit
         of GPUs, a fifth a walltime of 30 to 90 minutes
hosts    1 to 4 of each pool, with 1, 2, 4 or 8 GPUs
events   up to 6 of each host, 2 to 45 minutes apart (one in five a few seconds): it joins, drains within 10 s to 30
         minutes, is unplugged, or returns
jobs     6 to 16 of two projects, of 1 to 8 GPUs, of 30 s to an hour of work (log-uniform); three quarters have a run
         time that is predicted; one in five is interactive; one in ten never saves, and takes 25 minutes at most: with
         more it would never end where its time is always over before
limits   half of the histories allow 2 to 6 rented nodes at once; half have moves of 84 s, half of 5 s
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from app.core.model.money import MICROS_PER_USD, Money
from app.core.model.node import RENTED_TIERS
from app.core.model.plan import ActionKind
from app.core.model.pool import DAY_MINUTES, Hours, OwnHost, Pool
from app.core.policy import MoveCost, PolicyConfig
from app.simulator.own.machines import HostEvent, OwnMachines, SimulatedPool, host_of
from app.simulator.prices import flat
from app.simulator.scenario import Scenario, SimulatedMarket, Task
from app.simulator.worlds.known import FRIENDLY

PROJECTS = ("red", "blue")
NO_LIMIT = 10**6
_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
_SPAN_MS = 2 * _HOUR_MS  # in which jobs are submitted and most things happen
_THURSDAY = 3 * DAY_MINUTES  # on which the clock of a simulation begins
_GPU_TYPE = "A100"


@dataclass(frozen=True, slots=True)
class PoolHistory:
    """One of them: what is played, and what the policy may do."""

    seed: int
    scenario: Scenario
    config: PolicyConfig


def draw_history(seed: int) -> PoolHistory:
    """The same for the same seed, everywhere."""
    chance = random.Random(f"{seed} pool history")  # noqa: S311 - a simulation
    pools = tuple(_pool(chance, number) for number in range(chance.randint(1, 3)))
    hosts = tuple(host for one in pools for host in _hosts(chance, one.pool.name))
    events = tuple(sorted((event for host in hosts for event in _events(chance, host)), key=lambda one: one.at_ms))
    move_ms = chance.choice((42_000, 2_500))
    moves = MoveCost(move_ms, move_ms)
    tasks = tuple(sorted(_tasks(chance), key=lambda task: task.submit_ms))
    prices = {tier: flat(FRIENDLY.of(tier).usd) for tier in RENTED_TIERS}
    scenario = Scenario(
        tasks, SimulatedMarket(prices), seed, moves, ahead=chance.random() < 0.7, own=OwnMachines(pools, hosts, events)
    )
    limit = NO_LIMIT if chance.random() < 0.5 else chance.randint(2, 6)
    config = PolicyConfig(
        capabilities=frozenset(ActionKind),
        serverless_budget_ms=300_000,
        serverless_limit=NO_LIMIT,
        serverful_limit=limit,
        idle_release_ms=0,
        moves=moves,
    )
    return PoolHistory(seed, scenario, config)


def _pool(chance: random.Random, number: int) -> SimulatedPool:
    usd = 0.0 if chance.random() < 0.4 else chance.uniform(0.05, 0.6)
    pool = Pool(
        name=f"pool-{number}",
        price=Money(round(usd * MICROS_PER_USD)),
        preference=number,
        projects=(chance.choice(PROJECTS),) if chance.random() < 0.33 else (),
        hours=tuple(_hours(chance)) if chance.random() < 0.25 else (),
        most_gpus=chance.randint(1, 8) if chance.random() < 0.25 else None,
    )
    walltime_ms = chance.randint(30, 90) * _MINUTE_MS if chance.random() < 0.2 else None
    return SimulatedPool(pool, walltime_ms)


def _hours(chance: random.Random) -> Iterator[Hours]:
    """Two windows within the first hours, so that a history sees them begin and end."""
    at = _THURSDAY + chance.randint(0, 60)
    for _ in range(2):
        end = at + chance.randint(25, 90)
        yield Hours(at, end)
        at = end + chance.randint(5, 60)


def _hosts(chance: random.Random, pool: str) -> Iterator[OwnHost]:
    for number in range(chance.randint(1, 4)):
        yield host_of(f"{pool}-{number}", pool, chance.choice((1, 2, 4, 8)), _GPU_TYPE)


def _events(chance: random.Random, host: OwnHost) -> Iterator[HostEvent]:
    """It joins, and may then leave in one way or the other, and return."""
    at_ms, is_there = (0 if chance.random() < 0.7 else chance.randint(0, _SPAN_MS // 2)), False
    for _ in range(1 + chance.randint(0, 5)):
        if not is_there:
            yield HostEvent(at_ms, host.host_id, "join")
        elif chance.random() < 0.5:
            within_ms = round(_log_uniform(chance, 10, 1_800) * 1000)
            yield HostEvent(at_ms, host.host_id, "drain", within_ms)
            at_ms += within_ms if chance.random() < 0.8 else 0  # else it returns, or is said to, before it has left
        else:
            yield HostEvent(at_ms, host.host_id, "unplug")
        is_there = not is_there
        shortest = 0.05 if chance.random() < 0.2 else 2.0  # minutes: a cable that is put back before anybody knows
        at_ms += round(_log_uniform(chance, shortest, 45) * _MINUTE_MS)


def _tasks(chance: random.Random) -> Iterator[Task]:
    for number in range(chance.randint(6, 16)):
        submit_ms = chance.randint(0, _SPAN_MS)
        saves = chance.random() >= 0.1
        work_ms = round(_log_uniform(chance, 30, 3_600 if saves else 1_500) * 1000)
        is_known = chance.random() < 0.75
        yield Task(
            job_id=f"job_{number:02d}",
            submit_ms=submit_ms,
            work_ms=work_ms,
            gpus=chance.choice((1, 1, 1, 1, 2, 2, 3, 4, 8)),
            deadline_ms=submit_ms + round(work_ms * chance.uniform(1, 10)),
            predicted_ms=max(1, round(work_ms * chance.uniform(0.8, 1.2))) if is_known else None,
            known_after_ms=0 if chance.random() < 0.5 else _MINUTE_MS,
            kind="interactive" if chance.random() < 0.2 else "batch",
            saves=saves,
            project=chance.choice(PROJECTS),
        )


def _log_uniform(chance: random.Random, least: float, most: float) -> float:
    return math.exp(chance.uniform(math.log(least), math.log(most)))
