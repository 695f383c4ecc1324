"""Explanations: made of facts, silent about what is not known."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.core.explaining import JobExplanation, explain
from app.core.explaining.facts import Facts, JobMachine, LastDecision, LastStay, Said
from app.core.model.job import JobState, PauseReason
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunState
from app.core.progress import End, EndBy, Expected, Finish
from app.core.steering import JobStanding

NOW_MS = 10_000_000


def machine(state: NodeState = NodeState.READY, tier: Tier = Tier.SERVERLESS, **changes: Any) -> JobMachine:
    values: dict[str, Any] = {
        "node_id": "node_a", "provider": "local", "gpu_type": "A100", "gpu_count": 1,
        "price_per_hour": Money.usd("3.60"), "requested_ms": NOW_MS - 22_000, "expected_ready_ms": NOW_MS + 20_000,
        "startup_deadline_ms": NOW_MS + 600_000,
    }  # fmt: skip
    return JobMachine(state=state, tier=tier, **(values | changes))


def facts(state: JobState = JobState.RUNNING, standing: dict[str, Any] | None = None, **changes: Any) -> Facts:
    values: dict[str, Any] = dict.fromkeys(
        ["since_ms", "ended_ms", "total_steps", "checkpoint_step", "wait_reason", "end_message", "finish", "placed",
         "stopping", "run_state", "running_ms", "machine", "coming", "last_stay", "decided"]
    )  # fmt: skip
    values |= {
        "now_ms": NOW_MS, "submitted_ms": 0, "deadline_ms": NOW_MS + 3_600_000, "deadline_given": True, "step": 0,
        "serverless_used_ms": 0, "not_before_ms": 0, "earlier_waiting": 0, "tick_ms": 60_000, "grace_ms": 60_000,
    }  # fmt: skip
    return Facts(job=JobStanding("job_a", state, **(standing or {})), **(values | changes))


def texts(told: JobExplanation) -> tuple[str, str]:
    return "\n".join(line.text for line in told.because), "\n".join(line.text for line in told.next)


def test_limits_are_told_with_when_they_take_effect() -> None:
    """At the present price, and by the clock."""
    limits = {
        "spent": Money.usd("1"), "max_cost": Money.usd("2"), "first_running_ms": NOW_MS - 60_000,
        "max_duration_ms": 3_600_000,
    }  # fmt: skip
    _, upcoming = texts(explain(facts(standing=limits, machine=machine(), running_ms=NOW_MS)))
    assert "is paused when it has cost $2.00; it has cost $1.00, in about 16 min at the present price" in upcoming
    assert "saves and is cancelled in 59 min, when its max_duration of 60 min is over" in upcoming


def test_why_a_machine_was_cut_from_that_host_is_told_of_whoever_has_it_and_of_whoever_waits_for_it() -> None:
    told = Said(NOW_MS - 5_000, "there is room; by the ranker spotgpu on host_a, of 2 hosts of lab", {"offer": "x"})
    pool = machine(NodeState.BOOTING, Tier.OWN, provider="joined")
    for one in (
        facts(JobState.RUNNING, machine=pool, cut=told, run_state=RunState.RUNNING, running_ms=NOW_MS),
        facts(JobState.QUEUED, coming=pool, cut=told),
    ):
        because, _ = texts(explain(one))
        assert "its machine was cut from a host: there is room; by the ranker spotgpu on host_a" in because
    assert "cut from a host" not in texts(explain(facts(machine=pool)))[0]


def test_a_limit_on_waiting_is_told_with_its_moment_and_with_what_happens_then() -> None:
    """Of a job that has never had a place, before that moment and after it; of no other one."""
    begun = {"submitted_ms": NOW_MS - 1_800_000, "max_wait_ms": 7_200_000}
    *_, line = explain(facts(JobState.QUEUED, **begun)).next
    then = "it takes the first place that is to be had and that its limits allow, whatever it costs"
    assert line.text == f"in 90 min, when its max_wait of 2 h 0 min is over, {then}"
    assert line.data["max_wait_ends_ms"] == NOW_MS + 5_400_000
    *_, line = explain(facts(JobState.QUEUED, **{**begun, "max_wait_ms": 1_200_000})).next
    assert line.text == f"its max_wait of 20 min is over since 10 min: {then}"
    _, upcoming = texts(explain(facts(JobState.WAITING, **begun)))
    assert "max_wait" not in upcoming


def test_the_serverless_budget_is_told_only_on_serverless_and_only_when_it_is_known() -> None:
    """Without a decision on record, or on a rented machine, nothing is said of it."""
    decided = LastDecision(NOW_MS - 5_000, "fixed-threshold", 300_000)
    on = {"running_ms": NOW_MS - 100_000, "serverless_used_ms": 50_000}
    here = texts(explain(facts(machine=machine(), decided=decided, **on)))[1]
    assert (
        here
        == "has run on serverless for 150 s of at most 300 s: in 150 s it moves to a rented node if one can hold it"
    )
    assert texts(explain(facts(machine=machine(), **on)))[1] == ""
    assert texts(explain(facts(machine=machine(tier=Tier.MARKETPLACE), decided=decided, **on)))[1] == ""


def test_what_a_saving_job_does_next_depends_on_why_it_saves() -> None:
    """It goes on, pauses or ends, and is killed when it does not leave."""
    asked = Said(NOW_MS - 10_000, "asked")
    for standing, then in (
        ({}, "goes on from there as soon as it has a place"),
        ({"pause_reason": PauseReason.USER}, "is paused"),
        ({"first_running_ms": 0, "max_duration_ms": 1}, "is cancelled, as its max_duration is over"),
    ):
        because, upcoming = texts(explain(facts(JobState.CHECKPOINTING, standing, stopping=asked)))
        assert because == "asked"
        assert upcoming.startswith(f"once it has saved and left, it {then}\n")
        assert "in about 50 s, its process is killed" in upcoming


def test_a_start_is_told_step_by_step() -> None:
    """From the request of the machine to the preparing of the code."""
    boots = facts(JobState.STARTING, machine=machine(NodeState.BOOTING), run_state=RunState.ASSIGNED)
    assert texts(explain(boots)) == (
        "the machine was requested 22 s ago and is booting",
        "its code is started when the machine is ready, expected in 20 s\n"
        "if the machine has not called home in 10 min, it is given up and another is looked for",
    )
    prepares = facts(JobState.STARTING, machine=machine(), run_state=RunState.STARTING)
    assert texts(explain(prepares))[0] == "the machine prepares its code, environment and checkpoint"
    late = facts(JobState.STARTING, machine=machine(NodeState.BOOTING, expected_ready_ms=NOW_MS - 5_000))
    assert "expected 5 s ago" in texts(explain(late))[1]


def test_a_second_try_for_want_of_memory_is_told_in_every_state() -> None:
    """Where it runs now, or ended, and why it is not where it was first."""
    text = "ran out of GPU memory on T4 with 16 GiB: is tried once more where there is more, such as cloud A100"
    said = Said(0, text, {"memory": "gpu"})
    for state in (JobState.WAITING, JobState.RUNNING, JobState.SUCCEEDED):
        last = explain(facts(state, retried=said)).because[-1]
        assert last.text.endswith(f" ago it {text}")
        assert (last.data["retried_ms"], last.data["memory"]) == (0, "gpu")


def test_deadlines_are_compared_with_the_finish() -> None:
    """Met, missed, or not known, and then why not."""
    met = explain(facts(finish=finish(NOW_MS), total_steps=5)).deadline
    assert met.text.endswith("it is done 60 min before it")
    missed = explain(facts(finish=finish(NOW_MS + 3_660_000), total_steps=5)).deadline
    assert missed.text.endswith("it is done 60 s after it")
    assert missed.slack_ms == -60_000
    ended = explain(facts(JobState.SUCCEEDED, ended_ms=NOW_MS, end_message="exit code 0", deadline_given=False))
    assert ended.deadline.text == "ended 60 min before the default deadline"
    assert "it is not running" in explain(facts(JobState.QUEUED, total_steps=5)).deadline.text
    assert explain(facts(deadline_ms=NOW_MS - 1_000)).deadline.text.startswith("the deadline was 1 s ago; ")


def finish(at_ms: int, first_ms: int | None = None, last_ms: int | None = None, by: EndBy = EndBy.STEPS) -> Finish:
    """Five steps more, or three to nine where the bounds are said."""
    first_ms, last_ms = (at_ms if one is None else one for one in (first_ms, last_ms))
    least, most = 5 if first_ms == at_ms else 3, 5 if last_ms == at_ms else 9
    return Finish(at_ms, End(5, by), Expected(5, least, most, first_ms, last_ms))


def test_an_estimate_says_between_which_bounds() -> None:
    """In steps and in time where they are apart, and nothing of them where they are not; a deadline between them may be
    met or missed."""
    exact = explain(facts(JobState.RUNNING, finish=finish(NOW_MS + 60_000)))
    assert exact.next[0].text == "is done in about 60 s: 5 steps left at its present speed"
    wide = finish(NOW_MS + 600_000, NOW_MS + 300_000, NOW_MS + 7_200_000, EndBy.TARGET)
    told = explain(facts(JobState.RUNNING, finish=wide))
    assert told.next[0].text == (
        "is done in about 10 min (300 s to 2 h 0 min): 5 steps left (3 to 9) at its present speed, where the curve of "
        "its metric reaches the target"
    )
    assert told.next[0].data["steps_left_most"] == 9
    assert told.next[0].data["latest_finish_ms"] == NOW_MS + 7_200_000
    assert told.deadline.text.endswith("it is done 50 min before it, or up to 60 min after it")
    late = finish(NOW_MS + 7_200_000, NOW_MS + 300_000, NOW_MS + 9_000_000)
    assert explain(facts(JobState.RUNNING, finish=late)).deadline.text.endswith(
        "it is done 60 min after it, or up to 55 min before it"
    )


moments = st.none() | st.integers(0, 2 * NOW_MS)
machines = st.none() | st.builds(machine, st.sampled_from(NodeState), st.sampled_from(Tier))
every_fact = st.builds(
    Facts,
    now_ms=st.just(NOW_MS),
    job=st.builds(
        JobStanding,
        job_id=st.just("job_a"),
        state=st.sampled_from(JobState),
        pause_reason=st.none() | st.sampled_from(PauseReason),
        spent=st.integers(0, 9).map(Money),
        max_cost=st.none() | st.integers(0, 9).map(Money),
        first_running_ms=moments,
        max_duration_ms=moments,
    ),
    submitted_ms=st.integers(0, 2 * NOW_MS),
    since_ms=moments,
    ended_ms=moments,
    deadline_ms=st.integers(0, 2 * NOW_MS),
    finish=st.none()
    | st.builds(
        finish,
        st.integers(0, 2 * NOW_MS),
        st.integers(0, 2 * NOW_MS),
        st.integers(0, 2 * NOW_MS),
        st.sampled_from(EndBy),
    ),
    step=st.integers(0, 9),
    serverless_used_ms=st.integers(0, NOW_MS),
    tick_ms=st.integers(1, 60_000),
    grace_ms=st.integers(0, 60_000),
    total_steps=st.none() | st.integers(1, 9),
    checkpoint_step=st.none() | st.integers(0, 9),
    not_before_ms=st.integers(0, 2 * NOW_MS),
    running_ms=moments,
    machine=machines,
    coming=machines,
    placed=st.none() | st.just(Said(1, "placed")),
    stopping=st.none() | st.just(Said(1, "stopping")),
    last_stay=st.none() | moments.map(lambda ran_ms: LastStay("run", machine(), ran_ms, 5, "lost", "gone")),
    decided=st.none()
    | st.builds(LastDecision, st.integers(0, 2 * NOW_MS), st.just("p"), st.none() | st.integers(0, 9)),
    earlier_waiting=st.integers(0, 3),
)


@given(every_fact)
def test_any_record_can_be_put_into_words(drawn: Facts) -> None:
    """However the rows contradict each other: something is said, no sentence is empty, and no time is negative."""
    told = explain(drawn)
    lines = [told.headline, told.deadline.text, *(line.text for line in (*told.because, *told.next))]
    assert told.because
    assert all(line and " -" not in line and "None" not in line for line in lines), lines
