"""What jobs go through on machines of a team's own, to the second."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import ActionKind
from app.core.model.pool import DAY_MINUTES, Hours, Pool
from app.core.policies import policy_names
from app.core.policy import MoveCost
from app.core.pools import CLOSING_MS
from app.simulator.own.fleet import next_turn_ms
from app.simulator.own.machines import HostEvent, OwnMachines, SimulatedPool, host_of
from app.simulator.own.playing import LOST_AFTER_MS, PoolSimulation
from app.simulator.scenario import Task
from tests.simulator.scenarios import HOUR_MS, MINUTE_MS, SECOND_MS, Seen, market, simulate, task
from tests.simulator.test_every_policy import recomputed_bills
from tests.simulator.workloads import markets, workload_for

QUICK = MoveCost(500, 500)  # so that no job rests for long before it moves again
THURSDAY = 3 * DAY_MINUTES  # on which a simulation begins


def own(*events: HostEvent, gpus: int = 8, walltime_ms: int | None = None, **pool: Any) -> OwnMachines:
    """One host, there from the beginning."""
    one = SimulatedPool(Pool("lab", **pool), walltime_ms)
    return OwnMachines((one,), (host_of("host", "lab", gpus, "A100"),), (HostEvent(0, "host", "join"), *events))


def play(*tasks: Task, of: OwnMachines, policy: str = "allpass", **more: Any) -> Seen:
    return simulate(policy, *tasks, kind=PoolSimulation, own=of, **more)


def test_a_job_starts_within_a_second_and_gives_its_gpu_back_at_once() -> None:
    """It pays what its owner states, by the second from when the machine is there."""
    seen = play(task("a", 3_600), of=own(price=Money.usd("0.10")))
    assert seen.course() == [(0, "start"), (3_601, "release")]
    assert seen.outcome("a").tiers == "o"
    assert seen.result.bills == {"joined": 100_000}
    assert seen.outcome("a").cost_usd == pytest.approx(0.10)
    assert seen.result.figures()["idle_usd"] == pytest.approx(0)
    assert (seen.result.most_nodes, seen.result.most_gpus) == (0, 0)  # nothing was rented


def test_what_is_full_overflows_and_comes_home() -> None:
    """The second job starts on serverless, leaves for a rented node, and comes when the first gives the GPU back."""
    seen = play(task("a", 600), task("b", 7_200, at_s=60, kind="interactive"), of=own(gpus=1), moves=QUICK)
    assert seen.outcome("b").tiers == "smo"
    assert seen.of(ActionKind.MIGRATE)[-1] == (601, "b")


def test_who_leaves_in_time_loses_nothing() -> None:
    """A host drains within half an hour: its job trains on until another machine is there, and moves."""
    seen = play(task("a", 7_200), of=own(HostEvent(HOUR_MS, "host", "drain", 30 * MINUTE_MS)))
    moved = seen.outcome("a")
    assert (moved.tiers, moved.lost_ms, moved.faults, moved.moves) == ("om", 0, 0, 1)
    assert moved.finished_ms == (1 + 7_200 + 84) * SECOND_MS
    states = {(node.state, node.tier) for snapshot, _, _ in seen.snapshots for node in snapshot.nodes}
    assert (NodeState.DRAINING, Tier.OWN) in states


def test_who_has_no_time_saves_and_waits() -> None:
    """Two minutes are enough where a save takes five seconds. In ten seconds a save of 42 s is not done."""
    drain = HostEvent(HOUR_MS, "host", "drain", 120 * SECOND_MS)
    quick = play(task("a", 7_200), of=own(drain), moves=MoveCost(5_000, 5_000))
    assert (quick.outcome("a").lost_ms, quick.outcome("a").faults) == (0, 0)
    sudden = play(task("a", 7_200), of=own(HostEvent(HOUR_MS, "host", "drain", 10 * SECOND_MS)))
    assert sudden.outcome("a").faults == 1
    assert 0 < sudden.outcome("a").lost_ms <= 600_000  # since its last checkpoint


def test_a_host_that_is_unplugged_is_noticed_late() -> None:
    """Its two jobs go on elsewhere two minutes and a half later, from their checkpoints; the time between is lost, and
    not counted as work."""
    at_ms = HOUR_MS + 5 * MINUTE_MS
    seen = play(task("a", 7_200), task("b", 7_200, gpus=2), of=own(HostEvent(at_ms, "host", "unplug")))
    for name in ("a", "b"):
        outcome = seen.outcome(name)
        assert outcome.faults == 1
        assert outcome.lost_ms == 5 * MINUTE_MS - SECOND_MS
        assert outcome.tiers[0] == "o" and outcome.tiers[-1] != "o"
    again = [at_s for at_s, kind, _ in seen.actions if kind in ("start", "provision") and at_s > 0]
    assert min(again) == (at_ms + LOST_AFTER_MS) / 1000
    states = {node.state for snapshot, _, _ in seen.snapshots for node in snapshot.nodes if node.tier == Tier.OWN}
    assert NodeState.UNREACHABLE in states


def test_one_that_starts_anew_tells_so_itself() -> None:
    """A host that was off for ten seconds: what ran there is gone, and goes on there at once."""
    off, on = HostEvent(HOUR_MS, "host", "unplug"), HostEvent(HOUR_MS + 10_000, "host", "join")
    seen = play(task("a", 7_200), of=own(off, on))
    assert seen.outcome("a").tiers == "oo"
    assert seen.of(ActionKind.START) == [(0, "a"), (3_610, "a")]


def test_hours_end_with_everybody_gone() -> None:
    """What runs leaves before; a job that comes in the last minutes goes elsewhere."""
    closes = own(hours=(Hours(THURSDAY, THURSDAY + 120),))
    seen = play(task("a", 9_000), task("b", 60, at_s=6_100), task("c", 60, at_s=5_900), of=closes)
    assert (seen.outcome("a").tiers, seen.outcome("a").lost_ms) == ("om", 0)
    assert (seen.outcome("b").tiers[0], seen.outcome("c").tiers) == ("s", "o")
    last = max(at.now_ms for at, _, _ in seen.snapshots for node in at.nodes if node.tier == Tier.OWN)
    assert last <= 2 * HOUR_MS


def test_whoever_waits_for_hours_to_begin_is_given_them() -> None:
    opens = own(hours=(Hours(THURSDAY + 60, THURSDAY + 600),))
    seen = play(task("a", 7_200), of=opens, moves=QUICK)
    assert seen.outcome("a").tiers == "mo"
    assert seen.of(ActionKind.PROVISION)[-1] == (3_600, "a")


def test_a_walltime_is_left_before_it_is_over() -> None:
    """For another machine, also one of the same host; nothing is lost."""
    seen = play(task("a", 7_200), of=own(walltime_ms=HOUR_MS, gpus=2))
    assert (seen.outcome("a").lost_ms, seen.outcome("a").faults) == (0, 0)
    assert len(seen.outcome("a").tiers) >= 3
    assert set(seen.outcome("a").tiers) == {"o"}


def test_who_never_saves_is_not_put_where_its_time_is_too_short() -> None:
    """It would begin again every hour, and never end."""
    seen = play(task("a", 7_200, saves=False), of=own(walltime_ms=HOUR_MS))
    assert "o" not in seen.outcome("a").tiers
    assert "o" in play(task("a", 1_800, saves=False), of=own(walltime_ms=HOUR_MS)).outcome("a").tiers


def test_a_limit_of_gpus_holds_over_hosts() -> None:
    """Two hosts of a pool that gives four GPUs: four jobs run there at once."""
    hosts = tuple(host_of(name, "lab", 4, "A100") for name in ("one", "two"))
    limited = OwnMachines.for_good([SimulatedPool(Pool("lab", most_gpus=4))], hosts)
    seen = play(*(task(f"job-{number}", 600) for number in range(6)), of=limited)
    assert sum(one.tiers.startswith("o") for one in seen.result.outcomes) == 4
    most = max(sum(node.gpu_count for node in at.nodes if node.tier == Tier.OWN) for at, _, _ in seen.snapshots)
    assert most == 4


def test_turns_of_hours() -> None:
    pool = Pool("lab", hours=(Hours(THURSDAY + 60, THURSDAY + 120),))
    turns, at_ms = [], 0
    for _ in range(4):
        found = next_turn_ms(pool, at_ms, CLOSING_MS)
        assert found is not None
        turns.append(found / MINUTE_MS)
        at_ms = found
    assert turns == [60, 120 - CLOSING_MS / MINUTE_MS, 120, 60 + 7 * DAY_MINUTES]
    assert next_turn_ms(Pool("always"), 0, CLOSING_MS) is None


@pytest.mark.parametrize("policy", policy_names())
def test_jobs_finish_and_bills_are_right_with_a_pool(policy: str) -> None:
    """As without one, under every policy."""
    tasks = workload_for(policy, 2)
    seen = play(*tasks, of=own(price=Money.usd("0.30"), gpus=4), policy=policy, on=markets(2), seed=2)
    assert all(one.jct_ms >= one.work_ms for one in seen.result.outcomes)
    assert seen.result.bills == recomputed_bills(seen)


def test_without_pools_nothing_changes() -> None:
    """A scenario with no host plays as one without pools."""
    tasks = workload_for("allpass", 1)
    plain = simulate("allpass", *tasks, on=market(), seed=1)
    empty = play(*tasks, of=OwnMachines((SimulatedPool(Pool("lab")),), (), ()), on=market(), seed=1)
    assert (plain.actions, plain.result) == (empty.actions, empty.result)
