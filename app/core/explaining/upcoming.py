"""What will happen to a job next, from the soonest to the latest, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.explaining.facts import Facts, JobMachine, Merged, Moving, Remark, decision_data
from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.core.model.merge import MergeMode
from app.core.model.money import MS_PER_HOUR
from app.core.model.move import MoveState
from app.core.model.node import NodeState, Tier
from app.core.policies import policy_named, policy_names
from app.core.policies.reasons import duration
from app.core.progress import EndBy, Finish
from app.core.steering import refuse_resume

_BY = {
    EndBy.STEPS: "",
    EndBy.TARGET: ", where the curve of its metric reaches the target",
    EndBy.LOSS: ", until the curve of its loss is flat",
}


def upcoming(facts: Facts) -> Iterator[Remark]:
    """Nothing for a job that is over."""
    if facts.merged is not None:
        yield from _next_of_merged(facts.job.state, facts.merged)
    match facts.job.state:
        case JobState.QUEUED | JobState.WAITING:
            yield from _next_of_waiting(facts)
        case JobState.STARTING:
            yield from _next_of_starting(facts)
        case JobState.RUNNING:
            yield from _next_of_running(facts)
        case JobState.CHECKPOINTING:
            yield from _next_of_saving(facts)
        case JobState.PAUSED:
            yield _next_of_paused(facts)
        case _:
            return


def _next_of_merged(state: JobState, merged: Merged) -> Iterator[Remark]:
    if state in TERMINAL_JOB_STATES:
        return
    data = merged.data()
    if merged.mode is MergeMode.IN_TURN and merged.leads:
        yield Remark(f"when it ends, {merged.whom()} goes on in its place, from what it has learned", data)
        return
    if merged.mode is MergeMode.IN_TURN:
        yield Remark(f"starts when {merged.whom()} ends, in its place, from what that has learned", data)
    whose = "its own or the other's" if merged.mode is MergeMode.TOGETHER else "its own"
    left = max(1, merged.most_epochs - merged.fruitless_epochs)
    epochs = "epoch" if left == 1 else "epochs"
    text = f"if {whose} validation does not improve in {left} more {epochs}, each is trained by itself"
    yield Remark(text, {**data, "fruitless_epochs": merged.fruitless_epochs})


def _next_of_waiting(facts: Facts) -> Iterator[Remark]:
    begin = f"goes on at step {facts.checkpoint_step}" if facts.checkpoint_step is not None else "starts"
    if facts.checkpoint_step is None and facts.job.state is JobState.WAITING:
        begin = "begins again at step 0"
    if facts.not_before_ms > facts.now_ms:
        yield Remark(
            f"is not started again before {duration(facts.not_before_ms - facts.now_ms)} from now",
            {"not_before_ms": facts.not_before_ms},
        )
    if facts.lent:
        yield _return(facts.lent[0], begin)
    elif facts.coming is not None:
        yield from _boot(facts, facts.coming, f"{begin} there")
    yield _next_decision(facts)
    yield from _end_of_wait(facts)


def _return(lent: Remark, begin: str) -> Remark:
    """Of a job whose GPUs are lent."""
    called = lent.data.get("called_ms") is not None
    when = "as soon as its GPUs are free" if called else "when its window is over, or its owner calls it back"
    return Remark(f"{begin} on its machine {when}", {"until_ms": lent.data.get("until_ms")})


def _end_of_wait(facts: Facts) -> Iterator[Remark]:
    """Of a job that has never had a place."""
    if facts.max_wait_ms is None or facts.job.state is not JobState.QUEUED:
        return
    ends_ms = facts.submitted_ms + facts.max_wait_ms
    whole, left_ms = duration(facts.max_wait_ms), ends_ms - facts.now_ms
    then = "the first place that is to be had and that its limits allow, whatever it costs"
    if left_ms > 0:
        text = f"in {duration(left_ms)}, when its max_wait of {whole} is over, it takes {then}"
    else:
        text = f"its max_wait of {whole} is over since {duration(-left_ms)}: it takes {then}"
    yield Remark(text, {"max_wait_ends_ms": ends_ms})


def _next_of_starting(facts: Facts) -> Iterator[Remark]:
    if facts.machine is not None and facts.machine.state in (NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN):
        yield from _boot(facts, facts.machine, "its code is started")
    else:
        yield Remark("its code is started as soon as the machine has prepared it")


def _boot(facts: Facts, machine: JobMachine, then: str) -> Iterator[Remark]:
    if machine.state is NodeState.READY:
        yield Remark(f"{then} with the next decision", machine.data())
        return
    left_ms = machine.expected_ready_ms - facts.now_ms
    when = f"expected in {duration(left_ms)}" if left_ms >= 0 else f"expected {duration(-left_ms)} ago"
    data = {**machine.data(), "expected_ready_ms": machine.expected_ready_ms}
    yield Remark(f"{then} when the machine is ready, {when}", data)
    give_up_ms = machine.startup_deadline_ms - facts.now_ms
    if give_up_ms > 0:
        text = f"if the machine has not called home in {duration(give_up_ms)}, it is given up and another is looked for"
        yield Remark(text, {"node_id": machine.node_id, "startup_deadline_ms": machine.startup_deadline_ms})


def _next_of_running(facts: Facts) -> Iterator[Remark]:
    if facts.moving is not None:
        yield from _next_of_moving(facts, facts.moving)
    if facts.finish is not None:
        yield _end(facts, facts.finish)
    yield from _serverless_budget(facts)
    yield from _limits(facts)


def _end(facts: Facts, finish: Finish) -> Remark:
    left, done = finish.left, duration(max(0, finish.at_ms - facts.now_ms))
    steps = f"{left.likely} steps left"
    if not left.exact:
        done += (
            " (" + " to ".join(duration(max(0, at_ms - facts.now_ms)) for at_ms in (left.first_ms, left.last_ms)) + ")"
        )
        steps += f" ({left.least} to {left.most})"
    text = f"is done in about {done}: {steps} at its present speed{_BY[finish.end.by]}"
    bounds = {"steps_left_least": left.least, "steps_left_most": left.most}
    times = {"estimated_finish_ms": finish.at_ms, "earliest_finish_ms": left.first_ms, "latest_finish_ms": left.last_ms}
    return Remark(text, {"steps_left": left.likely, **bounds, **times, "estimated_by": finish.end.by.value})


def _next_of_moving(facts: Facts, moving: Moving) -> Iterator[Remark]:
    there = moving.machine.words()
    data = {**moving.machine.data(), "move_state": moving.state.value}
    lasting = duration(max(0, facts.now_ms - moving.begun_ms))
    if moving.state is MoveState.PREPARING:
        yield Remark(f"{there} prepares since {lasting} while it trains on; then it saves and goes on there", data)
        left_ms = moving.begun_ms + facts.move_timeout_ms - facts.now_ms
        if left_ms > 0:
            yield Remark(f"if that machine is not prepared in {duration(left_ms)}, it stays where it is", data)
    elif moving.state is MoveState.SAVING:
        asked = duration(max(0, facts.now_ms - (moving.saving_ms or facts.now_ms)))
        yield Remark(
            f"was asked for its final checkpoint {asked} ago; with it, it goes on on {there}, which waits", data
        )
    else:
        yield Remark(f"{there} loads the final checkpoint: goes on at step {moving.step} there", data)


def _serverless_budget(facts: Facts) -> Iterator[Remark]:
    """Only where that is what decides: other policies weigh each job by its own, and no moment can be foretold."""
    decided = facts.decided
    if facts.moving is not None or facts.stays or decided is None or not _moves_by_budget(decided.policy):
        return
    budget_ms = decided.budget_ms
    on_serverless = facts.machine is not None and facts.machine.tier is Tier.SERVERLESS
    if budget_ms is None or facts.running_ms is None or not on_serverless:
        return
    used_ms = facts.serverless_used_ms + max(0, facts.now_ms - facts.running_ms)
    left_ms = budget_ms - used_ms
    spent = f"has run on serverless for {duration(used_ms)} of at most {duration(budget_ms)}"
    data: dict[str, object] = {"serverless_used_ms": used_ms, "serverless_budget_ms": budget_ms}
    if left_ms <= 0 and decided.at_ms >= facts.now_ms + left_ms:  # decided on since then, and it is still here
        yield Remark(f"{spent}: it moves once a rented node can hold it", data)
        return
    then = f"in {duration(left_ms)} it moves" if left_ms > 0 else "it moves with the next decision"
    data["moves_at_ms"] = facts.now_ms + max(0, left_ms)
    yield Remark(f"{spent}: {then} to a rented node if one can hold it", data)


def _moves_by_budget(policy: str) -> bool:
    """False for a policy that this release does not know."""
    return policy in policy_names() and policy_named(policy).moves_by_budget


def _limits(facts: Facts) -> Iterator[Remark]:
    job = facts.job
    if job.max_cost is not None:
        left = job.max_cost - job.spent
        data = {"spent_micros": job.spent.micros, "max_cost_micros": job.max_cost.micros}
        when = ""
        if facts.machine is not None and facts.machine.price_per_hour.micros and left.micros > 0:
            ms = left.micros * MS_PER_HOUR // facts.machine.price_per_hour.micros
            when = f", in about {duration(ms)} at the present price"
        yield Remark(f"is paused when it has cost {job.max_cost}; it has cost {job.spent}{when}", data)
    if job.max_duration_ms is not None and job.first_running_ms is not None:
        ends_ms = job.first_running_ms + job.max_duration_ms
        left_ms = max(0, ends_ms - facts.now_ms)
        whole = duration(job.max_duration_ms)
        text = f"saves and is cancelled in {duration(left_ms)}, when its max_duration of {whole} is over"
        yield Remark(text, {"max_duration_ends_ms": ends_ms})


def _next_of_saving(facts: Facts) -> Iterator[Remark]:
    if facts.job.over_duration(facts.now_ms):
        then = "is cancelled, as its max_duration is over"
    elif facts.job.pause_reason is not None:
        then = "is paused"
    else:
        kept = facts.saves or facts.checkpoint_step is not None
        then = f"{'goes on from there' if kept else 'begins again at step 0'} as soon as it has a place"
    how = "saved and left" if facts.saves else "left"
    yield Remark(f"once it has {how}, it {then}", {"pause_reason": facts.job.pause_reason})
    if facts.stopping is not None:
        left_ms = facts.stopping.at_ms + facts.grace_ms - facts.now_ms
        if left_ms > 0:
            text = f"if it has not left in about {duration(left_ms)}, its process is killed; what it saved is kept"
            yield Remark(text, {"stop_grace_ms": facts.grace_ms})


def _next_of_paused(facts: Facts) -> Remark:
    refusal = refuse_resume(facts.job, facts.now_ms)
    if refusal is not None:
        return Remark(refusal.message, {"param": refusal.param})
    where = "from its beginning" if facts.checkpoint_step is None else f"at step {facts.checkpoint_step}"
    return Remark(f"goes on {where} when it is resumed", {"checkpoint_step": facts.checkpoint_step})


def _next_decision(facts: Facts) -> Remark:
    every = f"decisions are made whenever something changes, and at least every {duration(facts.tick_ms)}"
    if facts.decided is None:
        return Remark(f"{every}; none is on record yet", {"tick_ms": facts.tick_ms})
    ago = duration(max(0, facts.now_ms - facts.decided.at_ms))
    return Remark(f"{every}; the newest on record was {ago} ago", {"tick_ms": facts.tick_ms, **decision_data(facts)})
