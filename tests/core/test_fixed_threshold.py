"""`fixed-threshold` by example: a snapshot, and the plan that is expected of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.model.job import Caps, JobState, Resources, StartRule
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import Provision
from app.core.model.run import RunState
from tests.core.plans import F_MS, brief, decide, running, spent_job, why
from tests.core.samples import (
    CLOUD,
    CONFIG,
    GIB,
    MARKET,
    NOW_MS,
    OFFERS,
    SERVERLESS,
    job,
    node,
    offer,
    on_serverless,
    run,
    snapshot,
)

# Starting


def test_queued_job_starts_at_once() -> None:
    """A queued job starts on the cheapest serverless offer, with its row version and a reason with numbers."""
    dear = offer("dear", Tier.SERVERLESS, "3.95")
    plan = decide(snapshot(jobs=[job(row_version=7)], offers=[dear, *OFFERS]))
    assert brief(plan) == [("start", "job_a", "fn")]
    assert plan.actions[0].versions == (("job_a", 7),)
    assert plan.actions[0].reason == "starts on local A100 at $2.10/h, the cheapest of 2 serverless offers that fit"
    assert plan.waiting == ()


def test_equal_prices_go_by_startup_then_key() -> None:
    """Among offers of one price the quicker wins, and among equals the first by key."""
    slow = offer("a", startup_ms=9_000)
    assert brief(decide(snapshot(jobs=[job()], offers=[slow, offer("c"), offer("b")]))) == [("start", "job_a", "b")]


def test_earliest_deadline_first_within_the_limit() -> None:
    """Serverless places go by deadline, then submission, then id; the rest are told how many are taken."""
    jobs = [
        job("job_a", deadline_ms=9),
        job("job_b", deadline_ms=5, submitted_ms=2),
        job("job_c", deadline_ms=5, submitted_ms=1),
        job("job_d", deadline_ms=5, submitted_ms=1),
    ]
    plan = decide(snapshot(jobs=jobs, offers=OFFERS), replace(CONFIG, serverless_limit=3))
    assert [who for _, who, _ in brief(plan)] == ["job_c", "job_d", "job_b"]
    assert why(plan) == "waits for a serverless place: 3 of 3 are taken"


def test_serverless_nodes_of_every_state_count() -> None:
    """A serverless node that is ending is still rented, and counts against the limit."""
    ending = node("node_x", Tier.SERVERLESS, NodeState.TERMINATING)
    plan = decide(snapshot(jobs=[job()], nodes=[ending], offers=OFFERS), replace(CONFIG, serverless_limit=1))
    assert brief(plan) == []


def test_avoided_offers_are_passed_over() -> None:
    """An offer that failed the job is not taken while another serverless one fits, however dear."""
    dear = offer("dear", Tier.SERVERLESS, "9.99")
    plan = decide(snapshot(jobs=[job(avoided_offers=frozenset({SERVERLESS.key}))], offers=[dear, *OFFERS]))
    assert brief(plan) == [("start", "job_a", "dear")]
    assert plan.actions[0].reason.endswith("(left out, as they failed this job recently: 1)")


def test_when_all_serverless_failed_it_goes_serverful() -> None:
    """A job all of whose serverless offers failed rather rents a node than trying them again."""
    plan = decide(snapshot(jobs=[job(avoided_offers=frozenset({SERVERLESS.key}))], offers=OFFERS))
    assert brief(plan) == [("provision", "job_a", "ask")]


def test_when_everything_failed_the_best_is_tried_again() -> None:
    """A job whose every offer failed is not stranded: after its back-off it tries again, and says so."""
    plan = decide(snapshot(jobs=[job(avoided_offers=frozenset({SERVERLESS.key}))], offers=[SERVERLESS]))
    assert brief(plan) == [("start", "job_a", "fn")]
    assert "tried again" in plan.actions[0].reason


def test_back_off_is_respected_and_woken() -> None:
    """A job in back-off gets nothing, is told for how long, and the loop is woken when it is over."""
    plan = decide(snapshot(jobs=[job(not_before_ms=NOW_MS + 12_000)], offers=OFFERS))
    assert brief(plan) == []
    assert why(plan) == "its last start failed: tries again in 12 s"
    assert plan.wake_at_ms == NOW_MS + 12_000


def test_back_off_is_over_at_its_moment() -> None:
    """At the very moment the back-off names, the job starts."""
    assert brief(decide(snapshot(jobs=[job(not_before_ms=NOW_MS)], offers=OFFERS))) == [("start", "job_a", "fn")]


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.WAITING])
def test_cost_cap_stops_placement(state: JobState) -> None:
    """A job that has reached its cost cap is not placed again; one micro-dollar below, it is."""
    capped = job(state=state, caps=Caps(max_cost=Money.usd("1")), spent=Money.usd("1"))
    plan = decide(snapshot(jobs=[capped], offers=OFFERS))
    assert brief(plan) == []
    assert why(plan) == "has cost $1.00 of at most $1.00: is paused until max_cost is raised"
    below = replace(capped, spent=Money(999_999))
    assert brief(decide(snapshot(jobs=[below], offers=OFFERS))) == [("start", "job_a", "fn")]


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.QUEUED, JobState.WAITING}))
def test_other_jobs_are_left_alone(state: JobState) -> None:
    """Only queued and waiting jobs are placed."""
    assert brief(decide(snapshot(jobs=[job(state=state)], offers=OFFERS))) == []


@pytest.mark.parametrize(
    ("need", "fits"),
    [
        (Resources(gpu_type="a100"), True),
        (Resources(gpu_type="A-100"), True),
        (Resources(gpu_type="H100"), False),
        (Resources(gpus_min=2), False),
        (Resources(gpu_memory_bytes_min=40 * GIB), True),
        (Resources(gpu_memory_bytes_min=40 * GIB + 1), False),
        (Resources(cpus_min=8), True),
        (Resources(cpus_min=9), False),
        (Resources(memory_bytes_min=64 * GIB + 1), False),
    ],
)
@pytest.mark.parametrize("tier", [Tier.SERVERLESS, Tier.MARKETPLACE])
def test_what_fits(need: Resources, fits: bool, tier: Tier) -> None:
    """GPUs, their type and memory, CPUs and memory must each suffice, in every tier alike."""
    plan = decide(snapshot(jobs=[job(resources=need)], offers=[offer("x", tier)]))
    assert bool(plan.actions) is fits
    assert bool(plan.waiting) is not fits


def test_what_fits_nowhere_is_told_what_there_is() -> None:
    """A job that nothing could hold is told what it asks for and the largest that is offered."""
    big = Resources(gpus_min=8, gpu_type="H100", gpu_memory_bytes_min=80 * GIB, cpus_min=2, memory_bytes_min=GIB)
    assert why(decide(snapshot(jobs=[job(resources=big)], offers=[SERVERLESS]))) == (
        "no offer has 8 x H100, 80 GiB per GPU, 2 CPUs, 1 GiB of memory; the largest of 1 is local A100 at $2.10/h "
        "with 40 GiB per GPU, 8 CPUs and 64 GiB"
    )
    assert "no provider offers a machine now" in why(decide(snapshot(jobs=[job()])))


# Which tier


def test_no_serverless_fit_goes_straight_to_serverful() -> None:
    """A job that no serverless offer can hold rents a node at once."""
    big = offer("big", Tier.MARKETPLACE, "9", gpu_count=4, cpus=32)
    plan = decide(snapshot(jobs=[job(resources=Resources(gpus_min=4))], offers=[*OFFERS, big]))
    assert brief(plan) == [("provision", "job_a", "big")]


def test_lost_serverless_place_with_budget_left() -> None:
    """A job that lost its serverless place starts there again while it has budget, also beside a free node."""
    lost = job(state=JobState.WAITING, serverless_used_ms=F_MS - 1)
    assert brief(decide(snapshot(jobs=[lost], nodes=[node("node_x")], offers=OFFERS)))[0] == ("start", "job_a", "fn")


def test_used_up_budget_goes_serverful() -> None:
    """A job whose budget is used up to the millisecond does not start serverless again."""
    assert brief(decide(snapshot(jobs=[spent_job()], offers=OFFERS))) == [("provision", "job_a", "ask")]


def test_used_up_budget_without_any_serverful_place() -> None:
    """Where no serverful place could ever hold it, a job rather goes on serverless than never."""
    plan = decide(snapshot(jobs=[spent_job()], offers=[SERVERLESS]))
    assert brief(plan) == [("start", "job_a", "fn")]
    assert plan.actions[0].reason.endswith("no serverful node or offer could hold it")


def test_when_cheap_skips_serverless() -> None:
    """A job that may start when it is cheap is not put on the dear tier, unless there is no other."""
    patient = job(start=StartRule.WHEN_CHEAP)
    assert brief(decide(snapshot(jobs=[patient], offers=OFFERS))) == [("provision", "job_a", "ask")]
    assert brief(decide(snapshot(jobs=[patient], offers=[SERVERLESS]))) == [("start", "job_a", "fn")]


def test_budget_of_zero_and_limit_of_zero_mean_never_serverless() -> None:
    """F = 0, or no serverless places at all, sends every job to serverful."""
    seen = snapshot(jobs=[job()], offers=OFFERS)
    for config in (replace(CONFIG, serverless_budget_ms=0), replace(CONFIG, serverless_limit=0)):
        assert brief(decide(seen, config)) == [("provision", "job_a", "ask")]


# Demoting


def test_demotes_at_the_budget() -> None:
    """A serverless run is asked to leave at F, not a millisecond earlier, and the loop is woken for it."""
    early = decide(running(F_MS - 1))
    assert (brief(early), early.wake_at_ms) == ([], NOW_MS + 1)
    plan = decide(running(F_MS + 1_500))
    assert brief(plan) == [("demote", "job_a", "run_a")]
    assert plan.actions[0].versions == (("job_a", 4), ("run_a", 2))
    assert plan.actions[0].reason == "has run on serverless for 301 s, budget F is 300 s: moves to a cheaper node"


def test_earlier_stays_count() -> None:
    """Time on serverless in earlier runs counts towards F."""
    assert brief(decide(running(1, serverless_used_ms=F_MS - 1))) == [("demote", "job_a", "run_a")]
    assert decide(running(1_000, serverless_used_ms=100_000)).wake_at_ms == NOW_MS + F_MS - 101_000


def test_serverful_runs_are_never_demoted() -> None:
    """A run on a rented node stays, however long it has run."""
    held = job(state=JobState.RUNNING)
    there = run("run_a", "job_a", "node_x", tier=Tier.MARKETPLACE)
    seen = snapshot(jobs=[held], runs=[there], nodes=[node("node_x", free_gpus=())], offers=OFFERS)
    plan = decide(seen)
    assert (brief(plan), plan.wake_at_ms) == ([], None)


@pytest.mark.parametrize(
    ("job_state", "run_state", "since"),
    [
        (JobState.STARTING, RunState.STARTING, None),
        (JobState.STARTING, RunState.RUNNING, 0),
        (JobState.RUNNING, RunState.STOPPING, 0),
    ],
)
def test_only_running_code_is_demoted(job_state: JobState, run_state: RunState, since: int | None) -> None:
    """Code that has not started, or was asked to stop already, is not asked to leave."""
    held = job(state=job_state)
    live, place = on_serverless(held, 0, state=run_state, running_since_ms=since)
    assert brief(decide(snapshot(jobs=[held], runs=[live], nodes=[place], offers=OFFERS))) == []


def test_not_demoted_where_nothing_serverful_fits() -> None:
    """A job that no serverful place could hold stays, and is told why and what it has used."""
    plan = decide(replace(running(F_MS + 1_000), offers=(SERVERLESS,)))
    assert brief(plan) == []
    assert why(plan).startswith("stays on serverless although it has run there for 301 s, budget F is 300 s: no prov")
    assert plan.wake_at_ms is None


def test_demoted_towards_an_own_node() -> None:
    """A node of the project that is large enough is reason to move, without any offer; and it is not released."""
    seen = replace(running(F_MS), offers=())
    idle = node("node_x", idle_since_ms=0)
    plan = decide(replace(seen, nodes=(*seen.nodes, idle)))
    assert brief(plan) == [("demote", "job_a", "run_a")]
    other_project = replace(idle, project_id="proj_b")
    plan = decide(replace(seen, nodes=(*seen.nodes, other_project)))
    assert brief(plan) == [("release", "node_x")]


def test_the_word_cheaper_is_true() -> None:
    """A move to a dearer node is not called a move to a cheaper one."""
    dear = replace(running(F_MS), offers=(replace(MARKET, price_per_hour=Money.usd("5")),))
    assert decide(dear).actions[0].reason.endswith("moves to a serverful node")


# Waiting jobs and nodes


def test_takes_the_cheapest_ready_node_and_lowest_gpus() -> None:
    """A waiting job takes the lowest free GPUs of the cheapest ready node that has room."""
    nodes = [
        node("node_a", price_per_hour=Money.usd("2"), idle_since_ms=NOW_MS),
        node("node_b", gpu_count=4, free_gpus=(1, 3), price_per_hour=Money.usd("1.50"), row_version=9),
        node("node_c", free_gpus=(), price_per_hour=Money.usd("0.10")),
        node("node_d", state=NodeState.UNREACHABLE, price_per_hour=Money.usd("0.10")),
        node("node_e", project_id="proj_b", price_per_hour=Money.usd("0.10"), idle_since_ms=NOW_MS),
    ]
    holder = job("job_h", JobState.RUNNING, resources=Resources(gpus_min=2))
    live = run("run_h", "job_h", "node_b", tier=Tier.MARKETPLACE)
    two = spent_job(resources=Resources(gpus_min=2))
    seen = snapshot(jobs=[two, holder], runs=[live], nodes=nodes, offers=OFFERS)
    plan = decide(seen, replace(CONFIG, idle_release_ms=1))
    assert brief(plan) == [("assign", "job_a", "node_b", "1", "3")]
    assert plan.actions[0].versions == (("job_a", 1), ("node_b", 9))
    assert "takes 2 of 2 free GPUs" in plan.actions[0].reason


def test_jobs_of_one_plan_share_a_node() -> None:
    """Two jobs get different GPUs of one node, earliest deadline first, and the third a node of its own."""
    jobs = [spent_job(f"job_{name}", deadline_ms=at) for name, at in (("a", 3), ("b", 2), ("c", 1))]
    plan = decide(snapshot(jobs=jobs, nodes=[node("node_x", gpu_count=2)], offers=OFFERS))
    assert brief(plan) == [
        ("assign", "job_c", "node_x", "0"),
        ("assign", "job_b", "node_x", "1"),
        ("provision", "job_a", "ask"),
    ]


def test_cpus_and_memory_of_runs_are_held() -> None:
    """What live runs hold of a node's CPUs and memory is not given away a second time."""
    busy = node("node_x", gpu_count=2, cpus=8, memory_bytes=32 * GIB, free_gpus=(1,))
    live = run("run_h", "job_h", "node_x", tier=Tier.MARKETPLACE)
    for hungry in (Resources(cpus_min=5), Resources(memory_bytes_min=20 * GIB)):
        holder = job("job_h", JobState.RUNNING, resources=hungry)
        seen = snapshot(jobs=[spent_job(resources=hungry), holder], runs=[live], nodes=[busy], offers=OFFERS)
        assert brief(decide(seen)) == [("provision", "job_a", "ask")]
        modest = snapshot(jobs=[spent_job(), holder], runs=[live], nodes=[busy], offers=OFFERS)
        assert brief(decide(modest)) == [("assign", "job_a", "node_x", "1")]


def test_of_equal_nodes_the_fullest_is_filled() -> None:
    """Among nodes of one price the one with the fewest free GPUs is taken, so that the other can fall idle."""
    holder = job("job_h", JobState.RUNNING)
    live = run("run_h", "job_h", "node_y", tier=Tier.MARKETPLACE)
    nodes = [node("node_x", gpu_count=2), node("node_y", gpu_count=2, free_gpus=(1,))]
    plan = decide(snapshot(jobs=[spent_job(), holder], runs=[live], nodes=nodes, offers=OFFERS))
    assert brief(plan) == [("assign", "job_a", "node_y", "1")]


@pytest.mark.parametrize("need", [Resources(cpus_min=5), Resources(memory_bytes_min=20 * GIB)])
def test_cpus_and_memory_are_given_once_in_a_plan(need: Resources) -> None:
    """Of two jobs of one plan, the second does not get CPUs or memory that the first was just given."""
    jobs = [spent_job("job_a", resources=need), spent_job("job_b", resources=need)]
    seen = snapshot(jobs=jobs, nodes=[node("node_x", gpu_count=2, cpus=8, memory_bytes=32 * GIB)], offers=OFFERS)
    assert brief(decide(seen)) == [("assign", "job_a", "node_x", "0"), ("provision", "job_b", "ask")]


def test_counts_on_the_node_that_comes_first() -> None:
    """Of several coming nodes a job waits for the one expected first, even if it is dearer."""
    nodes = [
        node("node_x", state=NodeState.BOOTING, expected_ready_ms=NOW_MS + 9_000, price_per_hour=Money.usd("0.10")),
        node("node_y", state=NodeState.BOOTING, expected_ready_ms=NOW_MS + 3_000),
    ]
    assert why(decide(snapshot(jobs=[spent_job()], nodes=nodes))).startswith("waits for node_y")


def test_waits_for_a_silent_node_rather_than_going_back() -> None:
    """While its only serverful place is silent, a job waits for it and does not go back to the dear tier."""
    plan = decide(
        snapshot(jobs=[spent_job()], nodes=[node("node_x", state=NodeState.UNREACHABLE)], offers=[SERVERLESS])
    )
    assert brief(plan) == []
    assert why(plan) == "waits for a node with GPU of any type, 1 CPU to become reachable or ready"


@pytest.mark.parametrize("state", [NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN])
def test_counts_on_a_coming_node(state: NodeState) -> None:
    """One job per free slot waits for a node that comes; the next one rents another."""
    jobs = [spent_job("job_a", deadline_ms=1), spent_job("job_b", deadline_ms=2)]
    plan = decide(snapshot(jobs=jobs, nodes=[node("node_x", state=state)], offers=OFFERS))
    assert brief(plan) == [("provision", "job_b", "ask")]
    assert why(plan) == "waits for node_x (local A100, $0.70/h): it boots, expected in 20 s"


@pytest.mark.parametrize("state", [NodeState.UNREACHABLE, NodeState.DRAINING, NodeState.TERMINATING])
def test_does_not_count_on_a_leaving_node(state: NodeState) -> None:
    """A node that is silent or on its way out covers nobody's need."""
    plan = decide(snapshot(jobs=[spent_job()], nodes=[node("node_x", state=state)], offers=OFFERS))
    assert brief(plan) == [("provision", "job_a", "ask")]


def test_late_node_is_called_late() -> None:
    """A node that should have been ready by now is told as such."""
    late = node("node_x", state=NodeState.BOOTING, expected_ready_ms=NOW_MS - 5_000)
    assert why(decide(snapshot(jobs=[spent_job()], nodes=[late]))).endswith("it boots, expected 5 s ago")


def test_marketplace_first_conventional_when_it_has_nothing() -> None:
    """A dear marketplace offer is preferred to a cheap conventional one, which is the fallback."""
    dear = offer("dear", Tier.MARKETPLACE, "4.00")
    plan = decide(snapshot(jobs=[spent_job()], offers=[dear, CLOUD, replace(dear, offer_id="e")]))
    assert brief(plan) == [("provision", "job_a", "dear")]
    assert "the cheapest of 2 marketplace offers that fit" in plan.actions[0].reason
    assert brief(decide(snapshot(jobs=[spent_job()], offers=[CLOUD]))) == [("provision", "job_a", "vm")]
    avoids = spent_job(avoided_offers=frozenset({dear.key}))
    assert brief(decide(snapshot(jobs=[avoids], offers=[dear, CLOUD]))) == [("provision", "job_a", "vm")]


def test_provision_says_who_and_why() -> None:
    """The rent names owner, job, versions, price and when the node is expected."""
    plan = decide(snapshot(jobs=[spent_job(project_id="proj_b", row_version=3)], offers=OFFERS))
    action = plan.actions[0]
    assert isinstance(action, Provision)
    assert (action.project_id, action.for_job_id, action.versions) == ("proj_b", "job_a", (("job_a", 3),))
    assert action.reason == (
        "rents local A100 at $0.74/h, the only one of the marketplace offers that fit, ready in about 36 s: "
        "no node of the project has room"
    )


def test_a_large_new_node_is_shared() -> None:
    """What a rented node has left covers the next jobs of the same project, and of no other."""
    big = offer("big", Tier.MARKETPLACE, "2", gpu_count=2, cpus=16)
    jobs = [
        spent_job("job_a", deadline_ms=1),
        spent_job("job_b", deadline_ms=2),
        spent_job("job_c", project_id="proj_b"),
    ]
    plan = decide(snapshot(jobs=jobs, offers=[big]))
    assert brief(plan) == [("provision", "job_a", "big"), ("provision", "job_c", "big")]
    assert why(plan, "job_b") == "shares the node that is being rented for job_a"


def test_serverful_limit() -> None:
    """No more nodes are rented than the limit allows, whatever state they are in, and the rest are told so."""
    ending = node("node_x", state=NodeState.TERMINATING)
    jobs = [spent_job("job_a", deadline_ms=2), spent_job("job_b", deadline_ms=1)]
    plan = decide(snapshot(jobs=jobs, nodes=[ending], offers=OFFERS), replace(CONFIG, serverful_limit=2))
    assert brief(plan) == [("provision", "job_b", "ask")]
    assert why(plan) == "waits for a node with GPU of any type, 1 CPU: 2 of 2 serverful nodes are rented"


def test_room_is_held_open_for_a_large_job() -> None:
    """At the limit, free GPUs on the node that a large job waits for are not given to later small ones."""
    large = spent_job("job_a", deadline_ms=1, resources=Resources(gpus_min=4))
    small = spent_job("job_b", deadline_ms=2)
    holder = job("job_h", JobState.RUNNING)
    seen = snapshot(
        jobs=[large, small, holder],
        runs=[run("run_h", "job_h", "node_x", tier=Tier.MARKETPLACE)],
        nodes=[node("node_x", gpu_count=4, free_gpus=(1, 2, 3))],
        offers=[offer("big", Tier.MARKETPLACE, gpu_count=4, cpus=32)],
    )
    plan = decide(seen, replace(CONFIG, serverful_limit=1))
    assert brief(plan) == []
    assert why(plan).startswith("waits until 4 x GPU of any type, 1 CPU fall free on node_x")
    assert why(plan).endswith("1 of 1 serverful nodes are rented")
    earlier = replace(small, deadline_ms=0)
    seen = replace(seen, jobs=(large, earlier, holder))
    assert brief(decide(seen, replace(CONFIG, serverful_limit=1))) == [("assign", "job_b", "node_x", "1")]
