"""What the live part decides: who may go where, and that a plan that is carried out round by round gives out nothing
twice, whatever is left of it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.defragmentation import (
    Deciding,
    Goal,
    HeldGpus,
    MoveHabits,
    MoveNow,
    NodeFacts,
    PlannedRelease,
    ReleaseState,
    SeenFleet,
    StepState,
    caught_up,
    is_wanted,
    next_steps,
    pack,
    plan_for,
)
from app.core.model.job import Affinity, JobState, Resources
from app.core.model.money import Money
from app.core.model.move import MoveState
from app.core.model.node import BillingRule, BillingStart, NodeState, Tier
from app.core.model.pool import HostGpu, OwnHost, Pool
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot

GIB = 1024**3
HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
SECONDS = BillingRule(1_000, BillingStart.READY)
HABITS = MoveHabits(pause_ms=4_000, prepare_ms=2_000, failed_share=0.05)


def job_view(job_id: str, gpus: int, **more: Any) -> JobView:
    need = {"resources": Resources(gpus, gpus), "submitted_ms": 0, "deadline_ms": NOW_MS + HOUR_MS, "row_version": 1}
    return JobView(job_id, **{"project_id": "p", "state": JobState.RUNNING, "checkpoint_step": 5, **need, **more})


class Fleet:
    """Rented nodes and hosts of pool `lab`, and the jobs on them; `seen` is what a defragmentation sees."""

    def __init__(self) -> None:
        self.jobs: list[JobView] = []
        self.runs: list[RunView] = []
        self.nodes: dict[str, NodeView] = {}
        self.hosts: dict[str, OwnHost] = {}
        self.facts: dict[str, NodeFacts] = {}
        self.held: dict[str, HeldGpus] = {}
        self.pool = Pool("lab")
        self.kept: frozenset[str] = frozenset()
        self._cuts = 0

    def node(self, name: str, gpus: int = 4, **more: Any) -> None:
        sizes = {"gpu_type": "A100", "gpu_count": gpus, "gpu_memory_bytes": 40 * GIB, "cpus": 32}
        paid = {"price_per_hour": Money(4_000_000), "memory_bytes": 256 * GIB, "requested_ms": 0}
        row = {"project_id": "p", "provider": "cloud", "tier": Tier.MARKETPLACE, "state": NodeState.READY}
        rest = {"row_version": 1, "free_gpus": tuple(range(gpus)), "expected_ready_ms": 0}
        self.nodes[name] = NodeView(name, **{**row, **sizes, **paid, **rest, **more})
        self.facts[name] = NodeFacts("", SECONDS, 0)

    def host(self, name: str, gpus: int = 4, cpus: int = 32) -> None:
        every = tuple(HostGpu(index, "A100", 40 * GIB) for index in range(gpus))
        self.hosts[name] = OwnHost(name, "lab", cpus, 256 * GIB, every)

    def trains(self, job: JobView, on: str) -> None:
        self.jobs.append(job)
        self._hold(job, on, f"run_{job.job_id}", RunState.RUNNING)

    def begins_to_move(self, job_id: str, to: str) -> None:
        """Its next run is there, and has what it needs."""
        self._hold(self.job(job_id), to, f"run_{job_id}_next", RunState.STANDBY)

    def ends_to_move(self, job_id: str, *, done: bool) -> None:
        """It is where it was to go; or its move was called off."""
        first, second = f"run_{job_id}", f"run_{job_id}_next"
        self._let_go(self.job(job_id), first if done else second)
        if done:
            run = next(one for one in self.runs if one.run_id == second)
            self.runs.remove(run)
            self.runs.append(replace(run, run_id=first, state=RunState.RUNNING, running_since_ms=NOW_MS - HOUR_MS))
            self.held[first] = self.held.pop(second)

    def ends(self, job: JobView) -> None:
        self._let_go(job, f"run_{job.job_id}")
        self.jobs.remove(job)

    def job(self, job_id: str) -> JobView:
        return next(one for one in self.jobs if one.job_id == job_id)

    def _hold(self, job: JobView, on: str, run_id: str, state: RunState) -> None:
        gpus, node_id = job.resources.gpus_min, on
        assert self.room(on) >= gpus, f"{on} has no room for {job.job_id}"
        if on in self.hosts:
            self._cuts += 1
            node_id, host = f"node_{self._cuts}", self.hosts[on]
            free = [gpu.index for gpu in host.gpus if gpu.index not in host.taken][:gpus]
            self.hosts[on] = replace(host, taken=(*host.taken, *free))
            cut = {"provider": "joined", "tier": Tier.OWN, "free_gpus": (), "price_per_hour": Money(0)}
            self.node(node_id, gpus, project_id=job.project_id, region="lab", **cut)
            self.facts[node_id] = NodeFacts(f"{on}/A100", SECONDS)
        else:
            self.nodes[on] = replace(self.nodes[on], free_gpus=self.nodes[on].free_gpus[gpus:])
        since_ms = NOW_MS - HOUR_MS if state is RunState.RUNNING else None
        self.runs.append(RunView(run_id, (job.job_id,), node_id, self.nodes[node_id].tier, state, 1, 0, since_ms))
        self.held[run_id] = HeldGpus(gpus)

    def _let_go(self, job: JobView, run_id: str) -> None:
        run = next(one for one in self.runs if one.run_id == run_id)
        self.runs.remove(run)
        node, gpus = self.nodes[run.node_id], job.resources.gpus_min
        place = self.facts[run.node_id].place.partition("/")[0]
        if place:
            host = self.hosts[place]
            self.hosts[place] = replace(host, taken=host.taken[gpus:])
            del self.nodes[run.node_id], self.facts[run.node_id]
        else:
            self.nodes[run.node_id] = replace(node, free_gpus=tuple(range(len(node.free_gpus) + gpus)))

    def seen(self) -> SeenFleet:
        nodes = tuple(sorted(self.nodes.values(), key=lambda node: node.node_id))
        runs = tuple(sorted(self.runs, key=lambda run: run.run_id))
        snapshot = Snapshot(NOW_MS, tuple(self.jobs), runs, nodes)
        return SeenFleet(
            snapshot, HABITS, (self.pool,), tuple(self.hosts.values()), {}, self.held, self.facts, self.kept
        )

    def plan(self, goal: Goal) -> list[PlannedRelease]:
        return list(plan_for(self.seen(), goal, None, 100).releases)

    def room(self, place: str) -> int:
        place = place.partition("/")[0]
        if place in self.hosts:
            return len(self.hosts[place].gpus) - len(self.hosts[place].taken)
        return len(self.nodes[place].free_gpus)

    def size(self, place: str) -> int:
        place = place.partition("/")[0]
        return len(self.hosts[place].gpus) if place in self.hosts else self.nodes[place].gpu_count

    def used(self) -> int:
        """Hosts, or rented nodes, on which something is."""
        if self.hosts:
            return sum(bool(host.taken) for host in self.hosts.values())
        return len({run.node_id for run in self.runs})


def half_used(goal: Goal, **more: Any) -> Fleet:
    fleet = Fleet()
    for name in "ab":
        fleet.host(name) if goal is Goal.POOLS else fleet.node(name)
        fleet.trains(job_view(f"job_{name}", 2, **more), name)
    return fleet


BOTH = pytest.mark.parametrize("goal", list(Goal))


@BOTH
def test_two_half_used_become_one(goal: Goal) -> None:
    (release,) = half_used(goal).plan(goal)
    assert len(release.steps) == 1
    assert release.pause_ms == 2 * HABITS.cost_ms


@BOTH
@pytest.mark.parametrize(
    "more",
    [
        {"affinity": Affinity(own=frozenset({"x"}), apart=frozenset({"x"}))},
        {"affinity": Affinity(beside=frozenset({"x"}))},
        {"locked": True},
        {"unsaved": True},
        {"leaving": True},
        {"saves": False},
        {"checkpoint_step": None},
        {"not_moved_before_ms": NOW_MS + 1},
        {"total_run_ms": HOUR_MS + 30_000},
        {"spent": Money(5), "caps": replace(JobView.__dataclass_fields__["caps"].default, max_cost=Money(5))},
    ],
    ids=lambda more: next(iter(more)),
)
def test_who_stays(goal: Goal, more: dict[str, Any]) -> None:
    assert half_used(goal, **more).plan(goal) == []


def test_a_machine_of_another_project_or_image_or_price_takes_nobody() -> None:
    for more in ({"project_id": "q"}, {"image": "other"}, {"price_per_hour": Money(9_000_000)}, {"gpu_type": "H100"}):
        fleet = Fleet()
        fleet.node("a")
        fleet.trains(job_view("job_a", 1, resources=Resources(1, 1, gpu_type="A100")), "a")
        fleet.node("b", **more)
        fleet.trains(job_view("job_b", 3, locked=True, project_id=fleet.nodes["b"].project_id), "b")
        assert fleet.plan(Goal.RENT) == [], more


def test_a_host_that_cuts_too_few_processors_takes_nobody() -> None:
    """A job that needs eight of them with its one GPU has them on a host of 32, and not on one of 8."""
    fleet = Fleet()
    fleet.host("a", cpus=32)
    fleet.host("b", cpus=8)
    fleet.trains(job_view("job_a", 1, resources=Resources(1, 1, cpus_min=8)), "a")
    fleet.trains(job_view("job_b", 2, locked=True), "b")
    assert fleet.plan(Goal.POOLS) == []
    fleet.hosts["b"] = replace(fleet.hosts["b"], cpus=32)
    assert [one.node_id for one in fleet.plan(Goal.POOLS)] == ["a/A100"]


@pytest.mark.parametrize("most_gpus", [4, 5, 6])
def test_the_limit_of_a_pool_has_to_allow_both_places_at_once(most_gpus: int) -> None:
    fleet = half_used(Goal.POOLS)
    fleet.pool = replace(fleet.pool, most_gpus=most_gpus)
    assert len(fleet.plan(Goal.POOLS)) == (most_gpus >= 6)


@pytest.mark.parametrize("kept", ["a", "a/A100"])
def test_where_something_is_kept_nobody_comes_and_nobody_leaves(kept: str) -> None:
    fleet = half_used(Goal.POOLS)
    fleet.kept = frozenset({kept})
    assert fleet.plan(Goal.POOLS) == []


def test_a_minimum_that_is_owed_is_not_saved() -> None:
    """Rent up to then is paid, whoever is there."""
    fleet = half_used(Goal.RENT)
    assert len(fleet.plan(Goal.RENT)) == 1
    minimum = replace(SECONDS, minimum_ms=NOW_MS + 2 * HOUR_MS)
    fleet.facts = {name: replace(one, rule=minimum) for name, one in fleet.facts.items()}
    assert fleet.plan(Goal.RENT) == []


def test_it_is_wanted_while_somebody_waits_for_more_than_is_free_together() -> None:
    fleet = half_used(Goal.POOLS)
    assert not is_wanted(fleet.seen())
    for gpus, wanted in ((2, False), (4, True), (5, False)):
        waits = job_view("job_w", gpus, state=JobState.QUEUED)
        seen = fleet.seen()
        assert is_wanted(replace(seen, snapshot=replace(seen.snapshot, jobs=(*fleet.jobs, waits)))) is wanted


@BOTH
def test_a_chain_is_moved_from_its_end_one_link_after_the_other(goal: Goal) -> None:
    """The job of three has no room before that of one has left, and what that one left has been given back."""
    fleet = Fleet()
    for name in "abc":
        fleet.host(name, 8) if goal is Goal.POOLS else fleet.node(name, 8)
    fleet.trains(job_view("job_three", 3), "a")
    fleet.trains(job_view("job_b", 5, locked=True), "b")
    fleet.trains(job_view("job_one", 1), "b")
    fleet.trains(job_view("job_c", 7, locked=True), "c")
    (release,) = fleet.plan(goal)
    assert [step.job_id for step in release.steps] == ["job_one", "job_three"]
    deciding = Deciding(goal, NOW_MS, NOW_MS, 5)
    assert [index for _, index in next_steps([release], pack(fleet.seen(), goal), deciding).begin] == [0]
    fleet.begins_to_move("job_one", "c")
    moving = replace(release.steps[0], state=StepState.MOVING, move_id="m")
    release = replace(release, steps=(moving, release.steps[1]))
    assert next_steps([release], pack(fleet.seen(), goal), deciding).begin == ()
    fleet.ends_to_move("job_one", done=True)
    release = caught_up(release, pack(fleet.seen(), goal), {"m": MoveNow(MoveState.DONE)}, NOW_MS)
    assert [index for _, index in next_steps([release], pack(fleet.seen(), goal), deciding).begin] == [1]


@BOTH
def test_nobody_moves_onto_one_that_has_fallen_free(goal: Goal) -> None:
    """That would vacate one and fill another."""
    fleet = half_used(goal)
    (release,) = fleet.plan(goal)
    gone = {"job_a", "job_b"} - {release.steps[0].job_id}
    fleet.ends(fleet.job(gone.pop()))
    todo = next_steps([release], pack(fleet.seen(), goal), Deciding(goal, NOW_MS, NOW_MS, 5))
    assert todo.begin == ()
    assert "has fallen free: another node would be vacated in vain" in todo.drop[0]


def fleets(seed: int) -> tuple[Fleet, Goal]:
    chance, fleet = random.Random(seed), Fleet()
    goal = chance.choice(list(Goal))
    for number in range(chance.randint(1, 7)):
        name = f"n{number}"
        size = chance.choice((4, 8))
        fleet.host(name, size) if goal is Goal.POOLS else fleet.node(name, size)
        for order in range(chance.randint(0, 4)):
            gpus = chance.randint(1, 4)
            if gpus <= fleet.room(name):
                locked = chance.random() < 0.2
                fleet.trains(job_view(f"job_{number}_{order}", gpus, locked=locked), name)
    return fleet, goal


@given(st.integers(0, 1 << 32), st.integers(1, 3))
def test_a_plan_that_is_carried_out_gives_out_nothing_twice_and_ends(seed: int, at_once: int) -> None:
    """Moves end in any order, some fail, jobs end and are pinned meanwhile: each move has its room when it begins,
    beside all that are under way, and no more machines are in use than before."""
    fleet, goal = fleets(seed)
    chance, before = random.Random(seed + 1), fleet.used()
    releases = {one.position: one for one in fleet.plan(goal)}
    moves: dict[str, str] = {}
    over: dict[str, MoveNow] = {}
    for turn in range(400):
        seen = pack(fleet.seen(), goal)
        known = {**over, **dict.fromkeys(moves, MoveNow(MoveState.PREPARING))}
        now_ms = NOW_MS + 10_000 * turn
        releases = {at: caught_up(one, seen, known, now_ms) for at, one in releases.items()}
        todo = next_steps(list(releases.values()), seen, Deciding(goal, NOW_MS, now_ms, at_once))
        for at in todo.drop:
            releases[at] = replace(releases[at], state=ReleaseState.DROPPED)
        for at in todo.emptied:
            assert not [task for task in seen.tasks if task.node_id == releases[at].node_id]
            releases[at] = replace(releases[at], state=ReleaseState.FREED)
        for planned, index in todo.begin:
            release = releases[planned.position]
            step = release.steps[index]
            move_id = f"move_{turn}_{planned.position}_{index}"
            assert not fleet.job(step.job_id).locked
            assert fleet.room(step.target) < fleet.size(step.target), "onto one that has fallen free"
            fleet.begins_to_move(step.job_id, step.target.partition("/")[0])
            moves[move_id] = step.job_id
            moving = replace(step, state=StepState.MOVING, move_id=move_id)
            steps = (*release.steps[:index], moving, *release.steps[index + 1 :])
            releases[planned.position] = replace(release, steps=steps)
        assert len(moves) <= at_once
        if not moves:
            freed = sum(one.state is ReleaseState.FREED for one in releases.values())
            assert fleet.used() <= before - freed, "what is left of half a chain takes up no more machines"
        if all(one.is_over for one in releases.values()):
            break
        _meanwhile(fleet, chance, moves, over)
    else:
        raise AssertionError("it goes on for ever")
    assert not moves, "one that is over has nothing under way"
    assert fleet.used() <= before - sum(one.state is ReleaseState.FREED for one in releases.values())


def _meanwhile(fleet: Fleet, chance: random.Random, moves: dict[str, str], over: dict[str, MoveNow]) -> None:
    """Some of the moves end, one way or the other; now and then a job is pinned, or ends."""
    for move_id, job_id in list(moves.items()):
        if chance.random() < 0.5:
            del moves[move_id]
            done = chance.random() < 0.8
            fleet.ends_to_move(job_id, done=done)
            over[move_id] = MoveNow(MoveState.DONE) if done else MoveNow(MoveState.ABANDONED, "its machine was lost")
    at_rest = [job for job in fleet.jobs if job.job_id not in moves.values()]
    if at_rest and chance.random() < 0.1:
        fleet.ends(chance.choice(at_rest))
    if fleet.jobs and chance.random() < 0.1:
        pinned = chance.randrange(len(fleet.jobs))
        fleet.jobs[pinned] = replace(fleet.jobs[pinned], locked=True)
