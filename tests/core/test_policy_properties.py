"""What holds of every policy on every snapshot."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.codec import dumps
from app.core.gpu_speeds import GpuSpeeds
from app.core.invariants import plan_breaches, snapshot_breaches
from app.core.model.job import JobState, PriorityClass, StartRule
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import ActionKind, Assign, Plan, Provision, Release, Start
from app.core.model.snapshot import JobView, NodeView, Snapshot
from app.core.policies import policy_named, policy_names
from app.core.policy import PolicyConfig, PolicyState
from app.core.queue import edf_key, is_placeable
from tests.core.samples import CONFIG, NOW_MS, configs, job, node, offer, offer_lists, run, snapshot, snapshots

every_policy = pytest.mark.parametrize("name", policy_names())
by_deadline = pytest.mark.parametrize(
    "name", ["allpass", "allpass-drain", "allpass-paper", "cheapest-first", "fixed-threshold", "modal-only"]
)
thorough = settings(max_examples=60)
quick = settings(max_examples=12)


def decide(name: str, seen: Snapshot, config: PolicyConfig) -> Plan:
    return policy_named(name).decide(Board.of(seen), PolicyState(), config)[0]


def shape(plan: Plan) -> list[Any]:
    """A plan without its words."""
    return [replace(action, reason="") for action in plan.actions]


@every_policy
@thorough
@given(seen=snapshots(), config=configs)
def test_no_plan_breaks_a_rule(name: str, seen: Snapshot, config: PolicyConfig) -> None:
    """No GPU given twice, no occupied node released, limits and caps kept, every job without a place told why."""
    assert snapshot_breaches(seen) == []
    plan = decide(name, seen, config)
    for action in plan.actions:
        event(action.kind)
    assert plan_breaches(seen, plan, config) == []


@every_policy
@thorough
@given(seen=snapshots(), config=configs, random=st.randoms(use_true_random=False))
def test_same_snapshot_same_bytes(name: str, seen: Snapshot, config: PolicyConfig, random: Any) -> None:
    """The plan is the same byte for byte when asked twice, and whatever order the rows were read in."""

    def shuffled(rows: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(random.sample(rows, len(rows)))

    first = dumps(decide(name, seen, config))
    assert dumps(decide(name, seen, config)) == first
    rows = {part: shuffled(getattr(seen, part)) for part in ("jobs", "runs", "nodes", "offers")}
    assert dumps(decide(name, replace(seen, **rows), config)) == first


def equal_but_for_time(job: JobView) -> JobView:
    return replace(job, job_id="", deadline_ms=0, submitted_ms=0, row_version=0)


@st.composite
def crowds(draw: st.DrawFn) -> Snapshot:
    """A snapshot in which one of its jobs comes several times, with deadlines of their own."""
    seen = draw(snapshots())
    models = [job for job in seen.jobs if is_placeable(job)]
    if not models:
        return seen
    model = draw(st.sampled_from(models))
    deadlines = draw(st.lists(st.integers(0, 3), min_size=2, max_size=6))
    # Patience is a choice of the job's own, not a place that it is denied; so is to pass over slow GPUs to be in time.
    model = replace(model, start=StartRule.NOW, speeds=None)
    more = [replace(model, job_id=f"job_c{i}", deadline_ms=at, submitted_ms=i % 2) for i, at in enumerate(deadlines)]
    return snapshot(jobs=[*seen.jobs, *more], runs=seen.runs, nodes=seen.nodes, offers=seen.offers)


@by_deadline
@thorough
@given(seen=crowds(), config=configs)
def test_equal_jobs_are_served_by_deadline(name: str, seen: Snapshot, config: PolicyConfig) -> None:
    """Of jobs that differ in nothing but time, none is placed while one with an earlier deadline is not."""
    placed = {action.job_id for action in decide(name, seen, config).actions if isinstance(action, Start | Assign)}
    groups: dict[JobView, list[JobView]] = defaultdict(list)
    for one in sorted(seen.jobs, key=edf_key):
        if is_placeable(one):
            groups[equal_but_for_time(one)].append(one)
    for group in groups.values():
        served = [one.job_id in placed for one in group]
        assert served == sorted(served, reverse=True)
        if True in served and False in served:
            event("some of a crowd are served")


@every_policy
@thorough
@given(seen=snapshots(), config=configs, share=st.floats(0, 1))
def test_nothing_changes_before_the_wake_up(name: str, seen: Snapshot, config: PolicyConfig, share: float) -> None:
    """Time alone changes no decision before `wake_at_ms`; where that is None, it never does."""
    policy = policy_named(name)
    _, state = policy.decide(Board.of(seen), PolicyState(), config)  # the first decision is a tick: look between ticks
    plan, after = policy.decide(Board.of(seen), state, config)
    assert after == state
    until = plan.wake_at_ms if plan.wake_at_ms is not None else NOW_MS + 3_600_000
    assert until > NOW_MS
    for later_ms in (NOW_MS + int((until - 1 - NOW_MS) * share), until - 1):
        later, _ = policy.decide(Board.of(replace(seen, now_ms=later_ms)), state, config)
        assert shape(later) == shape(plan)


@every_policy
@thorough
@given(seen=snapshots(), config=configs, offers=offer_lists)
def test_reasons_are_sentences_with_facts(name: str, seen: Snapshot, config: PolicyConfig, offers: list[Any]) -> None:
    """Every reason fits on a line or two, and never shows a bare None, an object or a class."""
    plan = decide(name, replace(seen, offers=tuple(offers)), config)
    for text in [action.reason for action in plan.actions] + [waiting.reason for waiting in plan.waiting]:
        assert 10 < len(text) < 400
        assert "\n" not in text
        assert not any(bad in text for bad in ("None", "<", "object at", "Money(", "  "))


@every_policy
@quick
@given(seen=snapshots(), config=configs)
def test_words_change_nothing(name: str, seen: Snapshot, config: PolicyConfig) -> None:
    """Where nobody reads reasons, what is done and what is remembered stay the same."""
    told, told_state = policy_named(name).decide(Board.of(seen), PolicyState(), config)
    silent, state = policy_named(name).decide(Board.of(seen), PolicyState(), replace(config, explains=False))
    assert silent.actions == told.actions
    assert state == told_state
    assert silent.signals == ()


@every_policy
@quick
@given(first=snapshots(), second=snapshots(), config=configs)
def test_a_policy_remembers_only_what_it_says(
    name: str, first: Snapshot, second: Snapshot, config: PolicyConfig
) -> None:
    """What a policy has decided before plays no part, except for the state that it handed back."""
    used = policy_named(name)
    _, state = used.decide(Board.of(first), PolicyState(), config)
    again = used.decide(Board.of(second), state, config)
    fresh = policy_named(name).decide(Board.of(second), state, config)
    assert dumps(again[0]) == dumps(fresh[0])
    assert again[1] == fresh[1]


def slower(value: Any, factor: int) -> Any:
    """A core value with every time and duration `factor` times as long; prices and counts as they are."""
    if isinstance(value, tuple):
        return tuple(slower(item, factor) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for field in fields(value):
        inner = getattr(value, field.name)
        is_time = field.name.endswith("_ms") and inner is not None
        changes[field.name] = inner * factor if is_time else slower(inner, factor)
    return replace(value, **changes)


def of_some_length(seen: Snapshot) -> Snapshot:
    """No job that may end at any moment: the least time that one is given does not scale."""
    jobs = [
        job if job.total_run_ms is None and job.done_ms else replace(job, total_run_ms=7_200_000 + job.done_ms)
        for job in seen.jobs
    ]
    return replace(seen, jobs=tuple(jobs))


# The limits of the queues of `tiresias-l` and `cornucopia` are their authors' numbers, not settings.
@pytest.mark.parametrize("name", [name for name in policy_names() if not name.startswith(("tiresias", "cornucopia"))])
@quick
@given(seen=snapshots().map(of_some_length), config=configs, factor=st.sampled_from([2, 10]))
def test_scaling_time_scales_the_plan(name: str, seen: Snapshot, config: PolicyConfig, factor: int) -> None:
    """Jobs, starts, moves, ticks and rules ten times as long: the same plan, of offers that take ten times as long."""
    plan = decide(name, seen, config)
    slow = decide(name, slower(seen, factor), slower(config, factor))
    assert shape(slow) == [slower(action, factor) for action in shape(plan)]


@settings(max_examples=60, deadline=None)
@given(
    seen=snapshots(),
    config=configs,
    first=st.sampled_from(["", "job_a", "job_b"]),
    name=st.sampled_from(policy_names()),
)
def test_whom_a_plan_tells_does_not_change_what_it_does(seen: Snapshot, config: Any, first: str, name: str) -> None:
    """Of a crowd only some are told why they get nothing; all are given the same."""
    all_told, state = policy_named(name).decide(Board.of(seen), PolicyState(), replace(config, explains=True))
    some = replace(config, explains=True, told=((first, "job_b"),))
    some_told, after = policy_named(name).decide(Board.of(seen), PolicyState(), some)
    assert some_told.actions == all_told.actions
    assert after == state
    words = {wait.job_id: wait.reason for wait in all_told.waiting if first <= wait.job_id <= "job_b"}
    assert {wait.job_id: wait.reason for wait in some_told.waiting} == words


def booted(plan: Plan, seen: Snapshot) -> list[NodeView]:
    """What the plan rents, as machines that have been asked for."""
    image_of = {job.job_id: job.resources.base_image or "" for job in seen.jobs}
    return [
        node(
            f"node_new_{number}",
            action.offer.tier,
            NodeState.BOOTING,
            project_id=action.project_id,
            provider=action.offer.provider,
            gpu_type=action.offer.gpu_type,
            gpu_count=action.offer.gpu_count,
            gpu_memory_bytes=action.offer.gpu_memory_bytes,
            cpus=action.offer.cpus,
            memory_bytes=action.offer.memory_bytes,
            price_per_hour=action.offer.price_per_hour,
            mean_life_ms=action.offer.mean_life_ms,
            arrival_ms=action.offer.arrival_ms,
            arrival_micros=action.offer.arrival_micros,
            spot_only=action.offer.spot_only,
            free_gpus=tuple(range(action.offer.gpu_count)),
            expected_ready_ms=seen.now_ms + action.offer.startup_ms,
            requested_ms=seen.now_ms,
            image=image_of[action.for_job_id],
        )
        for number, action in enumerate(plan.actions)
        if isinstance(action, Provision)
    ]


_types = st.sampled_from(["A100", "H100", "L4", "V100"])
_hourly = st.sampled_from(["0.10", "0.30", "0.80", "1.60", "3.00"]).map(Money.usd)
_HOUR_MS = 3_600_000
_close = st.sampled_from(["0.40", "0.54", "0.56", "0.74", "0.80", "1.05", "1.15", "1.29"]).map(Money.usd)
_lives_ms = st.sampled_from([0, 0, 600_000, _HOUR_MS, 4 * _HOUR_MS])
_arrivals = st.sampled_from([(0, 0), (0, 0), (30_000, 80_000), (600_000, 400_000)])


@st.composite
def auctions(draw: st.DrawFn) -> Snapshot:
    """Jobs that train where it is dear, beside hosts that are bid for or on demand, some of which come: at prices that
    are near each other, so that one is worth a move and the next is not."""
    now_ms, jobs, runs, nodes = 100 * _HOUR_MS, [], [], []
    for number in range(draw(st.integers(1, 4))):
        left_ms = draw(st.integers(2, 60)) * draw(st.sampled_from([60_000, 60_000, 600_000, 4 * _HOUR_MS]))
        ran_ms = 20 * _HOUR_MS
        one = job(
            f"job_{number}",
            JobState.RUNNING,
            priority_class=draw(st.sampled_from([PriorityClass.SPOT, PriorityClass.SPOT, PriorityClass.GUARANTEED])),
            total_run_ms=draw(st.sampled_from([left_ms + ran_ms, left_ms + ran_ms, None])),
            deadline_ms=now_ms + draw(st.sampled_from([left_ms, 10 * left_ms])) + 300_000,
            start=StartRule.AUTO,
            submitted_ms=now_ms - ran_ms,
            saves=draw(st.sampled_from([True, True, False])),
            checkpoint_step=1,
        )
        jobs.append(one)
        tier = draw(st.sampled_from([Tier.SERVERLESS, Tier.MARKETPLACE, Tier.CONVENTIONAL]))
        held = node(f"node_{number}", tier, free_gpus=(), price_per_hour=draw(_close), mean_life_ms=draw(_lives_ms))
        nodes.append(held)
        runs.append(run(f"run_{number}", one.job_id, held.node_id, tier=tier, running_since_ms=now_ms - ran_ms))
    for number in range(draw(st.integers(0, 4))):
        state = draw(st.sampled_from([NodeState.BOOTING, NodeState.BOOTING, NodeState.READY]))
        arrival_ms, arrival_micros = draw(_arrivals)
        nodes.append(
            node(
                f"node_free_{number}",
                state=state,
                expected_ready_ms=now_ms + draw(st.sampled_from([-300_000, 1_000, 60_000, 100_000])),
                price_per_hour=draw(_close),
                idle_since_ms=now_ms if state == NodeState.READY else None,
                spot_only=draw(st.booleans()),
                mean_life_ms=draw(_lives_ms),
                arrival_ms=arrival_ms,
                arrival_micros=arrival_micros,
            )
        )
    offers = []
    for number in range(draw(st.integers(1, 5))):
        tier = draw(st.sampled_from([Tier.SERVERLESS, Tier.MARKETPLACE, Tier.MARKETPLACE, Tier.CONVENTIONAL]))
        arrival_ms, arrival_micros = draw(_arrivals)
        one = offer(f"offer_{number}", tier, startup_ms=draw(st.sampled_from([3_000, 60_000])))
        is_bid = tier is Tier.MARKETPLACE and draw(st.booleans())
        told = {"price_per_hour": draw(_close), "mean_life_ms": draw(_lives_ms), "spot_only": is_bid}
        offers.append(replace(one, arrival_ms=arrival_ms, arrival_micros=arrival_micros, **told))
    return snapshot(now_ms=now_ms, jobs=jobs, runs=runs, nodes=nodes, offers=offers)


@st.composite
def crossroads(draw: st.DrawFn) -> Snapshot:
    """A few long jobs that train or wait, machines of several speeds that come or are there, and more on offer."""
    now_ms, jobs, runs, nodes = 100 * _HOUR_MS, [], [], []
    for number in range(draw(st.integers(1, 3))):
        trains = draw(st.booleans())
        state = JobState.RUNNING if trains else JobState.QUEUED
        gpu_type = draw(_types)
        speeds = GpuSpeeds(gpu_type.lower() if trains else "a100", trains_there=trains)
        left_ms, ran_ms = draw(st.integers(1, 20)) * _HOUR_MS, draw(st.sampled_from([1, 10])) * _HOUR_MS
        one = job(
            f"job_{number}",
            state,
            total_run_ms=left_ms + ran_ms * trains,
            deadline_ms=now_ms + draw(st.integers(0, 40)) * _HOUR_MS,
            start=StartRule.AUTO,
            submitted_ms=now_ms - ran_ms,
            speeds=draw(st.sampled_from([speeds, speeds, None])),
            deadline_given=draw(st.booleans()),
        )
        jobs.append(one)
        if trains:
            tier = draw(st.sampled_from([Tier.SERVERLESS, Tier.MARKETPLACE]))
            held = node(f"node_{number}", tier, gpu_type=gpu_type, free_gpus=(), price_per_hour=draw(_hourly))
            nodes.append(held)
            runs.append(run(f"run_{number}", one.job_id, held.node_id, tier=tier, running_since_ms=now_ms - ran_ms))
    for number in range(draw(st.integers(0, 3))):
        state = draw(st.sampled_from([NodeState.BOOTING, NodeState.READY]))
        idle_ms = now_ms if state == NodeState.READY else None
        comes_ms = now_ms + draw(st.sampled_from([1_000, 60_000]))
        shape = {"gpu_type": draw(_types), "price_per_hour": draw(_hourly), "idle_since_ms": idle_ms}
        nodes.append(node(f"node_free_{number}", state=state, expected_ready_ms=comes_ms, **shape))
    tiers = st.sampled_from([Tier.SERVERLESS, Tier.MARKETPLACE, Tier.CONVENTIONAL])
    offers = [
        offer(f"offer_{number}", draw(tiers), gpu_type=draw(_types), startup_ms=draw(st.sampled_from([3_000, 60_000])))
        for number in range(draw(st.integers(0, 5)))
    ]
    offers = [replace(one, price_per_hour=draw(_hourly)) for one in offers]
    return snapshot(now_ms=now_ms, jobs=jobs, runs=runs, nodes=nodes, offers=offers)


@settings(max_examples=600)
@given(seen=snapshots() | crossroads() | auctions())
def test_renting_comes_to_rest(seen: Snapshot) -> None:
    """What is rented is counted on by the next decision at the same moment: else machines would be asked for and ended
    for ever, each time for money. A few may be rented anew, where another job takes what was rented for one."""
    config = replace(CONFIG, capabilities=frozenset(ActionKind), serverful_limit=10**6)
    policy, state = policy_named("allpass"), PolicyState()
    nodes, rounds = list(seen.nodes), 1 + 2 * len(seen.jobs)
    for number in range(rounds + 1):
        then = snapshot(now_ms=seen.now_ms, jobs=seen.jobs, runs=seen.runs, nodes=nodes, offers=seen.offers)
        plan, state = policy.decide(Board.of(then), state, config)
        rents = [action for action in plan.actions if isinstance(action, Provision)]
        if not rents or any(action.ahead for action in rents):
            return
        ended = {action.node_id for action in plan.actions if isinstance(action, Release)}
        if len(rents) + len(ended) < len(plan.actions):
            return  # others change what is there as well
        event(f"rents in round {number}")
        nodes = [one for one in nodes if one.node_id not in ended]
        nodes += [replace(one, node_id=f"{one.node_id}_{number}") for one in booted(plan, seen)]
    raise AssertionError(f"still rents after {rounds} decisions: {rents}")
