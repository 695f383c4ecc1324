"""Whatever the wire lets in, and whatever a metrics file claims, every policy decides: no job stops the others."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from allpass.wire.agent import LARGEST_MEASURED
from allpass.wire.jobs import JobRequest
from allpass.wire.template import Template
from app.core.board import Board
from app.core.codec import dumps
from app.core.demand import MOST_PRESSURE
from app.core.explaining import explain
from app.core.invariants import plan_breaches, snapshot_breaches
from app.core.model.job import JobState, Resources
from app.core.model.merge import Recipe
from app.core.model.node import Tier
from app.core.model.plan import STOP_AND_GO, ActionKind
from app.core.model.snapshot import JobView, RunView, Snapshot
from app.core.model.times import LONGEST_MS, believable_ms, believable_step_ms
from app.core.policies import policy_named, policy_names
from app.core.policies.paper import pressure_now
from app.core.policy import PolicyConfig, PolicyState
from app.core.predicting import with_prediction
from app.core.progress import End, EndBy, ProgressRate, estimate_finish
from app.core.remaining import remaining_ms
from app.db.apps.versions import AppContent, AppVersion
from app.db.decisions.job_views import job_view
from app.db.jobs.affinities import affinity_of
from app.errors import InvalidInput
from app.services.jobs.compose_job import Defaults, Predicted, compose_jobs
from tests.core.samples import OFFERS, node, run, snapshot
from tests.core.test_explaining import facts

NOW_MS = 1_800_000_000_000
INT64 = 2**63 - 1
_APP = AppVersion("app_1", "app", "ada", 1, "ver", AppContent(None, (), "e" * 64, "b" * 64, 1, "train.py"), 0)
_DEFAULTS = Defaults(deadline_ms=86_400_000, checkpoint_interval_s=300)
_CONFIG = PolicyConfig(
    STOP_AND_GO, serverless_budget_ms=300_000, serverless_limit=5, serverful_limit=4, idle_release_ms=0
)
every_policy = pytest.mark.parametrize("name", policy_names())


def _extremes(schema: dict[str, Any], definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    """The ends of what a JSON schema allows."""
    if "$ref" in schema:
        return _extremes(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    if "anyOf" in schema:
        return st.one_of([_extremes(choice, definitions) for choice in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema["type"]
    if kind in ("integer", "number"):
        return st.sampled_from(list(_ends(schema, kind)))
    if kind == "object" and "properties" in schema:
        fields = {name: _extremes(inner, definitions) for name, inner in schema["properties"].items()}
        required = {name: fields.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=fields)
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "string": st.sampled_from(["A", "A100", "loss"]),
        "array": st.just([]),
        "object": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), max_size=2),
    }[kind]


def _ends(schema: dict[str, Any], kind: str) -> Iterator[float]:
    tiny = 1 if kind == "integer" else 1e-300
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + tiny)
    most = schema.get("maximum", schema.get("exclusiveMaximum", 0) - 1)
    yield from (least, most)
    if least <= 1 <= most:
        yield 1 if kind == "integer" else 1.0


_SCHEMA = Template.model_json_schema()
_anything = _extremes(_SCHEMA, _SCHEMA["$defs"])
_NEEDS = ("gpu", "cpus", "memory_gb", "placement")
_of_any_machine = _anything.map(lambda made: {name: made[name] for name in made if name not in _NEEDS})
_templates = _of_any_machine | _of_any_machine | _anything  # most ask for what is there
_NOTHING_MORE: tuple[tuple[str, int], ...] = ()
_deadlines = st.sampled_from([None, "1s", "3650d", "0.001s", "9" * 10 + "s", "2026-12-31T00:00:00Z"])
_times_ms = st.sampled_from([None, 1e-300, 1e-9, 1.0, 1e9, 1e18, 1e300, math.inf, math.nan, -1.0, -math.inf, 0.0])
_steps = st.sampled_from([0, 1, 10**6, 10**12, 2**53, INT64])
_maybe_steps = st.none() | _steps
_points = st.sampled_from([0, 1, NOW_MS, 2**53, 253_402_300_799_999])


def compose(draw: st.DrawFn) -> JobView | None:
    """The view of a job as it is after a request was accepted; None for one that is refused, in words."""
    body = {"app_id": "app_1", "template": draw(_templates), "soft_deadline": draw(_deadlines)}
    needs = draw(st.sampled_from([(0, _NOTHING_MORE), (0, _NOTHING_MORE), (80 * 10**9, (("a100", 10**25),))]))
    predicted = Predicted(needs[0], draw(_times_ms), "plan", needs[1])
    try:
        request = JobRequest.model_validate_json(json.dumps(body))
        (row,) = compose_jobs(
            ["job_0"], "proj_a", _APP, request, [{}], now_ms=NOW_MS, defaults=_DEFAULTS, predicted=predicted
        )
    except (ValidationError, InvalidInput):
        return None
    written = {name: value for part in row for name, value in part._asdict().items()}
    _fits_the_database(written)
    columns = SimpleNamespace(
        **written | {"resources": json.loads(written["resources"]), "affinity": json.loads(written["affinity"])},
        **{
            "labels_json": written["labels"],
            "state": "queued",
            "row_version": 1,
            "spent_micros": draw(st.sampled_from([0, 1, 10**12, INT64])),
        },
        **{"serverless_used_ms": 0, "step": draw(_steps), "checkpoint_step": draw(_maybe_steps), "ran_ms": 0},
        **{"not_before_ms": 0, "avoided_offers": [], "pause_reason": None, "first_running_ms": None},
        refused_ms=draw(st.sampled_from([None, 0, NOW_MS])),
        saves_ms=draw(st.sampled_from([None, 0, NOW_MS])),
        base_image=None,
    )
    columns.labels = json.loads(columns.labels_json)
    row_of: Any = columns
    view = job_view(row_of, NOW_MS, 0, "", affinity_of(row_of))
    return replace(view, total_steps=draw(st.sampled_from([view.total_steps, None, INT64])))


def _fits_the_database(written: dict[str, Any]) -> None:
    """Every number of the row is within the column that it goes to."""
    for name in ("deadline_ms", "max_cost_micros", "max_duration_ms", "total_steps"):
        assert 0 <= (written[name] or 0) <= INT64
    assert written["checkpoint_interval_s"] < 2**31


_losses = st.lists(
    st.tuples(_steps, st.sampled_from([0.0, 1e-300, 1.0, 2.5, 1e12, -1e12, 1e100, 1.7e308, math.nan, math.inf])),
    max_size=8,
    unique_by=lambda point: point[0],
)
_measured = st.sampled_from([0.0, 1e-300, 1.0, LARGEST_MEASURED])
_recipes = st.none() | st.builds(
    Recipe,
    base=st.just("llama"),
    shares=st.just(True),
    profile_key=st.sampled_from(["", "a", "b"]),
    fisher=st.just(()) | st.tuples(*[_measured] * 4),
    pull=st.just(()) | st.tuples(*[_measured | _measured.map(float.__neg__)] * 4),
    losses=_losses.map(lambda points: tuple(sorted(points))),
    target_loss=st.sampled_from([None, 0.0, 1e100, -1e100]),
)


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Some jobs of all kinds, at their extremes: waiting, or running on a machine."""
    jobs, runs, nodes = [], [], []
    for index in range(draw(st.integers(1, 4))):
        job = compose(draw)
        if job is None:
            continue
        job = replace(job, job_id=f"job_{index}", recipe=draw(_recipes))
        held: RunView | None = None
        if draw(st.booleans()):
            since_ms = draw(st.sampled_from([0, NOW_MS - 1, NOW_MS, NOW_MS + 10**9]))
            tier = draw(st.sampled_from(list(Tier)))
            count = job.resources.gpus_min
            on = node(f"node_{index}", tier, gpu_count=count, free_gpus=(), requested_ms=0, expected_ready_ms=0)
            held = run(f"run_{index}", job.job_id, on.node_id, tier=tier, running_since_ms=since_ms)
            job = replace(job, state=JobState.RUNNING)
            runs.append(held)
            nodes.append(on)
        pace = ProgressRate(draw(_steps), draw(_points), draw(_steps), draw(_points)).step_ms()
        step_ms = draw(_times_ms) if pace is None else pace
        jobs.append(with_prediction(job, held, NOW_MS, step_ms=step_ms, usual_run_ms=draw(_times_ms)))
    idle = node("node_idle", gpu_count=4, idle_since_ms=NOW_MS - 1, requested_ms=0, expected_ready_ms=0)
    return snapshot(
        now_ms=NOW_MS, jobs=jobs, runs=runs, nodes=[*nodes, *draw(st.sampled_from([[], [idle]]))], offers=OFFERS
    )


@every_policy
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(seen=worlds(), everything=st.booleans())
def test_every_policy_decides_about_the_extremes(name: str, seen: Snapshot, everything: bool) -> None:
    """No exception, no breach, a plan that can be written down, and reasons that are sentences."""
    config = replace(_CONFIG, capabilities=frozenset(ActionKind), merging=True) if everything else _CONFIG
    assert snapshot_breaches(seen) == []
    policy, state = policy_named(name), PolicyState()
    for _ in range(2):
        plan, state = policy.decide(Board.of(seen), state, config)
        assert plan_breaches(seen, plan, config) == []
        dumps(plan)
        dumps(state)
        assert plan.wake_at_ms is None or seen.now_ms < plan.wake_at_ms <= seen.now_ms + 3 * LONGEST_MS
        assert all(len(waiting.reason) < 400 for waiting in plan.waiting)


@settings(max_examples=60)
@given(seen=worlds(), step=_steps, points=st.tuples(_steps, _points, _steps, _points))
def test_what_is_told_of_the_extremes_can_be_shown(seen: Snapshot, step: int, points: tuple[int, ...]) -> None:
    """When a job will be done is an instant of the calendar, and its explanation is made of sentences."""
    for job in seen.jobs:
        finish = estimate_finish(NOW_MS, step, End(job.total_steps or step, EndBy.STEPS), ProgressRate(*points))
        assert finish is None or 0 <= finish.at_ms <= NOW_MS + LONGEST_MS
        assert finish is None or finish.left.first_ms <= finish.at_ms <= finish.left.last_ms <= NOW_MS + LONGEST_MS
        told = facts(
            job.state,
            {"spent": job.spent, "max_cost": job.caps.max_cost, "max_duration_ms": job.caps.max_duration_ms},
            now_ms=NOW_MS,
            deadline_ms=job.deadline_ms,
            total_steps=job.total_steps,
            step=step,
            finish=finish,
        )
        assert explain(told).deadline.text


@settings(max_examples=100)
@given(total=_maybe_steps, step=_steps, kept=_maybe_steps, step_ms=_times_ms, usual_ms=_times_ms, running=st.booleans())
def test_what_is_predicted_is_believable(
    total: int | None, step: int, kept: int | None, step_ms: float | None, usual_ms: float | None, running: bool
) -> None:
    """At most ten years, whatever a metrics file or a template says; what is left is at least a second."""
    job = JobView("job_0", "p", JobState.RUNNING, 1, 0, NOW_MS, Resources(), step=step, total_steps=total, done_ms=0)
    held = run("run_0", "job_0", "node_0", running_since_ms=0) if running else None
    seen = with_prediction(replace(job, checkpoint_step=kept), held, NOW_MS, step_ms=step_ms, usual_run_ms=usual_ms)
    assert seen.total_run_ms is None or 0 <= seen.total_run_ms <= LONGEST_MS
    assert -LONGEST_MS <= seen.done_ms <= LONGEST_MS
    assert 1_000 <= remaining_ms(seen, held, NOW_MS) <= 2 * LONGEST_MS + NOW_MS


def test_a_view_cannot_hold_what_is_not_believable() -> None:
    """However it was made: a recorded one, a pair's, one with a changed field."""
    job = JobView("job_0", "p", JobState.QUEUED, 1, 0, NOW_MS, Resources(), total_run_ms=10**30, done_ms=-(10**30))
    assert (job.total_run_ms, job.done_ms) == (LONGEST_MS, -LONGEST_MS)
    assert replace(job, total_run_ms=-5, done_ms=10**30).done_ms == LONGEST_MS
    assert replace(job, total_run_ms=-5).total_run_ms == 0
    assert (believable_ms(math.nan), believable_ms(-math.inf), believable_ms(1.5)) == (0, -LONGEST_MS, 2)
    assert [believable_step_ms(each) for each in (math.nan, 0.0, -1.0)] == [None, None, None]
    assert (believable_step_ms(math.inf), believable_step_ms(1e-300)) == (LONGEST_MS, 1e-6)


def test_a_hundred_thousand_jobs_that_last_for_ever_are_counted() -> None:
    """Sums over all jobs and GPUs stay within 64 bits: the pressure is high, and no number turns negative."""
    view = JobView("job", "p", JobState.QUEUED, 1, 0, NOW_MS + 1, Resources(gpus_min=64, gpus_max=64))
    view = replace(view, total_run_ms=10**30, done_ms=-LONGEST_MS)
    jobs = tuple(replace(view, job_id=f"job_{index:06}") for index in range(100_000))
    board = Board.of(Snapshot(now_ms=NOW_MS, jobs=jobs))
    with np.errstate(all="raise"):
        seen = pressure_now(board, _CONFIG, capacity=1.0)
    assert seen.p == MOST_PRESSURE
    assert seen.demand_gpu_ms == 100_000 * 64 * 2 * LONGEST_MS
