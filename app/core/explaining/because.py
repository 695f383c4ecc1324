"""The reasons for the present, from the nearest to the furthest."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.explaining.facts import Facts, JobMachine, Remark, decision_data
from app.core.model.job import PLACEABLE_JOB_STATES, TERMINAL_JOB_STATES, JobState
from app.core.model.node import NodeState
from app.core.model.run import RunState
from app.core.model.transfer import Transfer, TransferKind
from app.core.policies.reasons import duration, gpus
from app.core.saving import why_not_movable


def because_of(facts: Facts) -> Iterator[Remark]:
    """Nothing for a job whose rows tell no reason."""
    state = facts.job.state
    if state not in TERMINAL_JOB_STATES:
        yield from _merge(facts)
        yield from facts.resized
        yield from facts.lent
        yield from facts.reserved
        yield from facts.queued
    if state in TERMINAL_JOB_STATES:
        if facts.end_message:
            yield Remark(facts.end_message)
    elif state is JobState.PAUSED:
        if facts.wait_reason:
            yield Remark(facts.wait_reason, {"pause_reason": facts.job.pause_reason})
        yield from _left(facts)
    elif state in PLACEABLE_JOB_STATES:
        yield from _why_waiting(facts)
    else:
        yield from _why_here(facts)
    if facts.freed is not None:
        ago = duration(max(0, facts.now_ms - facts.freed.at_ms))
        yield Remark(f"{ago} ago: {facts.freed.text}", {"freed_ms": facts.freed.at_ms, **facts.freed.data})
    if facts.retried is not None:
        ago = duration(max(0, facts.now_ms - facts.retried.at_ms))
        yield Remark(f"{ago} ago it {facts.retried.text}", {"retried_ms": facts.retried.at_ms, **facts.retried.data})


def _merge(facts: Facts) -> Iterator[Remark]:
    """With whom it is trained as one, or why it no longer is."""
    if facts.merged is not None:
        yield Remark(facts.merged.reason, facts.merged.data())
    elif facts.split is not None:
        ago = duration(max(0, facts.now_ms - facts.split.at_ms))
        yield Remark(f"{facts.split.text} (since {ago})", {"split_ms": facts.split.at_ms, **facts.split.data})
    elif facts.learned is not None:
        yield Remark(facts.learned.text, {"learned_ms": facts.learned.at_ms, **facts.learned.data})


def _why_waiting(facts: Facts) -> Iterator[Remark]:
    if facts.wait_reason:
        yield Remark(facts.wait_reason, decision_data(facts))
    elif facts.decided is None or (facts.since_ms is not None and facts.decided.at_ms < facts.since_ms):
        yield Remark("no decision has been recorded since; the next one looks at it", decision_data(facts))
    if facts.earlier_waiting:
        jobs = "1 job" if facts.earlier_waiting == 1 else f"{facts.earlier_waiting} jobs"
        what = "waits too, and comes first" if facts.earlier_waiting == 1 else "wait too, and come first"
        which = "guaranteed or due earlier" if facts.is_spot else "with an earlier deadline"
        text = f"{jobs} of the project {which} {what}"
        yield Remark(text, {"earlier_waiting": facts.earlier_waiting})
    if facts.coming is not None:
        ago = duration(max(0, facts.now_ms - facts.coming.requested_ms))
        text = f"{facts.coming.words()} was rented for it {ago} ago and is {facts.coming.state}"
        yield Remark(text, {**facts.coming.data(), "requested_ms": facts.coming.requested_ms})
        yield from _cut(facts)
    yield from _left(facts)


def _why_here(facts: Facts) -> Iterator[Remark]:
    if facts.job.state is JobState.CHECKPOINTING and facts.stopping is not None:
        yield Remark(facts.stopping.text, {"asked_ms": facts.stopping.at_ms, **facts.stopping.data})
    if facts.moving is not None:
        data = {"begun_ms": facts.moving.begun_ms, "move_state": facts.moving.state.value}
        yield Remark(facts.moving.reason, {**data, **facts.moving.machine.data()})
    if facts.transfer is not None:
        yield _transferring(facts, facts.transfer)
    if facts.unsaved is not None:
        yield _unsaved(facts, facts.unsaved)
    not_movable = why_not_movable(saves=facts.saves, checkpoint_step=facts.checkpoint_step)
    if not_movable is not None and facts.running_ms is not None:
        yield Remark(f"not movable: {not_movable}", {"saves": False, "checkpoint_step": None})
    if facts.placed is not None:
        yield Remark(facts.placed.text, {"decided_ms": facts.placed.at_ms, **facts.placed.data})
    yield from _cut(facts)
    yield from facts.spread
    if facts.job.state is JobState.STARTING and facts.machine is not None:
        yield _preparing(facts, facts.machine)
    if facts.wait_reason:
        yield Remark(facts.wait_reason, decision_data(facts))
    yield from _left(facts)


def _cut(facts: Facts) -> Iterator[Remark]:
    if facts.cut is not None:
        yield Remark(
            f"its machine was cut from a host: {facts.cut.text}", {"cut_ms": facts.cut.at_ms, **facts.cut.data}
        )


_KINDS = {
    TransferKind.READ: "the machine reads the checkpoint that it will send",
    TransferKind.SEND: "a checkpoint is on its way to the store",
    TransferKind.FETCH: "the checkpoint to begin with is being fetched",
}


def _transferring(facts: Facts, transfer: Transfer) -> Remark:
    rate, left_ms = transfer.bytes_per_s(), transfer.left_ms(facts.now_ms)
    speed = "" if rate is None else f", {_gigabytes(rate, 'MB', 10**6)}/s"
    left = "" if left_ms is None else f", about {duration(left_ms)} left"
    done, total = _gigabytes(transfer.done_bytes), _gigabytes(transfer.total_bytes)
    data = {
        "transfer": transfer.kind.value,
        "done_bytes": transfer.done_bytes,
        "total_bytes": transfer.total_bytes,
        "bytes_per_s": rate,
        "left_ms": left_ms,
    }
    return Remark(f"{_KINDS[transfer.kind]}: {done} of {total}{speed}{left}", data)


def _gigabytes(count: int, unit: str = "GB", size: int = 10**9) -> str:
    return f"{count / size:,.1f} {unit}"


def _unsaved(facts: Facts, why: str) -> Remark:
    since = "it began" if facts.checkpoint_step is None else f"the checkpoint of step {facts.checkpoint_step}"
    text = f"its checkpoints are not kept, so no plan moves it; what it has done since {since} would be lost: {why}"
    return Remark(text, {"checkpoint_step": facts.checkpoint_step, "why": why})


def _preparing(facts: Facts, machine: JobMachine) -> Remark:
    if facts.run_state is RunState.STARTING:
        return Remark("the machine prepares its code, environment and checkpoint", machine.data())
    if machine.state is NodeState.READY:
        return Remark("the machine is ready and has not taken it up yet", machine.data())
    ago = duration(max(0, facts.now_ms - machine.requested_ms))
    return Remark(f"the machine was requested {ago} ago and is {machine.state}", machine.data())


def _left(facts: Facts) -> Iterator[Remark]:
    """Where it was before, and why it is there no more."""
    stay = facts.last_stay
    if stay is None:
        return
    ago = duration(max(0, facts.now_ms - stay.ended_ms))
    ran = (
        "before its code ran"
        if stay.running_ms is None
        else f"after {duration(max(0, stay.ended_ms - stay.running_ms))} of running"
    )
    kept = "" if facts.checkpoint_step is None else f"; its newest checkpoint is of step {facts.checkpoint_step}"
    yield Remark(
        f"it left {stay.machine.provider} {gpus(stay.machine.gpu_count, stay.machine.gpu_type)} {ago} ago {ran}, "
        f"{stay.end_reason}: {stay.end_message}{kept}",
        {
            "run_id": stay.run_id,
            "node_id": stay.machine.node_id,
            "ended_ms": stay.ended_ms,
            "end_reason": stay.end_reason,
            "checkpoint_step": facts.checkpoint_step,
        },
    )
