"""What `explain` foretells of moves, held against what then happens, in simulated worlds drawn at random."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.explaining import explain
from app.core.explaining.facts import Facts, JobMachine, LastDecision
from app.core.model.job import JobState
from app.core.model.node import Tier
from app.core.model.plan import Demote, Migrate
from app.core.model.snapshot import JobView, RunView, Snapshot
from app.core.policies import policy_names
from app.core.steering import JobStanding
from app.simulator.scenario import Task
from tests.simulator.scenarios import Seen, config, simulate, task

TICK_MS = 60_000
F_MS = config().serverless_budget_ms


def facts_of(seen: Snapshot, policy: str, signals: dict[str, float], job: JobView, run: RunView) -> Facts:
    """As the service would put them together of what this decision saw."""
    node = next(one for one in seen.nodes if one.node_id == run.node_id)
    budget_s = signals.get("F_s")
    return Facts(
        now_ms=seen.now_ms, job=JobStanding(job.job_id, job.state), submitted_ms=job.submitted_ms, since_ms=None,
        ended_ms=None, deadline_ms=job.deadline_ms, deadline_given=True, step=0, total_steps=None,
        checkpoint_step=job.checkpoint_step, serverless_used_ms=job.serverless_used_ms, not_before_ms=0,
        wait_reason=None, end_message=None, finish=None, placed=None, stopping=None, run_state=run.state,
        running_ms=run.running_since_ms,
        machine=JobMachine(
            node.node_id, node.provider, node.tier, node.state, node.gpu_type, node.gpu_count, node.price_per_hour,
            node.requested_ms, node.expected_ready_ms, node.expected_ready_ms,
        ),
        coming=None, last_stay=None, earlier_waiting=0,
        decided=LastDecision(seen.now_ms - 1, policy, None if budget_s is None else round(budget_s * 1000)),
        tick_ms=TICK_MS, grace_ms=TICK_MS, saves=job.saves, locked=job.locked,
    )  # fmt: skip


def forecasts(seen: Seen, policy: str) -> dict[str, list[tuple[int, int]]]:
    """By run: when it was foretold to move, and the moment that was foretold."""
    found: dict[str, list[tuple[int, int]]] = {}
    for snapshot, _, plan in seen.snapshots:
        jobs = {job.job_id: job for job in snapshot.jobs}
        for run in snapshot.runs:
            job = jobs.get(run.job_ids[0])
            if job is None or job.state != JobState.RUNNING:
                continue
            told = explain(facts_of(snapshot, policy, dict(plan.signals), job, run)).next
            moments = [line.data["moves_at_ms"] for line in told if "moves_at_ms" in line.data]
            assert not any("moves" in line.text for line in told if "moves_at_ms" not in line.data), told
            found.setdefault(run.run_id, []).extend((snapshot.now_ms, at_ms) for at_ms in moments)
    return found


def ends(seen: Seen) -> tuple[dict[str, int], dict[str, int]]:
    """By run: when a plan took it off its machine; and when it was last seen running."""
    moved: dict[str, int] = {}
    last: dict[str, int] = {}
    for snapshot, _, plan in seen.snapshots:
        moved |= {one.run_id: snapshot.now_ms for one in plan.actions if isinstance(one, Demote | Migrate)}
        last |= {run.run_id: snapshot.now_ms for run in snapshot.runs if run.running_since_ms is not None}
    return moved, last


@st.composite
def worlds(draw: st.DrawFn) -> list[Task]:
    """A few jobs, some of which never save, some of unknown length; some due soon."""
    return [
        task(
            f"job_{at}",
            draw(st.integers(5, 4_000)),
            at_s=draw(st.integers(0, 900)),
            due_s=draw(st.none() | st.integers(10, 40_000)),
            saves=draw(st.booleans()),
            **({"predicted_ms": None} if draw(st.booleans()) else {}),
        )
        for at in range(draw(st.integers(1, 5)))
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.sampled_from(policy_names()), st.sampled_from([1, 3, 10**6]))
def test_a_move_that_is_foretold_comes_and_none_is_foretold_of_a_job_that_stays(
    tasks: list[Task], policy: str, limit: int
) -> None:
    """At the moment that was named, unless the job is done before; and no job that never saves is told to move."""
    seen = simulate(policy, *tasks, using=config(serverful_limit=limit))
    moved, last_ms = ends(seen)
    never = {one.job_id for one in tasks if not one.saves}
    runs: dict[str, tuple[str, Tier]] = {
        run.run_id: (run.job_ids[0], run.tier) for snapshot, _, _ in seen.snapshots for run in snapshot.runs
    }
    for run_id, told in forecasts(seen, policy).items():
        job_id, tier = runs[run_id]
        if told:
            assert tier == Tier.SERVERLESS
            assert job_id not in never
        for told_ms, at_ms in told:
            if run_id in moved:
                assert moved[run_id] == max(told_ms, at_ms)
            else:
                assert last_ms[run_id] <= at_ms
    assert not {runs[run_id][0] for run_id in moved} & never


def test_under_the_default_policy_nothing_is_foretold_that_depends_on_prices() -> None:
    """F counts only where nodes are short there: a job far beyond it was told to move, and did not."""
    seen = simulate("allpass", task("a", 250), using=config(serverless_budget_ms=60_000))
    assert sum(map(len, forecasts(seen, "allpass").values())) == 0
    assert seen.outcome("a").moves == 0


def test_under_a_fixed_budget_every_move_was_foretold() -> None:
    """From the first decision of the run on."""
    seen = simulate("fixed-threshold", task("a", 4_000))
    (told,) = [one for one in forecasts(seen, "fixed-threshold").values() if one]
    moved, _ = ends(seen)
    assert {at_ms for _, at_ms in told} == set(moved.values()) == {4_000 + F_MS}
