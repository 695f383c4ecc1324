"""The policy `cornucopia` by example, at the edges of its queues, and that time wakes it when an order changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.elastic.queues import QUANTUM_GPU_S, PriorityQueue, QueueThresholds
from app.core.model.job import JobKind, JobState, Resources
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.plan import ActionKind
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, QueueMeans, RunView
from app.core.policies import policy_named
from app.core.policies.cornucopia import (
    LEAST_MEAN_S,
    LENT_WITHIN_MS,
    Cornucopia,
    boundaries_ms,
    standing_of,
)
from app.core.policies.stopping import REST_MS
from app.core.policy import PolicyConfig
from tests.core.plans import ask, brief
from tests.core.samples import ALL_ACTIONS, CONFIG, OFFERS, SERVERLESS, job, node, run, snapshot
from tests.core.test_own_nodes import host
from tests.core.test_ranges import begins

HOUR_MS = 3_600_000
AT_MS = 100 * HOUR_MS
ALL = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=100, serverful_limit=100)
FULL = replace(ALL, serverful_limit=1)
QUANTUM_MS = round(QUANTUM_GPU_S * 1000)


def comes(name: str = "a", ago_ms: int = LENT_WITHIN_MS, **changes: Any) -> JobView:
    """A batch job of hours, that has waited since it came."""
    values: dict[str, Any] = {"submitted_ms": AT_MS - ago_ms, "deadline_ms": 10**9, "total_run_ms": 20 * HOUR_MS}
    return job(f"job_{name}", **(values | changes))


def interactive(name: str = "a", **changes: Any) -> JobView:
    return comes(name, kind=JobKind.INTERACTIVE, **changes)


def trains(name: str, ran_ms: int, gpus: int = 1, **changes: Any) -> tuple[JobView, RunView, NodeView]:
    """Since it came, on a rented node of its own."""
    need = {"resources": Resources(gpus, gpus)}
    held = comes(name, ran_ms, state=JobState.RUNNING, **(need | changes))
    place = node(f"node_{name}", gpu_count=gpus, free_gpus=(), cpus=32)
    live = run(f"run_{name}", held.job_id, place.node_id, tier=Tier.MARKETPLACE, running_since_ms=AT_MS - ran_ms)
    return held, live, place


def world(*held: tuple[JobView, RunView, NodeView], jobs: Any = (), nodes: Any = (), means: Any = ()) -> Any:
    return snapshot(
        queue_means=means,
        now_ms=AT_MS,
        jobs=[*(one for one, _, _ in held), *jobs],
        runs=[one for _, one, _ in held],
        nodes=[*(one for _, _, one in held), *nodes],
        offers=OFFERS,
    )


def plan_of(seen: Any, config: PolicyConfig = FULL) -> list[tuple[str, ...]]:
    return brief(ask("cornucopia", seen, config)[0])


# The order


def test_interactive_jobs_come_first_then_batch_then_long_ones() -> None:
    """Whoever is due or came before: by its label, what is predicted of it, and few steps; and what it has had."""
    jobs = [
        comes("l", 9 * HOUR_MS, state=JobState.WAITING, done_ms=9 * HOUR_MS),
        comes("b", 5 * HOUR_MS),
        comes("s", 3, total_run_ms=600_000),
        comes("f", 2, total_run_ms=None, total_steps=20),
        interactive("i", ago_ms=1),
    ]
    nodes = [node(f"node_{letter}", price_per_hour=Money(index)) for index, letter in enumerate("vwxyz")]
    placed = plan_of(world(jobs=jobs, nodes=nodes), ALL)
    assert [who for _, who, *_ in placed] == ["job_s", "job_f", "job_i", "job_b", "job_l"]


def test_within_a_queue_whoever_had_less_comes_first() -> None:
    """In classes, each twice as wide as the one before, of GPU time: two GPUs for half of the time are as much."""
    had = {"a": (2 * QUANTUM_MS, 1), "b": (QUANTUM_MS, 1), "c": (QUANTUM_MS, 2), "d": (QUANTUM_MS - 1, 1)}
    jobs = [
        comes(name, HOUR_MS, state=JobState.WAITING, done_ms=done, resources=Resources(gpus, gpus))
        for name, (done, gpus) in had.items()
    ]
    nodes = [node("node_x", gpu_count=8, cpus=64)]
    assert [who for _, who, *_ in plan_of(world(jobs=jobs, nodes=nodes))] == ["job_d", "job_b", "job_a", "job_c"]


@pytest.mark.parametrize(
    ("kind", "ran_s", "waited_s", "queue"),
    [
        (JobKind.INTERACTIVE, 1_199, 0, PriorityQueue.INTERACTIVE),
        (JobKind.INTERACTIVE, 1_200, 0, PriorityQueue.BATCH),
        (JobKind.INTERACTIVE, 1_200 + 7_199, 0, PriorityQueue.BATCH),
        (JobKind.INTERACTIVE, 1_200 + 7_200, 0, PriorityQueue.LONG),
        (JobKind.BATCH, 7_199, 0, PriorityQueue.BATCH),
        (JobKind.BATCH, 7_200, 7_199, PriorityQueue.LONG),
        (JobKind.BATCH, 7_200, 7_200, PriorityQueue.BATCH),
        (JobKind.BATCH, 14_399, 7_200, PriorityQueue.BATCH),
        (JobKind.BATCH, 14_400, 7_200, PriorityQueue.LONG),
        (JobKind.BATCH, 7_200, 10**9, PriorityQueue.BATCH),
    ],
)
def test_it_falls_by_what_it_has_trained_and_rises_by_what_it_has_waited(
    kind: JobKind, ran_s: int, waited_s: int, queue: PriorityQueue
) -> None:
    assert standing_of(comes(kind=kind), ran_s * 1000, waited_s * 1000).queue is queue


def test_whoever_rises_counts_as_having_had_half() -> None:
    assert standing_of(comes(), 7_200_000, 0).served_gpu_s == 7_200
    assert standing_of(comes(), 7_200_000, 7_200_000).served_gpu_s == 3_600
    assert standing_of(comes(), 7_200_000, 10**10).served_gpu_s == 3_600, "it rises as often as it has fallen"


# What a project's jobs have shown


def test_where_jobs_of_a_project_run_for_minutes_an_hour_is_long() -> None:
    """Each project by its own jobs: the same hour is nothing to remark upon in another one."""
    quick = QueueMeans("proj_a", 5.0, 60.0)
    jobs = [
        comes("a", 2 * HOUR_MS, state=JobState.WAITING, done_ms=HOUR_MS, total_run_ms=20 * HOUR_MS),
        comes("b", HOUR_MS, state=JobState.WAITING, done_ms=HOUR_MS, project_id="proj_b"),
    ]
    nodes = [node(f"node_{one}", project_id=f"proj_{one}") for one in "ab"]
    seen = world(jobs=jobs, nodes=nodes)
    assert [who for _, who, *_ in plan_of(seen)] == ["job_a", "job_b"]
    assert [who for _, who, *_ in plan_of(replace(seen, queue_means=(quick,)))] == ["job_a", "job_b"], "it has risen"
    fresh = comes("a", HOUR_MS + 60_000, state=JobState.WAITING, done_ms=HOUR_MS, total_run_ms=20 * HOUR_MS)
    assert [who for _, who, *_ in plan_of(world(jobs=[fresh, jobs[1]], nodes=nodes))] == ["job_a", "job_b"]
    later = plan_of(world(jobs=[fresh, jobs[1]], nodes=nodes, means=(quick,)))
    assert [who for _, who, *_ in later] == ["job_b", "job_a"]


def test_an_interactive_job_falls_after_twice_what_such_jobs_take() -> None:
    short, waits = trains("i", 130_000, kind=JobKind.INTERACTIVE), interactive()
    assert plan_of(world(short, jobs=[waits])) == []
    means = (QueueMeans("proj_a", 60.0, 3600.0),)
    assert plan_of(world(short, jobs=[waits], means=means)) == [("preempt", "job_i", "run_i")]
    plan, _ = ask("cornucopia", world(trains("i", 100_000, kind=JobKind.INTERACTIVE), jobs=[waits], means=means), FULL)
    assert (brief(plan), plan.wake_at_ms) == ([], AT_MS + 20_000)


@given(mean_s=st.floats(1e-9, 1e12), ran_ms=st.integers(0, 10**11), waited_ms=st.integers(0, 10**11))
def test_whatever_was_shown_nobody_looks_more_often_than_once_a_second(
    mean_s: float, ran_ms: int, waited_ms: int
) -> None:
    """Jobs of a millisecond and of a century: a place in line, and no moment at which to look again that is now."""
    means = (QueueMeans("proj_a", mean_s, mean_s),)
    waits = comes("w", ran_ms + waited_ms, state=JobState.WAITING, done_ms=ran_ms)
    seen = world(trains("b", ran_ms), jobs=[waits], means=means)
    plan, _ = ask("cornucopia", seen, FULL)
    assert plan.wake_at_ms is None or plan.wake_at_ms > AT_MS


# Who is stopped


def test_for_an_interactive_job_a_batch_job_is_stopped() -> None:
    """Once it has waited for long enough to be lent something, and that one saves."""
    assert plan_of(world(trains("b", HOUR_MS), jobs=[interactive()])) == [("preempt", "job_b", "run_b")]
    early = world(trains("b", HOUR_MS), jobs=[interactive(ago_ms=LENT_WITHIN_MS - 1)])
    plan, _ = ask("cornucopia", early, FULL)
    assert (brief(plan), plan.wake_at_ms) == ([], AT_MS + 1)
    fresh = trains("b", 1_000)
    assert plan_of(world(fresh, jobs=[interactive()])) == [("preempt", "job_b", "run_b")], "however young it is"
    assert plan_of(world(trains("b", HOUR_MS, locked=True), jobs=[interactive()])) == []


def test_nothing_interactive_is_stopped() -> None:
    short = trains("i", 600_000, kind=JobKind.INTERACTIVE)
    assert plan_of(world(short, jobs=[interactive()])) == []
    assert plan_of(world(short, jobs=[comes()])) == []


def test_of_one_queue_whoever_had_more_is_stopped_once_it_has_rested() -> None:
    two = trains("b", REST_MS, gpus=2)
    waits = comes(resources=Resources(2, 2))
    assert plan_of(world(two, jobs=[waits])) == [("preempt", "job_b", "run_b")]
    young = trains("b", REST_MS - 1_000, gpus=2)
    plan, _ = ask("cornucopia", world(young, jobs=[waits]), FULL)
    assert (brief(plan), plan.wake_at_ms) == ([], AT_MS + 1_000)


def test_who_saves_already_is_waited_for() -> None:
    held, live, place = trains("b", HOUR_MS)
    leaves = replace(held, state=JobState.CHECKPOINTING), replace(live, state=RunState.STOPPING), place
    assert plan_of(world(leaves, jobs=[interactive()])) == []


def test_it_looks_again_when_a_run_falls_behind_one_that_waits() -> None:
    """Not a moment later: into the next class, into the long queue; and when one that waits rises."""
    short = world(trains("b", QUANTUM_MS - 5_000), jobs=[comes(ago_ms=20_000)])
    plan, _ = ask("cornucopia", short, FULL)
    assert plan.wake_at_ms == AT_MS + 5_000
    assert plan_of(replace(short, now_ms=AT_MS + 4_999)) == []
    assert plan_of(replace(short, now_ms=AT_MS + 5_000)) == [("preempt", "job_b", "run_b")]
    had: dict[str, Any] = {"done_ms": 7_000_000, "state": JobState.WAITING}
    longer = world(trains("b", 7_190_000), jobs=[comes(ago_ms=7_000_000, **had)])
    plan, _ = ask("cornucopia", longer, FULL)
    assert plan.wake_at_ms == AT_MS + 10_000
    long = comes(ago_ms=7_300_000 + 7_000_000, state=JobState.WAITING, done_ms=7_300_000)
    plan, _ = ask("cornucopia", world(trains("b", HOUR_MS), jobs=[long]), FULL)
    assert plan.wake_at_ms == AT_MS + 240_000, "a batch job again after 200 s, with others that are by the next minute"


# Where it begins


def test_a_range_begins_on_all_that_is_free_of_a_pool() -> None:
    """Interactive jobs before it, and nothing on serverless."""
    assert begins([comes("a", 0, resources=Resources(1, 8))], host(8), "cornucopia") == {"a": 8}
    first = [comes("b", 0, resources=Resources(1, 1)), interactive("i", ago_ms=0, resources=Resources(8, 8))]
    assert begins(first, host(8), "cornucopia") == {"i": 8}
    assert plan_of(replace(world(jobs=[interactive()]), offers=(SERVERLESS,)), ALL) == []
    assert ActionKind.START in policy_named("cornucopia").uses


@given(
    ran_ms=st.integers(0, 10**9),
    waited_ms=st.integers(0, 10**9),
    gpus=st.integers(1, 8),
    is_short=st.booleans(),
    means_s=st.tuples(st.floats(LEAST_MEAN_S, 1e6), st.floats(LEAST_MEAN_S, 1e6)),
)
def test_it_stands_elsewhere_at_boundaries_alone(
    ran_ms: int, waited_ms: int, gpus: int, is_short: bool, means_s: tuple[float, float]
) -> None:
    """Between two of them its queue and its class are the same: so no wake-up is missed."""
    kind = JobKind.INTERACTIVE if is_short else JobKind.BATCH
    one = comes(kind=kind, resources=Resources(gpus, gpus))
    thresholds = QueueThresholds(*means_s)
    policy: Any = Cornucopia({one.project_id: thresholds})
    ahead = sorted(at for at in boundaries_ms(one, thresholds, ran_ms) if at > ran_ms)
    assert ahead
    ranks = {policy._rank(one, at, waited_ms, rests=False)[0] for at in (ran_ms, ahead[0] - 1)}
    assert len(ranks) == 1
