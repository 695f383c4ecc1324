"""Who is profiled before it trains, who waits for that, and who is not kept from training by it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.codec import dumps, loads
from app.core.invariants import plan_breaches, snapshot_breaches
from app.core.merging.own_profile import task_of
from app.core.merging.transfer import GainLine
from app.core.model.job import Caps, JobKind, JobState, StartRule
from app.core.model.merge import MergeMode
from app.core.model.money import Money
from app.core.model.node import NodeState
from app.core.model.plan import Assign, Demote, Merge, Plan, Start
from app.core.model.run import RunPurpose
from app.core.model.snapshot import JobView, Snapshot
from app.core.policy import PolicyConfig, PolicyState
from app.core.progress import has_progress
from app.core.remaining import ran_ms, remaining_ms
from tests.core.merging.mergeable import ALIKE, HOUR_MS, MINUTE_MS, NOW_MS, mergeable
from tests.core.plans import ask, why
from tests.core.samples import ALL_ACTIONS, CONFIG, OFFERS, node, offer, on_serverless, snapshot

ON = replace(CONFIG, capabilities=ALL_ACTIONS, serverless_limit=100, serverful_limit=100, merging=True)
FRESH: dict[str, Any] = {"pull": (), "fisher": ()}


def fresh(name: str, state: JobState = JobState.QUEUED, **changes: Any) -> JobView:
    """A job that nobody has profiled."""
    return mergeable(name, state, **(changes | {"recipe": FRESH | changes.get("recipe", {})}))


def seen_with(*jobs: JobView, **changes: Any) -> Snapshot:
    return replace(snapshot(jobs=jobs, offers=OFFERS), now_ms=NOW_MS, **changes)


def decided(seen: Snapshot, config: PolicyConfig = ON, state: PolicyState | None = None) -> Plan:
    """The plan, held to the rules of all plans."""
    assert snapshot_breaches(seen) == []
    plan = ask("allpass", seen, config, state)[0]
    assert plan_breaches(seen, plan, config) == []
    return plan


def profiled(plan: Plan) -> list[str]:
    starts = [one for one in plan.actions if isinstance(one, Start | Assign)]
    return sorted(one.job_id for one in starts if one.purpose == RunPurpose.PROFILE)


def being_profiled(name: str, since_ms: int, **changes: Any) -> dict[str, Any]:
    held = fresh(name, JobState.RUNNING, **changes)
    run, place = on_serverless(held, 0)
    run = replace(run, purpose=RunPurpose.PROFILE, running_since_ms=since_ms, created_ms=since_ms)
    return {"job": held, "run": run, "node": place}


TWO = fresh("job_a"), fresh("job_b")


def test_two_that_might_help_each_other_are_profiled_first() -> None:
    """Both are given a place to be looked at, and the reason says what for; nothing is merged before."""
    plan = decided(seen_with(*TWO))
    assert profiled(plan) == ["job_a", "job_b"]
    assert len(plan.actions) == 2
    assert plan.actions[0].reason.startswith(
        "is profiled before it trains, to know which jobs of its base model help it, on "
    )
    assert loads(Plan, dumps(plan)) == plan


def test_a_ready_node_is_taken_before_one_is_started() -> None:
    """A free GPU that is paid for anyway is where a job is profiled."""
    place = node("node_a", state=NodeState.READY)
    plan = decided(seen_with(*TWO, nodes=(place,)))
    (assign,) = [one for one in plan.actions if isinstance(one, Assign)]
    assert (assign.node_id, assign.purpose) == ("node_a", RunPurpose.PROFILE)
    assert profiled(plan) == ["job_a", "job_b"]


@pytest.mark.parametrize(
    ("config", "jobs"),
    [
        (replace(ON, merging=False), TWO),
        (ON, TWO[:1]),
        (ON, (TWO[0], fresh("job_b", recipe={"base": "base-b"}))),
        (ON, (TWO[0], fresh("job_b", recipe={"shares": False}))),
        (ON, (TWO[0], fresh("job_b", project_id="proj_b"))),
        (ON, (TWO[0], fresh("job_b", recipe={"profile_tries": 1}))),
        (ON, (TWO[0], fresh("job_b", split_from=frozenset({"job_a"})))),
        (ON, (TWO[0], fresh("job_b", JobState.WAITING, done_ms=5))),
        (ON, (TWO[0], fresh("job_b", total_run_ms=MINUTE_MS))),
        (ON, (TWO[0], fresh("job_b", start=StartRule.NOW))),
        (ON, (TWO[0], fresh("job_b", kind=JobKind.INTERACTIVE))),
        (replace(ON, merge_modes=frozenset({MergeMode.TOGETHER})), (TWO[0], fresh("job_b", recipe={"settings": "x"}))),
        (replace(ON, merge_modes=frozenset()), TWO),
    ],
    ids=[
        "off", "alone", "other base", "opted out", "other project", "tried in vain", "split", "progress", "short",
        "at once", "interactive", "other settings", "no mode",
    ],
)  # fmt: skip
def test_nobody_is_profiled_in_vain(config: PolicyConfig, jobs: tuple[JobView, ...]) -> None:
    """Without anybody it could be merged with, a job gets what it would have got without merging."""
    plan = decided(seen_with(*jobs), config)
    assert profiled(plan) == []
    assert {type(one) for one in plan.actions} == {type(one) for one in decided(seen_with(*jobs), CONFIG).actions}


def test_for_those_that_may_come_a_job_looks_itself() -> None:
    """It has a place at once, however often others come: it is looked at as it begins to train."""
    often = PolicyState().having(**{"merge_comes/base-a": 8.0, "merge_seen_ms": float(NOW_MS)})
    late = replace(TWO[0], submitted_ms=NOW_MS - MINUTE_MS)  # it has waited for a partner
    plan = decided(seen_with(late), state=often)
    assert plan.actions
    assert profiled(plan) == []


def test_of_jobs_with_the_same_task_one_is_profiled() -> None:
    """What it finds is of them all; the others wait for that as long as for a partner, whether it is in a run of its
    own or the first seconds of training. Jobs of other tasks, and of other projects, are looked at beside it."""
    same: dict[str, Any] = {"recipe": {"profile_key": "rows-a"}}
    sweep = [fresh(name, **same) for name in ("job_a", "job_b", "job_c")]
    plan = decided(seen_with(*sweep, fresh("job_d", recipe={"profile_key": "rows-d"})))
    assert profiled(plan) == ["job_a", "job_d"]
    assert why(plan, "job_c") == "waits for what is found of another job with the same task, up to 54 s"
    looked_at = being_profiled("job_p", NOW_MS - 10_000, **same)
    run = replace(looked_at["run"], purpose=RunPurpose.TRAIN)
    for one in (looked_at["run"], run):
        seen = seen_with(looked_at["job"], *sweep, fresh("job_d"), runs=(one,), nodes=(looked_at["node"],))
        assert profiled(decided(seen)) == ["job_d"]
    tried = fresh("job_p", JobState.RUNNING, recipe=same["recipe"] | {"profile_tries": 1})
    old = replace(run, created_ms=NOW_MS - HOUR_MS)
    for held, one in ((tried, run), (looked_at["job"], old)):  # nothing will be found there
        seen = seen_with(held, *sweep, fresh("job_d"), runs=(one,), nodes=(looked_at["node"],))
        assert profiled(decided(seen)) == ["job_a", "job_d"]


def test_never_twice_and_few_at_once() -> None:
    """One that is profiled is placed as ever; of many, as many are profiled at once as the rule says, and the next
    ones wait for their turn no longer than they would for a partner."""
    done = mergeable("job_a")
    assert profiled(decided(seen_with(done, fresh("job_b")))) == ["job_b"]
    many = [fresh(f"job_{index}") for index in range(6)]
    plan = decided(seen_with(*many))
    assert profiled(plan) == ["job_0", "job_1", "job_2", "job_3"]
    assert why(plan, "job_4") == "waits to be profiled: as many jobs as may be at once are, up to 54 s"
    late = [replace(one, submitted_ms=NOW_MS - MINUTE_MS) for one in many]
    assert [one.reason for one in decided(seen_with(*late)).waiting if "profiled" in one.reason] == []


def test_a_deadline_goes_before() -> None:
    """A job that would be late for being profiled trains at once, and so does one that is late anyway."""
    for spare_ms, names in ((10 * MINUTE_MS, ["job_a", "job_b"]), (MINUTE_MS, []), (-MINUTE_MS, [])):
        due = NOW_MS + 30 * MINUTE_MS + spare_ms
        assert profiled(decided(seen_with(*(replace(one, deadline_ms=due) for one in TWO)))) == names


def test_one_that_is_profiled_is_waited_for() -> None:
    """The partner that is known already waits a moment, unless that is long beside its own time or makes it late."""
    other = being_profiled("job_p", NOW_MS - 10_000)
    parts: dict[str, Any] = {"runs": (other["run"],), "nodes": (other["node"],)}
    plan = decided(seen_with(other["job"], mergeable("job_a"), **parts))
    assert plan.actions == ()
    assert why(plan, "job_a").startswith("waits for a job of the same base model that is profiled, up to ")
    assert plan.wake_at_ms is not None
    for changes in ({"total_run_ms": 5 * MINUTE_MS}, {"deadline_ms": NOW_MS + 30 * MINUTE_MS}):
        assert decided(seen_with(other["job"], mergeable("job_a", **changes), **parts)).actions
    old = being_profiled("job_p", NOW_MS - 10 * MINUTE_MS + 1)
    later = seen_with(old["job"], mergeable("job_a"), runs=(old["run"],), nodes=(old["node"],))
    assert decided(later).actions


def test_a_profiling_without_end_is_given_up() -> None:
    """After ten minutes it is asked to leave, and until then it is neither moved nor counted as progress."""
    for ran, gone in ((10 * MINUTE_MS - 1, 0), (10 * MINUTE_MS, 1)):
        held = being_profiled("job_p", NOW_MS - ran, total_run_ms=20 * HOUR_MS, deadline_ms=NOW_MS + 99 * HOUR_MS)
        ready = node("node_z", state=NodeState.READY, price_per_hour=Money.usd("0.01"))
        seen = seen_with(held["job"], runs=(held["run"],), nodes=(held["node"], ready))
        assert ran_ms(held["job"], held["run"], NOW_MS) == 0
        assert remaining_ms(held["job"], held["run"], NOW_MS) == 20 * HOUR_MS
        plan = decided(seen)
        assert sum(isinstance(one, Demote) for one in plan.actions) == gone
        assert [one for one in plan.actions if getattr(one, "run_id", None) and not isinstance(one, Demote)] == []


def test_after_its_profile_a_job_is_merged_from_waiting() -> None:
    """Jobs that were run to be profiled, and have come back, have no progress: they are trained together."""
    back = [mergeable(name, JobState.WAITING) for name in ("job_a", "job_b")]
    helps = GainLine(prior_count=1e-6, count=50, sum_score=50.0, sum_gain=25.0, sum_square=50.0, sum_product=25.0)
    seen = seen_with(*back, gains_together=helps, offers=(*OFFERS, offer("two", gpu_count=2)))
    (merge,) = decided(seen).actions
    assert isinstance(merge, Merge)
    assert merge.mode == MergeMode.TOGETHER


names = st.sampled_from(["job_a", "job_b", "job_c", "job_d", "job_e", "job_f"])


@st.composite
def jobs(draw: st.DrawFn) -> JobView:
    recipe = {
        "base": draw(st.sampled_from(["base-a", "base-b"])),
        "shares": draw(st.booleans()),
        "settings": draw(st.sampled_from(["x", "y"])),
        "profile_tries": draw(st.integers(0, 1)),
        "profile_key": draw(st.sampled_from(["", "rows-a", "rows-b"])),
        "pull": draw(st.sampled_from([(), ALIKE, (0.0, 0.0, 0.0, 0.0), (1.0,)])),
    }
    return fresh(
        draw(names),
        draw(st.sampled_from([JobState.QUEUED, JobState.WAITING])),
        recipe=recipe,
        project_id=draw(st.sampled_from(["proj_a", "proj_b"])),
        deadline_ms=NOW_MS + draw(st.integers(-1, 12)) * 10 * MINUTE_MS,
        total_run_ms=draw(st.sampled_from([None, 5 * MINUTE_MS, 30 * MINUTE_MS, 10 * HOUR_MS])),
        done_ms=draw(st.sampled_from([0, 0, 5_000])),
        caps=draw(st.sampled_from([Caps(), Caps(max_cost=Money.usd(0))])),
        start=draw(st.sampled_from([StartRule.AUTO, StartRule.NOW])),
        submitted_ms=NOW_MS - draw(st.sampled_from([0, HOUR_MS])),
    )


@settings(max_examples=60)
@given(st.lists(jobs(), max_size=6, unique_by=lambda job: job.job_id), st.frozensets(st.sampled_from(list(MergeMode))))
def test_whatever_waits_the_rules_are_kept(drawn: list[JobView], modes: frozenset[MergeMode]) -> None:
    """Never twice, never without sharing, never with progress, never so that a deadline is missed for it, never without
    a partner of the same base in sight, never two of one task, never more than may be: and nobody is forgotten."""
    config = replace(ON, merge_modes=modes)
    seen = seen_with(*sorted(drawn, key=lambda job: job.job_id))
    plan = decided(seen, config)
    chosen = profiled(plan)
    tasks = [task for job in seen.jobs if job.job_id in chosen and (task := task_of(job)) is not None]
    assert len(tasks) == len(set(tasks))
    assert len(chosen) <= config.rules.merge_profile_most
    for job in (one for one in drawn if one.job_id in chosen):
        recipe = job.recipe
        assert recipe is not None
        assert recipe.shares
        assert not (recipe.pull or recipe.profile_tries or has_progress(job))
        left = NOW_MS + config.rules.merge_profile_ms + (job.total_run_ms or 0)
        assert left <= job.deadline_ms
        others = [one for one in drawn if one.job_id != job.job_id and one.recipe is not None]
        assert any(one.recipe and one.recipe.base == recipe.base and one.recipe.shares for one in others)
        assert modes
