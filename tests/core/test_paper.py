"""`allpass-paper` and `allpass-drain` by example: what a tick does, and what is done between ticks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.board import Board
from app.core.demand import MOST_PRESSURE
from app.core.model.job import JobState, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import Plan
from app.core.policies.paper import class_demands, pressure_now
from app.core.policy import PolicyState
from tests.core.plans import F_MS, ask, brief, running, spent_job, why
from tests.core.samples import CONFIG, MARKET, NOW_MS, OFFERS, SERVERLESS, job, node, offer, snapshot

PAPER, DRAIN = "allpass-paper", "allpass-drain"
both = pytest.mark.parametrize("name", [PAPER, DRAIN])
TICK_MS, HORIZON_MS = CONFIG.tick_ms, CONFIG.horizon_ms
MANY = replace(CONFIG, serverful_limit=1_000)
TICKED = PolicyState().having(F_ms=300_000.0, ticked_ms=float(NOW_MS))  # a tick has just been
HOURS_MS = 3_600_000


def due(in_ms: int, total_ms: int = HOURS_MS, **changes: object):
    """A job that waits for a node, with so much left and so long to its deadline."""
    return spent_job(deadline_ms=NOW_MS + in_ms, total_run_ms=total_ms, **changes)


def signals(plan: Plan) -> dict[str, float]:
    return dict(plan.signals)


# F


@both
def test_f_moves_at_ticks_only(name: str) -> None:
    """F moves at the first decision and a tick later; between, p is not even looked at."""
    seen = snapshot(jobs=[job(state=JobState.PAUSED)], offers=OFFERS)
    plan, state = ask(name, seen)
    assert state == PolicyState().having(F_ms=298_000.0, ticked_ms=float(NOW_MS))
    assert signals(plan)["p"] == 0.0
    assert plan.wake_at_ms == NOW_MS + TICK_MS
    between, same = ask(name, replace(seen, now_ms=NOW_MS + TICK_MS - 1), CONFIG, state)
    assert same == state
    assert signals(between)["F_s"] == 298.0
    assert "p" not in signals(between)
    _, later = ask(name, replace(seen, now_ms=NOW_MS + TICK_MS), CONFIG, state)
    assert later == PolicyState().having(F_ms=296_000.0, ticked_ms=float(NOW_MS + TICK_MS))


def test_pressure_raises_f() -> None:
    """With work due and no node F rises by its limit, and the plan tells p, C, D and F as it saw them."""
    plan, state = ask(PAPER, snapshot(jobs=[due(600_000, 300_000)], offers=OFFERS))
    assert state.get("F_ms", 0) == 400_000.0
    told = {name: signals(plan)[name] for name in ("p", "C", "D_gpu_s", "F_s")}
    assert told == {"p": MOST_PRESSURE, "C": 0.0, "D_gpu_s": 300.0, "F_s": 400.0}


def test_f_is_what_decides_who_leaves() -> None:
    """A run is asked to leave when it has used up the F of now, not the F of the settings."""
    state = PolicyState().having(F_ms=200_000.0, ticked_ms=float(NOW_MS))
    plan, _ = ask(PAPER, running(199_999), MANY, state)
    assert (brief(plan), plan.wake_at_ms) == ([], NOW_MS + 1)
    plan, _ = ask(PAPER, running(200_000), MANY, state)
    assert brief(plan) == [("demote", "job_a", "run_a")]
    assert "has run on serverless for 200 s, budget F is 200 s" in plan.actions[0].reason


def test_the_clock_goes_on_in_an_empty_world() -> None:
    """Without a job and a node nothing presses, and F falls with each tick."""
    plan, state = ask(PAPER, snapshot(offers=OFFERS), MANY, TICKED)
    assert plan.wake_at_ms == NOW_MS + TICK_MS
    later = snapshot(now_ms=NOW_MS + TICK_MS, offers=OFFERS)
    assert ask(PAPER, later, MANY, state)[1].get("F_ms", 0) < state.get("F_ms", MANY.budget.first_ms)


# Jobs


@both
def test_a_new_job_starts_serverless_at_once(name: str) -> None:
    """Also between ticks, and also beside a free node."""
    seen = snapshot(jobs=[job()], nodes=[node("node_x", idle_since_ms=0)], offers=OFFERS)
    assert brief(ask(name, seen, MANY, TICKED)[0]) == [("start", "job_a", "fn")]


@both
def test_nodes_go_by_deadline(name: str) -> None:
    """Of those that wait, the earliest deadline takes the node, also between ticks; the others are told why."""
    late, early = due(9 * HOURS_MS), due(8 * HOURS_MS, name="job_b")
    seen = snapshot(jobs=[early, late], nodes=[node("node_x")], offers=OFFERS)
    plan, _ = ask(name, seen, MANY, TICKED)
    assert brief(plan) == [("assign", "job_b", "node_x", "0")]
    assert why(plan).startswith("waits until GPU of any type, 1 CPU fall free on node_x")


def test_who_has_left_does_not_return() -> None:
    """A job that was on serverless waits for a node even if F has risen since; one that never was may start there."""
    was = job("job_a", JobState.WAITING, serverless_used_ms=1, deadline_ms=NOW_MS + 9 * HOURS_MS)
    never = replace(was, job_id="job_b", serverless_used_ms=0)
    plan, _ = ask(PAPER, snapshot(jobs=[was, never], offers=OFFERS), MANY, TICKED)
    assert brief(plan) == [("start", "job_b", "fn")]
    assert why(plan) == "waits for a node with GPU of any type, 1 CPU: none is rented yet"


def test_unless_no_node_could_ever_hold_it() -> None:
    """Where nothing else is offered, it goes on serverless rather than never."""
    was = job("job_a", JobState.WAITING, serverless_used_ms=F_MS)
    plan, _ = ask(PAPER, snapshot(jobs=[was], offers=[SERVERLESS]), MANY, TICKED)
    assert brief(plan) == [("start", "job_a", "fn")]


# Nodes


@pytest.mark.parametrize(("left_ms", "nodes"), [(1, 1), (HORIZON_MS, 1), (HORIZON_MS + 1, 2), (10 * HOURS_MS, 20)])
@both
def test_the_shortfall_is_rented(name: str, left_ms: int, nodes: int) -> None:
    """As many nodes as the work due within the horizon needs, for whoever waits."""
    plan, _ = ask(name, snapshot(jobs=[due(60_000, max(1_000, left_ms))], offers=OFFERS), MANY)
    assert brief(plan) == [("provision", "job_a", "ask")] * nodes
    assert plan.actions[0].reason.endswith(f"the work due within 30 min asks for {nodes} GPUs more than there are")


def test_between_ticks_nothing_is_rented() -> None:
    """The fleet is sized once a tick, however much is due."""
    for name in (PAPER, DRAIN):
        assert brief(ask(name, snapshot(jobs=[due(60_000)], offers=OFFERS), MANY, TICKED)[0]) == []


def test_nodes_are_rented_in_the_name_of_those_who_need_them() -> None:
    """First those that wait, by deadline; then those on serverless, who will have to leave."""
    seen = running(1_000, deadline_ms=NOW_MS + 1, total_run_ms=4 * HOURS_MS)
    waiting = [due(50_000 + place, 10_000, name=f"job_{who}") for place, who in enumerate("cb")]
    plan, _ = ask(PAPER, replace(seen, jobs=(*seen.jobs, *waiting)), MANY)
    assert [who for _, who, _ in brief(plan)] == ["job_c", "job_b", "job_a", *["job_c"] * 6]


def test_large_nodes_count_for_their_gpus() -> None:
    """A node of four GPUs does the work of four, both when it is rented and when it is given back."""
    big = offer("big", Tier.MARKETPLACE, "2.80", gpu_count=4, cpus=32)
    four = due(60_000, 2 * HOURS_MS, resources=Resources(4, 4))  # 8 GPU-hours: 16 GPUs for half an hour
    assert len(ask(PAPER, snapshot(jobs=[four], offers=[big]), MANY)[0].actions) == 4
    idle = [node(f"node_{letter}", gpu_count=4, idle_since_ms=0) for letter in "xy"]
    work = running(1_000, deadline_ms=NOW_MS + HORIZON_MS, total_run_ms=3 * HORIZON_MS)
    plan, _ = ask(PAPER, replace(work, nodes=(*work.nodes, *idle)), MANY)  # 8 GPUs, work for just under 3
    assert brief(plan) == [("release", "node_x")]


def test_the_surplus_goes_back() -> None:
    """What the work due does not need is given back, the dearest first, and at ticks only."""
    prices = {"node_x": "0.50", "node_y": "0.90", "node_z": "0.70"}
    idle = [node(name, price_per_hour=Money.usd(price), idle_since_ms=0) for name, price in prices.items()]
    seen = running(1_000, deadline_ms=NOW_MS + HORIZON_MS, total_run_ms=HORIZON_MS)
    seen = replace(seen, nodes=(*seen.nodes, *idle))
    plan, _ = ask(PAPER, seen, MANY)
    assert brief(plan) == [("release", "node_y"), ("release", "node_z")]
    assert plan.actions[0].reason.endswith("it is idle, and 2 GPUs are more than the work due within 30 min asks for")
    assert brief(ask(PAPER, seen, MANY, TICKED)[0]) == []


def test_under_pressure_nothing_goes_back() -> None:
    """While p is above 1, because of a job that is late, no idle node is given back though the horizon needs none."""
    idle = [node(f"node_{letter}", idle_since_ms=0) for letter in "xyz"]
    late = running(1_000, deadline_ms=0, total_run_ms=400_000)
    plan, _ = ask(PAPER, replace(late, nodes=(*late.nodes, *idle)), MANY)
    assert signals(plan)["p"] > 1
    assert brief(plan) == []


def test_pressure_without_a_shortfall_rents_nothing() -> None:
    """A short window presses, the horizon has room: F climbs and no node is rented."""
    holder = running(1_000, deadline_ms=NOW_MS, total_run_ms=400_000)
    state = None
    for tick in range(3):
        seen = replace(holder, now_ms=NOW_MS + tick * TICK_MS)
        seen = replace(seen, nodes=(*seen.nodes, node("node_z", free_gpus=())))
        plan, state = ask(PAPER, seen, MANY, state)
        assert brief(plan) == []
        assert signals(plan)["p"] > 1
    assert state is not None
    assert state.get("F_ms", 0) > 300_000


def test_drain_covers_every_job_that_waits() -> None:
    """However far their deadlines, at a tick one node is rented for each that no idle or coming node covers."""
    jobs = [due((9 + place) * HOURS_MS, name=f"job_{who}") for place, who in enumerate("abc")]
    seen = snapshot(jobs=jobs, nodes=[node("node_x", state=NodeState.BOOTING)], offers=OFFERS)
    assert brief(ask(PAPER, seen, MANY)[0]) == []
    plan, _ = ask(DRAIN, seen, MANY)
    assert brief(plan) == [("provision", "job_b", "ask"), ("provision", "job_c", "ask")]
    assert plan.actions[0].reason.endswith("no idle or coming node covers the job")


def test_at_the_limit_drain_makes_room_for_larger_nodes() -> None:
    """An idle node that is too small for who waits goes back where no more may be rented; the literal one keeps it."""
    big = offer("big", Tier.MARKETPLACE, "1.40", gpu_count=2, cpus=16)
    seen = snapshot(
        jobs=[due(60_000, resources=Resources(2, 2))], nodes=[node("node_x", idle_since_ms=0)], offers=[big]
    )
    full = replace(MANY, serverful_limit=1)
    plan, _ = ask(DRAIN, seen, full)
    assert brief(plan) == [("release", "node_x")]
    assert plan.actions[0].reason.endswith("it holds none of the jobs that wait (1), and no more nodes may be rented")
    assert brief(ask(PAPER, seen, full)[0]) == []
    assert ("release", "node_x") not in brief(ask(DRAIN, seen, MANY)[0])


def test_drain_rents_once_for_what_is_due_and_waits() -> None:
    """A job for which Algorithm 2 has just rented is covered."""
    assert len(ask(DRAIN, snapshot(jobs=[due(60_000)], offers=OFFERS), MANY)[0].actions) == 2
    assert len(ask(PAPER, snapshot(jobs=[due(60_000)], offers=OFFERS), MANY)[0].actions) == 2


@both
def test_the_limit_holds(name: str) -> None:
    """No more nodes are rented than the settings allow."""
    assert len(ask(name, snapshot(jobs=[due(60_000, 9 * HOURS_MS)], offers=OFFERS), CONFIG)[0].actions) == 4


# What is seen


def test_capacity_counts_what_is_or_will_be_there() -> None:
    """GPUs of rented nodes that are ready, silent or coming; not those that leave, nor serverless ones."""
    states = (NodeState.READY, NodeState.BOOTING, NodeState.UNREACHABLE, NodeState.DRAINING, NodeState.TERMINATING)
    nodes = [node(f"node_{state}", state=state, gpu_count=2, free_gpus=()) for state in states]
    board = Board.of(snapshot(nodes=[*nodes, node("node_s", Tier.SERVERLESS)]))
    assert [one.capacity for one in class_demands(board, CONFIG)] == [6.0]


def test_demand_counts_gpus_and_leaves_out_who_does_not_run() -> None:
    """Work is GPU time; a paused job and one that ends have none."""
    two = due(600_000, 120_000, resources=Resources(2, 2))
    paused = job("job_b", JobState.PAUSED, deadline_ms=NOW_MS, total_run_ms=HOURS_MS)
    leaving = job("job_c", JobState.CHECKPOINTING, deadline_ms=NOW_MS, total_run_ms=HOURS_MS, leaving=True)
    found = pressure_now(Board.of(snapshot(jobs=[two, paused, leaving], offers=[MARKET])), CONFIG, 1.0)
    assert (found.demand_gpu_ms, found.p) == (240_000, 0.4)
