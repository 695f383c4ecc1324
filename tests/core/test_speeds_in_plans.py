"""What `allpass` decides where GPUs differ in how fast they train a job: by the hour of work, and by its deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.core.gpu_speeds import GpuSpeeds
from app.core.model.job import JobState, StartRule
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import ActionKind
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policy import PolicyConfig
from tests.core import samples
from tests.core.plans import ask, brief, why
from tests.core.samples import CONFIG, job, node, offer, on_serverless, run

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
CAN_MOVE = replace(CONFIG, capabilities=frozenset(ActionKind))
TIMES = (("h100", 400), ("l4", 4_000))
T4 = offer("fn t4", Tier.SERVERLESS, "0.59", gpu_type="T4")
A100_FN = offer("fn a100", Tier.SERVERLESS, "2.10")
L4 = offer("l4", Tier.MARKETPLACE, "0.30", gpu_type="L4", startup_ms=30_000)
A100 = offer("a100", Tier.MARKETPLACE, "0.80", startup_ms=30_000)
H100 = offer("h100", Tier.MARKETPLACE, "1.60", gpu_type="H100", startup_ms=30_000)


def snapshot(**parts: Any) -> Snapshot:
    return samples.snapshot(now_ms=NOW_MS, **parts)


def waiting(hours: float, due_hours: float, **changes: Any) -> JobView:
    """A job of so many hours on an A100 that may have any GPU."""
    values = {
        "total_run_ms": round(hours * HOUR_MS),
        "deadline_ms": NOW_MS + round(due_hours * HOUR_MS),
        "speeds": GpuSpeeds("a100", TIMES),
        "submitted_ms": NOW_MS,
        "start": StartRule.AUTO,
    }
    return job(**(values | changes))


def training(hours: float, due_hours: float, price: str = "0.80", **changes: Any) -> tuple[JobView, RunView, NodeView]:
    """One that has trained for ten hours on a rented A100, with so much left."""
    held = waiting(
        hours + 10, due_hours, state=JobState.RUNNING, speeds=GpuSpeeds("a100", TIMES, trains_there=True), **changes
    )
    on = node("node_a", free_gpus=(), price_per_hour=Money.usd(price), requested_ms=NOW_MS - 11 * HOUR_MS)
    live = run("run_a", "job_a", "node_a", tier=Tier.MARKETPLACE, running_since_ms=NOW_MS - 10 * HOUR_MS)
    return held, live, on


def plan(seen: Any, config: PolicyConfig = CAN_MOVE) -> list[tuple[str, ...]]:
    return brief(ask("allpass", seen, config)[0])


def moves(held: JobView, live: RunView, on: NodeView, *offers: Any) -> list[tuple[str, ...]]:
    return plan(snapshot(jobs=[held], runs=[live], nodes=[on], offers=offers))


def test_what_costs_least_for_the_work_is_rented() -> None:
    """Two hours on an A100 at $0.80, against eight on an L4 at $0.30: its hours are cheaper, and its work is not."""
    seen = snapshot(jobs=[waiting(2, 100)], offers=[A100_FN, L4, A100])
    assert plan(seen) == [("provision", "job_a", "a100")]
    cheap = replace(L4, price_per_hour=Money.usd("0.10"))
    assert plan(snapshot(jobs=[waiting(2, 100)], offers=[A100_FN, cheap, A100])) == [("provision", "job_a", "l4")]


def test_of_gpus_that_meet_the_deadline_the_cheapest_is_rented() -> None:
    """The L4 for $0.10 takes eight hours, ten to be sure: with nine to go it is the A100, with two the H100."""
    cheap, dear = replace(L4, price_per_hour=Money.usd("0.10")), replace(H100, price_per_hour=Money.usd("2.20"))
    for due_hours, taken in ((11, "l4"), (9, "a100"), (2, "h100")):
        seen = snapshot(jobs=[waiting(2, due_hours)], offers=[cheap, A100, dear])
        assert plan(seen) == [("provision", "job_a", taken)]
    told = ask("allpass", snapshot(jobs=[waiting(2, 9)], offers=[cheap, A100, H100]), CAN_MOVE)[0].actions[0].reason
    assert "are in time: on local L4 at $0.10/h it would cost less and be done later than its deadline" in told


def test_nobody_leaves_a_fast_gpu_for_hours_that_are_cheaper_on_a_slow_one() -> None:
    """An L4 at a third of the price would take four times as long."""
    assert moves(*training(8, 100), L4) == []
    assert moves(*training(8, 100), replace(L4, price_per_hour=Money.usd("0.10"))) == [("provision", "job_a", "l4")]


def test_a_dearer_hour_of_which_fewer_are_needed_is_worth_a_move() -> None:
    """An H100 at twice the price takes 40 % of the time: a fifth less is paid, and the move pays for itself."""
    assert moves(*training(8, 100), H100) == [("provision", "job_a", "h100")]
    assert moves(*training(8, 100), replace(H100, price_per_hour=Money.usd("1.90"))) == []


def test_nobody_moves_to_where_it_would_be_late() -> None:
    """Eight hours are 32 on an L4: with ten to go the job stays, though it would cost half."""
    cheap = replace(L4, price_per_hour=Money.usd("0.10"))
    assert moves(*training(8, 10), cheap) == []
    assert moves(*training(8, 41), cheap) == [("provision", "job_a", "l4")]


def test_a_job_leaves_serverless_for_the_cheapest_that_is_in_time() -> None:
    """With 40 hours to go for the L4, with ten for the A100, at which the L4 would be late."""
    cheap = replace(L4, price_per_hour=Money.usd("0.10"))
    for due_hours, taken in ((41, "l4"), (10, "a100")):
        held = waiting(8, due_hours, state=JobState.RUNNING, speeds=GpuSpeeds("a100", TIMES, trains_there=True))
        live, on = on_serverless(held, 0, running_since_ms=NOW_MS - 60_000)
        seen = snapshot(jobs=[held], runs=[live], nodes=[on], offers=[A100_FN, cheap, A100])
        assert plan(seen) == [("provision", "job_a", taken)]


def late(hours: float, due_hours: float, **changes: Any) -> list[tuple[str, ...]]:
    """What is done for a job that has so much left on an A100, beside an H100 on which that is 0.4 times as long."""
    held, live, on = training(hours, due_hours, **changes)
    dear = replace(H100, price_per_hour=Money.usd("3.00"))
    return moves(held, live, on, replace(A100, price_per_hour=Money.usd("0.80")), dear)


def test_a_job_that_would_be_late_leaves_for_faster_gpus() -> None:
    """Eight hours are left, and six are to go: on the H100 it takes three and a quarter, at half as much again for its
    work. With nine to go it stays, with three nothing helps it."""
    assert late(8, 6) == [("provision", "job_a", "h100")]
    assert late(8, 9) == []
    assert late(8, 3) == []


def test_not_at_any_price_nor_for_a_deadline_that_nobody_stated() -> None:
    """Up to twice what the work costs where it is, by default; nor is a job moved that has come a moment ago."""
    assert late(8, 6, deadline_given=False) == []
    held, live, on = training(8, 6)
    dearer = replace(H100, price_per_hour=Money.usd("4.10"))
    assert moves(held, live, on, dearer) == []
    lenient = replace(CAN_MOVE, rules=replace(CAN_MOVE.rules, late_most=3.0))
    seen = snapshot(jobs=[held], runs=[live], nodes=[on], offers=[dearer])
    assert plan(seen, lenient) == [("provision", "job_a", "h100")]
    off = replace(CAN_MOVE, rules=replace(CAN_MOVE.rules, late_most=0.0))
    assert plan(snapshot(jobs=[held], runs=[live], nodes=[on], offers=[H100]), off) != [("migrate", "job_a")]
    assert moves(held, replace(live, running_since_ms=NOW_MS - HOUR_MS), on, dearer) == []


def test_it_goes_to_faster_gpus_that_are_there_or_come() -> None:
    """A free H100 is taken at once; one that boots is waited for, and nothing more is rented."""
    held, live, on = training(8, 6)
    there = node("node_h", gpu_type="H100", price_per_hour=Money.usd("3.00"), idle_since_ms=NOW_MS)
    seen = snapshot(jobs=[held], runs=[live], nodes=[on, there], offers=[A100])
    assert plan(seen) == [("migrate", "job_a", "node_h", "0")]
    told = ask("allpass", seen, CAN_MOVE)[0].actions[0].reason
    assert "would be done 2 h 0 min after its deadline where it is, and is in time there" in told
    boots = replace(there, state=NodeState.BOOTING, idle_since_ms=None)
    assert plan(snapshot(jobs=[held], runs=[live], nodes=[on, boots], offers=[A100, H100])) == []


def test_once_it_is_there_it_stays_for_its_deadline() -> None:
    """An A100 costs less for the work, and would have it late."""
    held = waiting(13.2, 5, state=JobState.RUNNING, speeds=GpuSpeeds("h100", (("a100", 2_500),), trains_there=True))
    on = node("node_a", gpu_type="H100", free_gpus=(), price_per_hour=Money.usd("3.00"))
    live = run("run_a", "job_a", "node_a", tier=Tier.MARKETPLACE, running_since_ms=NOW_MS - 10 * HOUR_MS)
    assert moves(held, live, on, A100) == []


def test_a_machine_that_comes_for_a_job_is_seen_behind_one_that_is_too_slow() -> None:
    """A cheap L4 boots for somebody else; the job would be late there, and has an H100 rented. A moment later it counts
    on that, and neither rents another nor has it given back, again and again."""
    held, live, on = training(8, 10)
    slow = node("node_l4", Tier.MARKETPLACE, NodeState.BOOTING, gpu_type="L4", price_per_hour=Money.usd("0.10"))
    soon = replace(slow, expected_ready_ms=NOW_MS + 1_000)
    seen = snapshot(jobs=[held], runs=[live], nodes=[on, soon], offers=[H100])
    assert ("provision", "job_a", "h100") in plan(seen)
    comes = node("node_h", Tier.MARKETPLACE, NodeState.BOOTING, gpu_type="H100", price_per_hour=Money.usd("1.60"))
    comes = replace(comes, expected_ready_ms=NOW_MS + 30_000)
    then = plan(snapshot(jobs=[held], runs=[live], nodes=[on, soon, comes], offers=[H100]))
    assert not [action for action in then if action[0] == "provision" or action == ("release", "node_h")]


def test_who_waits_counts_on_the_first_machine_that_is_in_time() -> None:
    """Not on the slow one that is there sooner: it would leave it to others once it is."""
    slow = node("node_l4", Tier.MARKETPLACE, NodeState.BOOTING, gpu_type="L4", expected_ready_ms=NOW_MS + 1_000)
    comes = node("node_a", Tier.MARKETPLACE, NodeState.BOOTING, expected_ready_ms=NOW_MS + 30_000)
    for due_hours, counts_on in ((3, "node_a"), (30, "node_l4")):
        one = waiting(2, due_hours, start=StartRule.WHEN_CHEAP)
        seen = snapshot(jobs=[one], nodes=[slow, comes], offers=[A100_FN, A100])
        assert f"waits for {counts_on}" in why(ask("allpass", seen, CAN_MOVE)[0])


def test_a_free_node_is_left_to_others_if_the_job_would_be_late_there() -> None:
    """It is there and cheap, and too slow: the job begins on serverless. Who has time takes it."""
    slow = node("node_slow", gpu_type="L4", price_per_hour=Money.usd("0.10"), idle_since_ms=NOW_MS)
    for due_hours, told in ((3, ("start", "job_a", "fn a100")), (20, ("assign", "job_a", "node_slow", "0"))):
        seen = snapshot(jobs=[waiting(2, due_hours, start=StartRule.NOW)], nodes=[slow], offers=[A100_FN])
        assert told in plan(seen)


def test_of_free_nodes_the_one_where_work_costs_least_is_taken() -> None:
    """Not the one whose hours do."""
    nodes = [
        node("node_l4", gpu_type="L4", price_per_hour=Money.usd("0.30"), idle_since_ms=NOW_MS),
        node("node_a100", price_per_hour=Money.usd("0.80"), idle_since_ms=NOW_MS),
    ]
    seen = snapshot(jobs=[waiting(2, 100)], nodes=nodes, offers=[A100_FN])
    assert ("assign", "job_a", "node_a100", "0") in plan(seen)
    alike = waiting(2, 100, speeds=None)
    assert ("assign", "job_a", "node_l4", "0") in plan(snapshot(jobs=[alike], nodes=nodes, offers=[A100_FN]))


def test_own_machines_come_first_unless_they_would_make_the_job_late() -> None:
    """They cost nothing more, and deadlines are kept."""
    own = offer("own l4", Tier.OWN, "0", gpu_type="L4", startup_ms=0)
    for due_hours, taken in ((20, "own l4"), (3, "fn a100")):
        seen = snapshot(jobs=[waiting(2, due_hours, start=StartRule.NOW)], offers=[A100_FN, own])
        assert plan(seen) == [("start", "job_a", taken)]


def test_the_cheapest_serverless_gpu_is_the_one_whose_work_is() -> None:
    """Nobody knows the script: a T4 is taken to need three times as long as an A100, for less than a third."""
    unknown = waiting(0.1, 100, speeds=GpuSpeeds(), start=StartRule.NOW)
    assert plan(snapshot(jobs=[unknown], offers=[T4, A100_FN])) == [("start", "job_a", "fn t4")]
    dearer = replace(T4, price_per_hour=Money.usd("0.75"))
    assert plan(snapshot(jobs=[unknown], offers=[dearer, A100_FN])) == [("start", "job_a", "fn a100")]
    told = ask("allpass", snapshot(jobs=[unknown], offers=[dearer, T4]), CAN_MOVE)[0].actions[0].reason
    assert "what an A100 does in an hour is taken to need 3 h there, and costs $1.78" in told
    known = waiting(0.1, 100, speeds=GpuSpeeds("t4", (("a100", 125),)), start=StartRule.NOW)
    told = ask("allpass", snapshot(jobs=[known], offers=[A100_FN]), CAN_MOVE)[0].actions[0].reason
    assert "what a T4 does in an hour takes 0.12 h there, and costs $0.26" in told
