"""Runs that are stopped for jobs that wait: never in vain, never for ever, and never for much that is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from app.core.model.job import Affinity, Caps, JobKind, JobState, PriorityClass, Resources
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.plan import Assign, Preempt
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policies.stopping import REST_MS, UNKEPT_MOST_MS
from app.core.policy import PolicyConfig
from tests.core.plans import ask, brief
from tests.core.samples import ALL_ACTIONS, CONFIG, GIB, OFFERS, job, node, run, snapshot

HOUR_MS = 3_600_000
AT_MS = 100 * HOUR_MS
POLICIES = ("sjf", "tiresias-l", "cornucopia")
FULL = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=0, serverful_limit=0)
every = pytest.mark.parametrize("policy", POLICIES)


def long(name: str = "v", ran_ms: int = 5 * HOUR_MS, **changes: Any) -> JobView:
    """A batch job that has run for hours, comes after everybody, and would be stopped."""
    values: dict[str, Any] = {"submitted_ms": AT_MS - ran_ms, "total_run_ms": 90 * HOUR_MS, "deadline_ms": 10**12}
    return job(f"job_{name}", JobState.RUNNING, **(values | changes))


def short(name: str = "j", **changes: Any) -> JobView:
    """An interactive job that has waited for a minute, and comes before everybody."""
    values: dict[str, Any] = {"submitted_ms": AT_MS - 60_000, "total_run_ms": 60_000, "kind": JobKind.INTERACTIVE}
    return job(f"job_{name}", **(values | changes))


def on(*riders: JobView, waiting: JobView, **changes: Any) -> Snapshot:
    """All of them on one full node."""
    gpus = sum(one.resources.gpus_min for one in riders)
    place = node("node_n", gpu_count=gpus, free_gpus=(), **({"cpus": 64} | changes))
    runs = [
        run(f"run_{one.job_id}", one.job_id, "node_n", tier=Tier.MARKETPLACE, running_since_ms=one.submitted_ms)
        for one in riders
    ]
    return snapshot(now_ms=AT_MS, jobs=[*riders, waiting], runs=runs, nodes=[place], offers=OFFERS)


def stopped(policy: str, seen: Snapshot, config: PolicyConfig = FULL) -> list[str]:
    plan, _ = ask(policy, seen, config)
    return [one.job_id for one in plan.actions if isinstance(one, Preempt)]


@every
def test_a_long_job_is_stopped_for_a_short_one(policy: str) -> None:
    """What all that follows is held against."""
    assert stopped(policy, on(long(), waiting=short())) == ["job_v"]


# In vain


@every
@pytest.mark.parametrize(
    ("waits", "place"),
    [
        ({"resources": Resources(1, 1, base_image="other:1")}, {}),
        ({"resources": Resources(1, 1, cpus_min=9)}, {"cpus": 8}),
        ({"resources": Resources(1, 1, memory_bytes_min=9 * GIB)}, {"memory_bytes": 8 * GIB}),
        ({"resources": Resources(1, 1, gpu_memory_bytes_min=99 * GIB)}, {}),
        ({"resources": Resources(2, 2)}, {}),
        ({"caps": Caps(max_hourly=Money.usd("1"))}, {"price_per_hour": Money.usd("2")}),
        ({"affinity": Affinity(apart=frozenset({"team=a"}))}, {}),
        ({"project_id": "proj_b"}, {}),
        ({"helped": True}, {}),
    ],
    ids=["image", "cpus", "memory", "gpu memory", "gpus", "price", "apart", "project", "lent to"],
)
def test_nobody_is_stopped_for_one_that_could_not_go_there(policy: str, waits: dict[str, Any], place: Any) -> None:
    """Or need not, as an elastic job is about to leave GPUs for it."""
    holder = long(affinity=Affinity(own=frozenset({"team=a"})))
    assert stopped(policy, on(holder, waiting=short(**waits), **place)) == []


@every
def test_who_has_to_be_beside_somebody_else_has_nobody_stopped(policy: str) -> None:
    friend = long("f", affinity=Affinity(own=frozenset({"team=a"})), locked=True)
    seen = on(long(), waiting=short(affinity=Affinity(beside=frozenset({"team=a"}))))
    theirs = run("run_f", "job_f", "node_f", tier=Tier.MARKETPLACE, running_since_ms=AT_MS - HOUR_MS)
    there = node("node_f", free_gpus=())
    with_friend = replace(seen, jobs=(friend, *seen.jobs), runs=(theirs, *seen.runs), nodes=(there, *seen.nodes))
    assert stopped(policy, with_friend) == []


@every
def test_cpus_and_memory_of_who_stays_are_not_counted_on(policy: str) -> None:
    """The one that stays holds most of both; what leaves is too little."""
    need = Resources(1, 1, cpus_min=4, memory_bytes_min=4 * GIB)
    stays = long("s", locked=True, resources=Resources(1, 1, cpus_min=6, memory_bytes_min=6 * GIB))
    leaves = long(resources=Resources(1, 1, cpus_min=1, memory_bytes_min=GIB))
    tight = on(leaves, stays, waiting=short(resources=need), cpus=8, memory_bytes=64 * GIB)
    assert stopped(policy, tight) == []
    assert stopped(policy, on(leaves, stays, waiting=short(resources=need), cpus=64, memory_bytes=8 * GIB)) == []
    assert stopped(policy, on(leaves, stays, waiting=short(resources=need), cpus=10, memory_bytes=10 * GIB)) == [
        "job_v"
    ]


@every
def test_a_pair_that_trains_as_one_counts_once(policy: str) -> None:
    """Two are needed, and the pair has one: nobody leaves for too little. One that stays keeps both."""
    pair = [long("v"), long("w")]
    seen = on(pair[0], long("s", locked=True), waiting=short(resources=Resources(2, 2)))
    stays, first = seen.runs
    paired = replace(seen, jobs=(*seen.jobs, pair[1]), runs=(stays, replace(first, job_ids=("job_v", "job_w"))))
    assert stopped(policy, paired) == []
    alone = replace(paired, jobs=tuple(short() if one.job_id == "job_j" else one for one in paired.jobs))
    assert stopped(policy, alone) == ["job_v"]
    jobs = tuple(replace(one, locked=True) if one.job_id == "job_w" else one for one in alone.jobs)
    assert stopped(policy, replace(alone, jobs=jobs)) == []


@every
@pytest.mark.parametrize("changes", [{"leaving": True}, {"locked": True}, {"unsaved": True}, {"saves": False}])
def test_who_leaves_anyway_or_has_to_stay_is_not_stopped(policy: str, changes: dict[str, Any]) -> None:
    assert stopped(policy, on(long(**changes), waiting=short())) == []


@every
def test_a_spot_job_has_spot_jobs_stopped_and_no_others(policy: str) -> None:
    """A guaranteed one would be given the place again before it."""
    spot: dict[str, Any] = {"priority_class": PriorityClass.SPOT}
    assert stopped(policy, on(long(), waiting=short(**spot))) == []
    assert stopped(policy, on(long(**spot), waiting=short(**spot))) == ["job_v"]
    behind = long("v", 6 * HOUR_MS, total_run_ms=91 * HOUR_MS)
    assert stopped(policy, on(behind, long("w", **spot), waiting=short(**spot))) == ["job_w"]


# For much that is lost


@every
def test_who_saves_by_itself_is_stopped_soon_after_it_has(policy: str) -> None:
    """A step is a second. It says nothing of saving when it is asked to."""
    ran_s = 5 * 3600
    kept_s = ran_s - UNKEPT_MOST_MS // 1000
    holder: dict[str, Any] = {"saves": False, "step": ran_s}
    assert stopped(policy, on(long(**holder, checkpoint_step=kept_s), waiting=short())) == ["job_v"]
    assert stopped(policy, on(long(**holder, checkpoint_step=kept_s - 2), waiting=short())) == []
    slow = replace(FULL, tick_ms=UNKEPT_MOST_MS)
    assert stopped(policy, on(long(**holder, checkpoint_step=kept_s - 2), waiting=short()), slow) == ["job_v"]


# For ever


@every
@pytest.mark.parametrize("saves_every_ms", [None, 5 * 60_000, 25 * 60_000, 60 * 60_000])
@pytest.mark.parametrize("known", [True, False])
def test_two_long_jobs_on_one_gpu_both_end(policy: str, saves_every_ms: int | None, known: bool) -> None:
    """Four hours each, of known length or not, that save when they are asked to or by themselves alone: they take
    turns, and the GPU trains nine tenths of the time."""
    jobs = [
        job(f"job_{name}", submitted_ms=AT_MS + number, deadline_ms=10**12, total_run_ms=4 * HOUR_MS if known else None)
        for number, name in enumerate("ab")
    ]
    course = Turns(policy, jobs, 4 * HOUR_MS, saves_every_ms)
    assert course.play(most_ms=9 * HOUR_MS) == {"job_a", "job_b"}
    assert course.stops <= 50


class Turns:
    """One GPU in a closed loop, to the second: 45 s to begin, 15 s to save."""

    def __init__(self, policy: str, jobs: list[JobView], work_ms: int, saves_every_ms: int | None) -> None:
        self._policy, self._work_ms, self._every_ms = policy, work_ms, saves_every_ms
        self._jobs = {one.job_id: replace(one, saves=saves_every_ms is None, step=0) for one in jobs}
        self._run: RunView | None = None
        self._until_ms = 0
        self._ended: set[str] = set()
        self.stops = 0

    def play(self, most_ms: int) -> set[str]:
        """Who has ended by then."""
        for now_ms in range(AT_MS, AT_MS + most_ms, 5_000):
            self._go_on(now_ms)
            for action in self._decide(now_ms):
                self._enact(action, now_ms)
            if not self._jobs:
                break
        return self._ended

    def _decide(self, now_ms: int) -> list[Any]:
        place: NodeView = node("node_n", free_gpus=() if self._run else (0,))
        runs = [] if self._run is None else [self._run]
        seen = snapshot(now_ms=now_ms, jobs=list(self._jobs.values()), runs=runs, nodes=[place], offers=OFFERS)
        return list(ask(self._policy, seen, FULL)[0].actions)

    def _enact(self, action: Any, now_ms: int) -> None:
        name = action.job_id
        if isinstance(action, Assign):
            self._run = run(f"run_{now_ms}", name, "node_n", RunState.STARTING, tier=Tier.MARKETPLACE)
            self._run = replace(self._run, running_since_ms=None, created_ms=now_ms)
            self._jobs[name] = replace(self._jobs[name], state=JobState.STARTING)
            self._until_ms = now_ms + 45_000
        elif isinstance(action, Preempt):
            assert self._run is not None
            done_ms = self._done_ms(now_ms)
            kept_ms = done_ms if self._every_ms is None else done_ms // self._every_ms * self._every_ms
            self._jobs[name] = replace(self._jobs[name], state=JobState.CHECKPOINTING, done_ms=kept_ms)
            self._run = replace(self._run, state=RunState.STOPPING, running_since_ms=None)
            self._until_ms = now_ms + 15_000
            self.stops += 1

    def _go_on(self, now_ms: int) -> None:
        if self._run is None:
            return
        (name,) = self._run.job_ids
        if self._run.state is RunState.RUNNING:
            done_ms = self._done_ms(now_ms)
            if done_ms >= self._work_ms:
                self._ended.add(name)
                self._run, _ = None, self._jobs.pop(name)
            elif self._every_ms is not None:
                kept = done_ms // self._every_ms * self._every_ms // 1000
                self._jobs[name] = replace(self._jobs[name], checkpoint_step=kept or None, step=done_ms // 1000)
        elif now_ms >= self._until_ms and self._run.state is RunState.STARTING:
            self._run = replace(self._run, state=RunState.RUNNING, running_since_ms=now_ms)
            self._jobs[name] = replace(self._jobs[name], state=JobState.RUNNING)
        elif now_ms >= self._until_ms:
            self._run, self._jobs[name] = None, replace(self._jobs[name], state=JobState.WAITING)

    def _done_ms(self, now_ms: int) -> int:
        assert self._run is not None and self._run.running_since_ms is not None
        return self._jobs[self._run.job_ids[0]].done_ms + now_ms - self._run.running_since_ms


def test_of_two_runs_of_unknown_length_none_is_stopped_before_it_has_rested() -> None:
    """By `sjf` each would come before the other one as soon as that has run for a moment longer."""
    waits = short(total_run_ms=None, done_ms=60_000, state=JobState.WAITING)
    young = on(long(ran_ms=REST_MS - 1_000, total_run_ms=None), waiting=waits)
    plan, _ = ask("sjf", young, FULL)
    assert (brief(plan), plan.wake_at_ms) == ([], AT_MS + 1_000)
    assert stopped("sjf", on(long(ran_ms=REST_MS, total_run_ms=None), waiting=waits)) == ["job_v"]


# Whatever the world is like


@st.composite
def crowded(draw: st.DrawFn) -> Snapshot:
    """Nodes that are full of runs, and jobs that wait; each of them has or needs something that others may not."""
    labels = st.frozensets(st.sampled_from(["app=x", "app=y"]), max_size=1)
    fields: dict[str, Any] = {
        "project_id": st.sampled_from(["proj_a", "proj_a", "proj_b"]),
        "affinity": st.builds(Affinity, own=labels, beside=st.just(frozenset()), apart=labels),
        "priority_class": st.sampled_from([PriorityClass.GUARANTEED, PriorityClass.GUARANTEED, PriorityClass.SPOT]),
        "kind": st.sampled_from(JobKind),
        "submitted_ms": st.integers(0, AT_MS - 20_000),
        "total_run_ms": st.sampled_from([None, 60_000, HOUR_MS, 90 * HOUR_MS]),
        "locked": st.sampled_from([False, False, False, True]),
        "leaving": st.sampled_from([False, False, False, True]),
        "caps": st.sampled_from([Caps(), Caps(), Caps(max_hourly=Money.usd("0.5"))]),
    }

    def drawn(name: str, state: JobState, most_gpus: int, **more: Any) -> JobView:
        gpus = draw(st.integers(1, most_gpus))
        size = draw(st.integers(1, 4)), draw(st.integers(1, 4)) * GIB
        image = draw(st.sampled_from([None, None, None, "own:1"]))
        need = Resources(gpus, gpus, cpus_min=size[0], memory_bytes_min=size[1], base_image=image)
        values = {name: draw(one) for name, one in fields.items()} | {"resources": need, "deadline_ms": 10**12}
        return job(name, state, **(values | more))

    jobs, runs, nodes = [], [], []
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.sampled_from([1, 2, 4]))
        size: dict[str, Any] = {
            "cpus": draw(st.sampled_from([4, 16])),
            "memory_bytes": draw(st.sampled_from([4, 16])) * GIB,
        }
        place = node(f"node_{number}", gpu_count=count, free_gpus=(), **size)
        left, cpus, memory_bytes = count, place.cpus, place.memory_bytes
        while left:
            one = drawn(f"job_r{number}{left}", JobState.RUNNING, left, project_id=place.project_id)
            need = replace(one.resources, base_image=None, cpus_min=min(cpus, 2), memory_bytes_min=0)
            left, cpus = left - need.gpus_min, cpus - need.cpus_min
            since_ms = AT_MS - draw(st.sampled_from([1_000, 30 * 60_000, 5 * HOUR_MS]))
            jobs.append(replace(one, resources=need))
            runs.append(run(f"run_{one.job_id}", one.job_id, place.node_id, tier=place.tier, running_since_ms=since_ms))
        assert memory_bytes >= 0
        nodes.append(place)
    waiting = [drawn(f"job_w{number}", JobState.QUEUED, 4) for number in range(draw(st.integers(1, 4)))]
    return snapshot(now_ms=AT_MS, jobs=[*jobs, *waiting], runs=runs, nodes=nodes, offers=OFFERS)


@settings(max_examples=400, deadline=None)
@given(seen=crowded(), policy=st.sampled_from(POLICIES))
def test_what_is_left_for_somebody_is_taken(seen: Snapshot, policy: str) -> None:
    """Once they have left, no victim has its place again while nobody else has been given one there: it may be held
    open for a larger job that comes first."""
    plan, _ = ask(policy, seen, FULL)
    gone = {one.run_id for one in plan.actions if isinstance(one, Preempt)}
    event(f"{len(gone)} are stopped")
    victims = {one.job_ids[0]: one.node_id for one in seen.runs if one.run_id in gone}
    room = {one.job_id: one.resources.gpus_min for one in seen.jobs}
    freed = Counter({home: sum(room[who] for who, at in victims.items() if at == home) for home in victims.values()})
    done = {one.job_ids[0]: AT_MS - (one.running_since_ms or AT_MS) for one in seen.runs}
    jobs = (
        replace(one, state=JobState.WAITING, done_ms=done[one.job_id]) if one.job_id in victims else one
        for one in seen.jobs
    )
    later = replace(
        seen,
        jobs=tuple(jobs),
        runs=tuple(one for one in seen.runs if one.run_id not in gone),
        nodes=tuple(replace(one, free_gpus=tuple(range(freed[one.node_id]))) for one in seen.nodes),
    )
    after, _ = ask(policy, later, FULL)
    takers: dict[str, list[str]] = {one.node_id: [] for one in seen.nodes}
    for one in after.actions:
        if isinstance(one, Assign):
            takers[one.node_id].append(one.job_id)
    for home, there in takers.items():
        assert not set(there) or set(there) - victims.keys(), f"{home} was left for nobody"
    assert not [one for one in after.actions if isinstance(one, Preempt) and one.job_id in victims]
