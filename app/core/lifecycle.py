"""The one transition table per noun, and what an ended run means for its job.

Nothing changes a state around these tables: the database layer builds its guarded updates from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from app.core.model.job import PLACEABLE_JOB_STATES, JobEnd, JobState
from app.core.model.move import MoveState
from app.core.model.node import NodeState
from app.core.model.run import FAULT_ENDS, RunEnd, RunState
from app.errors import InvariantBroken

_State = TypeVar("_State", bound=StrEnum)

JOB_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.PAUSED, JobState.FAILED, JobState.CANCELLED}),
    JobState.STARTING: frozenset(
        {
            JobState.RUNNING,
            JobState.QUEUED,  # the machine never came up and nothing ran yet
            JobState.WAITING,
            JobState.SUCCEEDED,  # finished before the report that it had started arrived
            JobState.FAILED,
            JobState.PAUSED,
            JobState.CANCELLED,
        }
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.CHECKPOINTING,
            JobState.WAITING,  # its machine or process died
            JobState.PAUSED,  # between two machines: nothing runs that could save
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.CHECKPOINTING: frozenset(
        {JobState.WAITING, JobState.PAUSED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.WAITING: frozenset({JobState.STARTING, JobState.PAUSED, JobState.FAILED, JobState.CANCELLED}),
    JobState.PAUSED: frozenset({JobState.QUEUED, JobState.WAITING, JobState.FAILED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.ASSIGNED: frozenset({RunState.STARTING, RunState.RUNNING, RunState.STOPPING, RunState.ENDED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.STOPPING, RunState.ENDED}),
    RunState.RUNNING: frozenset({RunState.STOPPING, RunState.ENDED}),
    RunState.STOPPING: frozenset({RunState.ENDED}),
    RunState.STANDBY: frozenset({RunState.PROMOTING, RunState.ENDED}),
    RunState.PROMOTING: frozenset({RunState.RUNNING, RunState.ENDED}),
    RunState.ENDED: frozenset(),
}

NODE_TRANSITIONS: Mapping[NodeState, frozenset[NodeState]] = {
    NodeState.REQUESTED: frozenset(
        {NodeState.BOOTING, NodeState.READY, NodeState.UNKNOWN, NodeState.FAILED, NodeState.TERMINATING}
    ),
    NodeState.UNKNOWN: frozenset({NodeState.BOOTING, NodeState.READY, NodeState.FAILED, NodeState.TERMINATING}),
    NodeState.BOOTING: frozenset({NodeState.READY, NodeState.FAILED, NodeState.TERMINATING}),
    NodeState.READY: frozenset({NodeState.DRAINING, NodeState.UNREACHABLE, NodeState.TERMINATING, NodeState.FAILED}),
    NodeState.UNREACHABLE: frozenset({NodeState.READY, NodeState.TERMINATING, NodeState.FAILED}),
    NodeState.DRAINING: frozenset({NodeState.TERMINATING, NodeState.FAILED}),
    NodeState.TERMINATING: frozenset({NodeState.TERMINATED}),
    NodeState.TERMINATED: frozenset(),
    NodeState.FAILED: frozenset({NodeState.TERMINATING}),  # the provider still lists it: end it properly
}


MOVE_TRANSITIONS: Mapping[MoveState, frozenset[MoveState]] = {
    MoveState.PREPARING: frozenset({MoveState.SAVING, MoveState.ABANDONED}),
    MoveState.SAVING: frozenset({MoveState.PROMOTING, MoveState.ABANDONED}),
    MoveState.PROMOTING: frozenset({MoveState.DONE, MoveState.ABANDONED}),
    MoveState.DONE: frozenset(),
    MoveState.ABANDONED: frozenset(),
}


def pass_over(table: Mapping[_State, frozenset[_State]], state: _State, target: _State) -> _State:
    """`target`, where it may follow `state`. For whoever keeps states himself; the database has guarded updates.

    Raises InvariantBroken for an arrow that the table does not have.
    """
    if target not in table[state]:
        raise InvariantBroken(f"{state!r} cannot become {target!r}")
    return target


def job_sources(target: JobState) -> frozenset[JobState]:
    """The states from which a job may enter `target`."""
    return frozenset(state for state, targets in JOB_TRANSITIONS.items() if target in targets)


def run_sources(target: RunState) -> frozenset[RunState]:
    """The states from which a run may enter `target`."""
    return frozenset(state for state, targets in RUN_TRANSITIONS.items() if target in targets)


def node_sources(target: NodeState) -> frozenset[NodeState]:
    """The states from which a node may enter `target`."""
    return frozenset(state for state, targets in NODE_TRANSITIONS.items() if target in targets)


def move_sources(target: MoveState) -> frozenset[MoveState]:
    """The states from which a move may enter `target`."""
    return frozenset(state for state, targets in MOVE_TRANSITIONS.items() if target in targets)


_STRANDED = "could not begin again where it was: it goes on from its newest stored checkpoint"


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a user process ended, as its agent saw it.

    `environment_error`: the process was never started because its environment could not be prepared;
    `machine_fault`: because of the machine (its disk is full), not of what was to be prepared.
    `signal`: the signal that killed it, or None. Neither code nor signal: it is gone and nobody saw how.
    `saved_after_stop`: a checkpoint was written after the request to stop. `stranded`: it was begun again where it was,
    with other GPUs, and could not go on from what lay there.
    """

    exit_code: int | None = None
    signal: int | None = None
    environment_error: str | None = None
    machine_fault: bool = False
    saved_after_stop: bool = False
    stranded: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an ended run means: why the run ended, and the job's next state (`job_end` when that is final).

    `fault` says whether this uses up the job's fault budget. A `job_state` of WAITING means that the job goes on
    from its newest checkpoint. `saved`: one was written after the request to stop. `interrupted`: its machine was bid
    for, and went to somebody who pays more.
    """

    run_end: RunEnd
    job_state: JobState
    job_end: JobEnd | None
    fault: bool
    message: str
    saved: bool = False
    interrupted: bool = False


def judge_exit(exit_: ProcessExit, *, asked_to_checkpoint: bool, faults: int, fault_budget: int) -> Outcome:
    """Decide what a process exit means for its run and job.

    Exit code 0 means done, except after a request to stop when a checkpoint was written since: then the
    process may merely have left early (a Hugging Face script returns 0 after an early stop), so the job goes
    on from that checkpoint. A job that really was done finishes at once when it is resumed; the other way
    round, an early exit taken for success, would lose the user's work.
    """
    if exit_.environment_error is not None and exit_.machine_fault:
        message = exit_.environment_error
        return after_fault(message, RunEnd.FAILED, JobEnd.ENVIRONMENT_FAILED, faults=faults, fault_budget=fault_budget)
    if exit_.environment_error is not None:
        return Outcome(RunEnd.FAILED, JobState.FAILED, JobEnd.ENVIRONMENT_FAILED, False, exit_.environment_error)
    if exit_.exit_code == 0 and not (asked_to_checkpoint and exit_.saved_after_stop):
        return Outcome(RunEnd.FINISHED, JobState.SUCCEEDED, JobEnd.FINISHED, False, "exit code 0")
    if asked_to_checkpoint or exit_.stranded:
        how = "saved and left" if exit_.saved_after_stop else "left without a new checkpoint"
        message = _STRANDED if exit_.stranded else f"{how} when asked to stop"
        end = RunEnd.UNSAVED if exit_.stranded and not exit_.saved_after_stop else RunEnd.DEMOTED
        return Outcome(end, JobState.WAITING, None, False, message, saved=exit_.saved_after_stop)
    if exit_.signal is not None or exit_.exit_code is None:
        how = "vanished" if exit_.signal is None else f"was killed by signal {exit_.signal}"
        return after_fault(
            f"the process {how}",
            RunEnd.FAILED,
            JobEnd.PROCESS_KILLED,
            faults=faults,
            fault_budget=fault_budget,
        )
    return Outcome(RunEnd.FAILED, JobState.FAILED, JobEnd.USER_CODE_FAILED, False, f"exit code {exit_.exit_code}")


def without_saving(outcome: Outcome, lost: str) -> Outcome:
    """The same end of a run that was asked to save and leave and did not save: it is no orderly one."""
    return replace(outcome, run_end=RunEnd.UNSAVED, message=f"{outcome.message}; {lost}")


def of_profile(outcome: Outcome) -> Outcome:
    """What the end of a profile run means: the job, which has lost nothing by it, goes back to the queue. Only what its
    owner asked for, or what its own limits say, is as for any run."""
    if outcome.run_end in FAULT_ENDS | {RunEnd.FINISHED} or outcome.job_state in PLACEABLE_JOB_STATES:
        return replace(outcome, job_state=JobState.WAITING, job_end=None, fault=False)
    return replace(outcome, fault=False)


def after_fault(message: str, run_end: RunEnd, job_end: JobEnd, *, faults: int, fault_budget: int) -> Outcome:
    """A fault that was not the user's doing: go on from the newest checkpoint while the budget lasts."""
    if faults < fault_budget:
        return Outcome(run_end, JobState.WAITING, None, True, f"{message} (fault {faults + 1} of {fault_budget})")
    return Outcome(
        run_end, JobState.FAILED, job_end, True, f"{message}; the budget of {fault_budget} faults is used up"
    )
