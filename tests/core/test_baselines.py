"""The baselines by example: `modal-only`, `cheapest-first`, `hpa`, `sjf` and `tiresias-l`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.model.job import Caps, JobState, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import ActionKind
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policies import policy_named
from app.core.policies.ordered import QUEUE_LIMITS_GPU_MS
from app.core.policy import PolicyState
from tests.core.plans import ask, brief, running, why
from tests.core.samples import (
    ALL_ACTIONS,
    CLOUD,
    CONFIG,
    MARKET,
    NOW_MS,
    OFFERS,
    SERVERLESS,
    job,
    node,
    run,
    snapshot,
)

MINUTE_MS = 60_000
ALL = replace(CONFIG, capabilities=ALL_ACTIONS, serverful_limit=1_000)


def plan_of(name: str, seen: Snapshot, config: Any = ALL) -> list[tuple[str, ...]]:
    return brief(ask(name, seen, config)[0])


def busy(name: str, **changes: Any) -> tuple[JobView, RunView, NodeView]:
    """A job that trains on a rented node of its own."""
    held = job(f"job_{name}", JobState.RUNNING, **changes)
    place = node(f"node_{name}", gpu_count=held.resources.gpus_min, free_gpus=())
    return held, run(f"run_{name}", held.job_id, place.node_id, tier=Tier.MARKETPLACE, running_since_ms=NOW_MS), place


def world(*held: tuple[JobView, RunView, NodeView], jobs: Any = (), nodes: Any = (), **changes: Any) -> Snapshot:
    return snapshot(
        jobs=[*(one for one, _, _ in held), *jobs],
        runs=[one for _, one, _ in held],
        nodes=[*(one for _, _, one in held), *nodes],
        **({"offers": OFFERS} | changes),
    )


# modal-only


def test_modal_only_knows_one_place() -> None:
    """Every job starts on serverless, earliest deadline first; nothing is moved, rented or given back."""
    jobs = [job("job_a", deadline_ms=2), job("job_b", JobState.WAITING, deadline_ms=1, serverless_used_ms=10**9)]
    seen = world(jobs=jobs, nodes=[node("node_x", idle_since_ms=0)])
    assert plan_of("modal-only", seen) == [("start", "job_b", "fn"), ("start", "job_a", "fn")]
    assert plan_of("modal-only", running(10**6)) == []


def test_modal_only_says_why_not() -> None:
    """Places that are taken, an offer that is not there, a limit that is reached."""
    one = replace(ALL, serverless_limit=0)
    assert "switched off here: starting on serverless" in why(ask("modal-only", world(jobs=[job()]), one)[0])
    assert "no offer has GPU of any type" in why(ask("modal-only", world(jobs=[job()], offers=[MARKET]), ALL)[0])
    capped = job(caps=Caps(max_cost=Money(1)), spent=Money(1))
    assert "is paused until max_cost is raised" in why(ask("modal-only", world(jobs=[capped]), ALL)[0])


# cheapest-first


def test_cheapest_first_rents_for_each() -> None:
    """Every job gets a machine of the cheapest tier that fits; idle ones go back at once; serverless is not known."""
    jobs = [job("job_a"), job("job_b", deadline_ms=1)]
    assert plan_of("cheapest-first", world(jobs=jobs)) == [("provision", "job_b", "ask"), ("provision", "job_a", "ask")]
    assert plan_of("cheapest-first", world(jobs=[job()], offers=[SERVERLESS, CLOUD])) == [("provision", "job_a", "vm")]
    assert plan_of("cheapest-first", world(nodes=[node("node_x", idle_since_ms=NOW_MS)])) == [("release", "node_x")]
    assert plan_of("cheapest-first", world(jobs=[job()], offers=[SERVERLESS])) == []


def test_cheapest_first_takes_what_is_there() -> None:
    """A node that is free is taken, one that comes is counted on."""
    nodes = [node("node_x"), node("node_y", state=NodeState.BOOTING)]
    seen = world(jobs=[job("job_a", deadline_ms=1), job("job_b", deadline_ms=2)], nodes=nodes)
    assert plan_of("cheapest-first", seen) == [("assign", "job_a", "node_x", "0")]


# hpa


@pytest.mark.parametrize(("in_use", "nodes"), [(1, 2), (7, 10), (14, 20), (20, 29), (21, 30), (42, 60), (161, 230)])
def test_seventy_percent(in_use: int, nodes: int) -> None:
    """ceil(nodes in use / 0.7), exactly: 21 in use are 70 % of 30."""
    held = [busy(f"r{index:03d}") for index in range(in_use)]
    waiting = [job(f"job_w{index:03d}") for index in range(nodes)]
    plan, state = ask("hpa", world(*held, jobs=waiting), ALL)
    rented = [step for step in brief(plan) if step[0] == "provision"]
    assert len(rented) == nodes - in_use
    assert state.get("wanted", 0) == nodes
    assert plan.actions[0].reason.endswith(f"100 % of {in_use} nodes are in use, 70 % are wanted")


def test_what_comes_is_counted() -> None:
    """Nodes that boot are part of the figure, not on top of it."""
    coming = [node(f"node_c{index}", state=NodeState.BOOTING) for index in range(2)]
    held = [busy(f"r{index}") for index in range(7)]
    waiting = [job(f"job_w{index}") for index in range(9)]
    plan, _ = ask("hpa", world(*held, jobs=waiting, nodes=coming), ALL)
    assert [kind for kind, *_ in brief(plan)] == ["provision"]


def test_the_first_node_comes_with_the_first_job() -> None:
    """Without nodes there is nothing to measure: one is rented; and not before a job waits."""
    assert plan_of("hpa", world(jobs=[job("job_a", submitted_ms=2), job("job_b", submitted_ms=1)])) == [
        ("provision", "job_b", "ask")
    ]
    assert plan_of("hpa", world()) == []
    assert plan_of("hpa-conventional", world(jobs=[job()])) == [("provision", "job_a", "vm")]
    assert plan_of("hpa-conventional", world(jobs=[job()], offers=[SERVERLESS, MARKET])) == []


def test_idle_nodes_that_nobody_fits_do_not_stop_it() -> None:
    """Where only idle nodes are left and none holds the job, one more is rented; at the limit they make room."""
    large = job(resources=Resources(2, 2))
    big = replace(MARKET, gpu_count=2, cpus=16)
    seen = world(jobs=[large], nodes=[node("node_x", idle_since_ms=0)], offers=[big])
    assert plan_of("hpa", seen) == [("provision", "job_a", "ask")]
    assert plan_of("hpa", seen, replace(ALL, serverful_limit=1)) == [("release", "node_x")]


def test_it_decides_every_quarter_of_a_tick() -> None:
    """Between, nodes are given out and none is rented."""
    seen = world(jobs=[job()])
    _, state = ask("hpa", seen, ALL)
    assert ask("hpa", seen, ALL)[0].wake_at_ms == NOW_MS + 15_000
    early = replace(seen, now_ms=NOW_MS + 14_999)
    assert brief(ask("hpa", early, ALL, state)[0]) == []
    assert brief(ask("hpa", replace(early, nodes=(node("node_x"),)), ALL, state)[0]) == [
        ("assign", "job_a", "node_x", "0")
    ]
    assert brief(ask("hpa", replace(seen, now_ms=NOW_MS + 15_000), ALL, state)[0]) == [("provision", "job_a", "ask")]


def test_it_gives_back_down_to_the_highest_of_five_minutes() -> None:
    """A figure of 10, then 8, then 2: ten nodes are kept for five minutes after the first, eight after the second."""
    state, kept = PolicyState(), []
    course = [(0, 7), (240_000, 5), (285_000, 1), (300_000, 1), (300_001 + 14_999, 1), (541_000, 1), (900_000, 1)]
    count = 10
    for at_ms, in_use in course:
        held = [busy(f"r{index}") for index in range(in_use)]
        spare = [node(f"node_s{index}", idle_since_ms=0) for index in range(count - in_use)]
        seen = replace(world(*held, nodes=spare), now_ms=NOW_MS + at_ms)
        plan, state = ask("hpa", seen, ALL, state)
        count -= len(plan.actions)
        kept.append(count)
    assert kept == [10, 10, 10, 10, 8, 2, 2]
    assert len(state.values) < 6  # what can no longer be the highest is forgotten


def test_the_last_node_stays_while_there_are_jobs() -> None:
    """One is kept for those that there are, and none for nobody."""
    state = PolicyState()
    paused = world(jobs=[job(state=JobState.PAUSED)], nodes=[node("node_x", idle_since_ms=0)])
    assert brief(ask("hpa", paused, ALL, state)[0]) == []
    assert plan_of("hpa", world(nodes=[node("node_x", idle_since_ms=0)])) == [("release", "node_x")]


# sjf and tiresias-l


LIMIT = replace(ALL, serverful_limit=1)


def test_sjf_takes_the_shortest_first() -> None:
    """By time left; what is not known counts for what it has run so far; ties by submission."""
    jobs = [
        job("job_a", total_run_ms=900_000),
        job("job_b", JobState.WAITING, total_run_ms=900_000, done_ms=600_000),
        job("job_c", JobState.WAITING, total_run_ms=None, done_ms=200_000),
        job("job_d", total_run_ms=900_000, submitted_ms=-1),
    ]
    nodes = [node(f"node_{letter}", price_per_hour=Money(index)) for index, letter in enumerate("wxyz")]
    assert [who for _, who, *_ in plan_of("sjf", world(jobs=jobs, nodes=nodes))] == ["job_c", "job_b", "job_d", "job_a"]


def test_sjf_preempts_the_longest() -> None:
    """At the limit a shorter job has the longest save and leave; without preemption it waits."""
    long, longer = busy("l", total_run_ms=500_000), busy("m", total_run_ms=900_000)
    seen = world(long, longer, jobs=[job(total_run_ms=400_000)])
    two = replace(ALL, serverful_limit=2)
    plan, _ = ask("sjf", seen, two)
    assert brief(plan) == [("preempt", "job_m", "run_m")]
    assert plan.actions[0].reason == "saves and leaves its node: job_a comes before it and has no place"
    assert "2 of 2 serverful nodes are rented" in why(plan)
    assert plan_of("sjf-np", seen, two) == []
    later = world(long, longer, jobs=[job(total_run_ms=900_001)])
    assert plan_of("sjf", later, two) == []


def test_who_leaves_already_is_enough() -> None:
    """While one run saves, a second is not asked to; and as many leave as the job needs."""
    first, second = (busy(name, total_run_ms=9 * 10**6) for name in "lm")
    saving = (replace(first[0], state=JobState.CHECKPOINTING), replace(first[1], state=RunState.STOPPING), first[2])
    two = replace(ALL, serverful_limit=2)
    assert plan_of("sjf", world(saving, second, jobs=[job(total_run_ms=1_000)]), two) == []
    jobs = [job("job_a", total_run_ms=1_000), job("job_b", total_run_ms=1_000)]
    assert plan_of("sjf", world(saving, second, jobs=jobs), two) == [("preempt", "job_m", "run_m")]


def test_tiresias_has_three_queues() -> None:
    """By GPU time had: below 3250 s, below 7200 s, and the rest; within a queue by arrival."""
    first, second = QUEUE_LIMITS_GPU_MS
    had = {
        "job_a": (second, 1),
        "job_b": (first, 2),
        "job_c": (first - 1, 4),
        "job_d": (0, 5),
        "job_e": (second - 1, 3),
    }
    jobs = [job(name, JobState.WAITING, done_ms=done, submitted_ms=at_ms) for name, (done, at_ms) in had.items()]
    nodes = [node(f"node_{letter}", price_per_hour=Money(index)) for index, letter in enumerate("vwxyz")]
    placed = plan_of("tiresias-l", world(jobs=jobs, nodes=nodes))
    assert [who for _, who, *_ in placed] == ["job_c", "job_d", "job_b", "job_e", "job_a"]


def test_tiresias_counts_gpus() -> None:
    """Two GPUs for half of the time are as much."""
    first, _ = QUEUE_LIMITS_GPU_MS
    two = job("job_a", JobState.WAITING, done_ms=first // 2, resources=Resources(2, 2))
    one = job("job_b", JobState.WAITING, done_ms=first // 2, submitted_ms=9)
    nodes = [node("node_x", gpu_count=4, cpus=32)]
    assert [who for _, who, *_ in plan_of("tiresias-l", world(jobs=[two, one], nodes=nodes))] == ["job_b", "job_a"]


def test_tiresias_preempts_for_a_better_queue_only() -> None:
    """A run of the third queue makes room before one of the second; one of the same queue goes on."""
    first, second = QUEUE_LIMITS_GPU_MS
    middle, last = busy("m", done_ms=first), busy("n", done_ms=second)
    two = replace(ALL, serverful_limit=2)
    fresh = job(submitted_ms=NOW_MS)
    assert plan_of("tiresias-l", world(middle, last, jobs=[fresh]), two) == [("preempt", "job_n", "run_n")]
    assert plan_of("tiresias-l-np", world(middle, last, jobs=[fresh]), two) == []
    young = busy("y", done_ms=first - 1)
    assert plan_of("tiresias-l", world(young, jobs=[job(submitted_ms=-1)]), LIMIT) == []
    waits = job(state=JobState.WAITING, done_ms=first)
    both = world(middle, last, jobs=[waits, replace(waits, job_id="job_b")])
    assert plan_of("tiresias-l", both, two) == [("preempt", "job_n", "run_n")]


def test_tiresias_looks_again_when_a_run_falls_into_the_next_queue() -> None:
    """Time alone makes it give way to a job that waits: not a moment later than that."""
    first, second = QUEUE_LIMITS_GPU_MS
    seen = world(busy("y", done_ms=first - 5_000), busy("z", done_ms=second - 3_000), jobs=[job(submitted_ms=NOW_MS)])
    two = replace(ALL, serverful_limit=2)
    assert plan_of("tiresias-l", seen, two) == [("preempt", "job_z", "run_z")]
    alone = world(busy("y", done_ms=first - 5_000), jobs=[job(submitted_ms=NOW_MS)])
    plan, _ = ask("tiresias-l", alone, LIMIT)
    assert (brief(plan), plan.wake_at_ms) == ([], NOW_MS + 5_000)
    assert plan_of("tiresias-l", replace(alone, now_ms=NOW_MS + 4_999), LIMIT) == []
    assert plan_of("tiresias-l", replace(alone, now_ms=NOW_MS + 5_000), LIMIT) == [("preempt", "job_y", "run_y")]


def test_sjf_looks_again_when_a_run_of_unknown_length_is_the_longer_one() -> None:
    """As much is taken to be left of it as it has run."""
    seen = world(busy("y", total_run_ms=None, done_ms=60_000), jobs=[job(total_run_ms=90_000)])
    plan, _ = ask("sjf", seen, LIMIT)
    assert brief(plan) == []
    assert plan.wake_at_ms is not None
    assert plan_of("sjf", replace(seen, now_ms=plan.wake_at_ms - 1), LIMIT) == []
    assert plan_of("sjf", replace(seen, now_ms=plan.wake_at_ms), LIMIT) == [("preempt", "job_y", "run_y")]


FOUR = Resources(4, 4)


def four_on(nodes: list[NodeView], *homes: str, large: Resources = FOUR, left_ms: int = 10**7) -> Snapshot:
    """Runs o, p, q, r of one GPU, each a second longer than the one before, and a short job that needs many GPUs."""
    jobs, runs = [job(total_run_ms=1_500, resources=large)], []
    for place, (name, home) in enumerate(zip("opqr", homes, strict=True)):
        jobs.append(job(f"job_{name}", JobState.RUNNING, total_run_ms=left_ms + 1_000 * place))
        runs.append(run(f"run_{name}", f"job_{name}", home, tier=Tier.MARKETPLACE, running_since_ms=NOW_MS))
    return snapshot(jobs=jobs, runs=runs, nodes=nodes, offers=OFFERS)


def stopped(seen: Snapshot) -> list[str]:
    return [who for kind, who, _ in plan_of("sjf", seen, replace(ALL, serverful_limit=1)) if kind == "preempt"]


def test_room_is_made_on_one_node() -> None:
    """A job of four GPUs has four leave the node that could hold it; one of two has the last two of one node leave."""
    big = node("node_n", gpu_count=4, cpus=32, free_gpus=())
    assert stopped(four_on([big], *["node_n"] * 4)) == ["job_r", "job_q", "job_p", "job_o"]
    pairs = [node(f"node_{name}", gpu_count=2, cpus=32, free_gpus=()) for name in "xy"]
    two = Resources(2, 2)
    assert stopped(four_on(pairs, "node_x", "node_y", "node_x", "node_y", large=two)) == ["job_r", "job_p"]
    half = [replace(big, free_gpus=(0,))]
    assert stopped(four_on(half, *["node_n"] * 4)) == ["job_r", "job_q", "job_p"]


def test_nobody_is_stopped_in_vain() -> None:
    """Not where no node could hold the job, nor where too few come after it, nor on a node of another project."""
    small = [node(f"node_{name}", free_gpus=()) for name in "wxyz"]
    assert stopped(four_on(small, "node_w", "node_x", "node_y", "node_z")) == []
    big = node("node_n", gpu_count=4, cpus=32, free_gpus=())
    assert stopped(four_on([big], *["node_n"] * 4, left_ms=100)) == []
    foreign = replace(big, project_id="proj_b")
    assert stopped(four_on([foreign], *["node_n"] * 4)) == []


@pytest.mark.parametrize("name", ["sjf", "sjf-np", "tiresias-l", "tiresias-l-np"])
def test_below_the_limit_everybody_gets_a_node(name: str) -> None:
    """One is rented for each that none covers, and given back when it is idle; serverless is not known."""
    seen = world(busy("r"), jobs=[job()])
    assert plan_of(name, seen) == [("provision", "job_a", "ask")]
    assert plan_of(name, world(nodes=[node("node_x", idle_since_ms=NOW_MS)])) == [("release", "node_x")]
    assert plan_of(name, world(jobs=[job()], offers=[SERVERLESS])) == []


@pytest.mark.parametrize("name", ["sjf", "tiresias-l"])
def test_where_nothing_can_be_stopped_nothing_is(name: str) -> None:
    """Without the capability the preemptive ones are their non-preemptive selves."""
    seen = world(busy("r", total_run_ms=10**8, done_ms=10**7), jobs=[job(total_run_ms=1_000)])
    assert plan_of(name, seen, LIMIT) == [("preempt", "job_r", "run_r")]
    assert plan_of(name, seen, replace(LIMIT, capabilities=ALL_ACTIONS - {ActionKind.PREEMPT})) == []


def test_what_each_policy_may_ask_for() -> None:
    """The actions that a world has to know are part of the policy."""
    uses = {name: policy_named(name).uses for name in ("modal-only", "sjf", "sjf-np", "allpass", "hpa")}
    assert uses["modal-only"] == {ActionKind.START}
    assert uses["sjf"] - uses["sjf-np"] == {ActionKind.PREEMPT}
    assert ActionKind.MIGRATE in uses["allpass"]
    assert ActionKind.START not in uses["hpa"]
