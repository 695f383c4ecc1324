"""State machines: no dead arrows, no way around the ends, and what a process exit means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import pytest

from app.core.lifecycle import (
    JOB_TRANSITIONS,
    NODE_TRANSITIONS,
    RUN_TRANSITIONS,
    Outcome,
    ProcessExit,
    after_fault,
    job_sources,
    judge_exit,
    node_sources,
    run_sources,
)
from app.core.model.job import PLACEABLE_JOB_STATES, TERMINAL_JOB_STATES, JobEnd, JobState
from app.core.model.node import GONE_NODE_STATES, NodeState
from app.core.model.run import LIVE_RUN_STATES, RunEnd, RunState

S = TypeVar("S")
TABLES = [
    (JobState, JOB_TRANSITIONS, {JobState.QUEUED}, job_sources),
    (RunState, RUN_TRANSITIONS, {RunState.ASSIGNED, RunState.STANDBY}, run_sources),
    (NodeState, NODE_TRANSITIONS, {NodeState.REQUESTED}, node_sources),
]


def reachable(table: Mapping[S, frozenset[S]], start: set[S]) -> set[S]:
    found, fresh = set(start), set(start)
    while fresh:
        fresh = {target for state in fresh for target in table[state]} - found
        found |= fresh
    return found


@pytest.mark.parametrize(("states", "table", "starts", "sources"), TABLES)
def test_every_state_is_in_the_table_and_can_be_entered(states, table, starts, sources) -> None:
    """Each state has its row, and can be reached from where such a thing begins: no arrow is dead."""
    assert set(table) == set(states)
    assert reachable(table, starts) == set(states)


@pytest.mark.parametrize(("states", "table", "starts", "sources"), TABLES)
def test_sources_are_the_table_read_backwards(states, table, starts, sources) -> None:
    """`*_sources(x)` names exactly the states with an arrow to x, and no state has an arrow to itself."""
    for target in states:
        assert sources(target) == {state for state in states if target in table[state]}
        assert target not in table[target]


@pytest.mark.parametrize(("states", "table", "starts", "sources"), TABLES)
def test_every_story_can_end(states, table, starts, sources) -> None:
    """From every state some final state can be reached."""
    finals = {state for state in states if not table[state]}
    assert finals
    assert all(reachable(table, {state}) & finals for state in states)


def test_final_states_have_no_exit() -> None:
    """A job or run that is over, and a terminated node, never come back."""
    assert {state for state in JobState if not JOB_TRANSITIONS[state]} == TERMINAL_JOB_STATES
    assert {state for state in RunState if not RUN_TRANSITIONS[state]} == set(RunState) - LIVE_RUN_STATES
    assert {state for state in NodeState if not NODE_TRANSITIONS[state]} == {NodeState.TERMINATED}


def test_failed_node_may_only_be_ended() -> None:
    """A failed node that its provider still lists is ended properly, and takes up no work again."""
    assert {NodeState.TERMINATED, NodeState.FAILED} == GONE_NODE_STATES
    assert NODE_TRANSITIONS[NodeState.FAILED] == {NodeState.TERMINATING}


@pytest.mark.parametrize("state", sorted(set(JobState) - TERMINAL_JOB_STATES))
def test_every_unfinished_job_can_be_cancelled_and_can_fail(state: JobState) -> None:
    """In no state is a job out of its user's hands, and none is a dead end when its code or budget gives out."""
    assert {JobState.CANCELLED, JobState.FAILED} <= JOB_TRANSITIONS[state]


@pytest.mark.parametrize("state", sorted(LIVE_RUN_STATES))
def test_every_live_run_can_end(state: RunState) -> None:
    """A machine can die at any time, so every live run can end at once."""
    assert RunState.ENDED in RUN_TRANSITIONS[state]


@pytest.mark.parametrize("state", sorted(set(NodeState) - GONE_NODE_STATES - {NodeState.TERMINATING}))
def test_every_node_we_may_pay_for_can_be_ended(state: NodeState) -> None:
    """No state of a node keeps us from ending its rent."""
    assert NodeState.TERMINATING in NODE_TRANSITIONS[state]


def test_only_placeable_jobs_start() -> None:
    """A job starts from `queued` or `waiting` and from nowhere else: a paused one is resumed first."""
    assert job_sources(JobState.STARTING) == PLACEABLE_JOB_STATES
    assert job_sources(JobState.CHECKPOINTING) == {JobState.RUNNING}


def test_a_node_is_ready_only_once_it_exists() -> None:
    """A node is never made ready again once it drains or ends."""
    leaving = {NodeState.DRAINING, NodeState.TERMINATING, NodeState.TERMINATED, NodeState.FAILED}
    assert not node_sources(NodeState.READY) & leaving
    assert not reachable(NODE_TRANSITIONS, leaving) & {NodeState.READY, NodeState.BOOTING}


WAITS, OVER = JobState.WAITING, JobState.FAILED


@pytest.mark.parametrize(
    ("exit_", "asked", "expected"),
    [
        (ProcessExit(0), False, (RunEnd.FINISHED, JobState.SUCCEEDED, JobEnd.FINISHED, False)),
        (ProcessExit(0, saved_after_stop=True), False, (RunEnd.FINISHED, JobState.SUCCEEDED, JobEnd.FINISHED, False)),
        (ProcessExit(0), True, (RunEnd.FINISHED, JobState.SUCCEEDED, JobEnd.FINISHED, False)),
        (ProcessExit(0, saved_after_stop=True), True, (RunEnd.DEMOTED, WAITS, None, False)),
        (ProcessExit(1), False, (RunEnd.FAILED, OVER, JobEnd.USER_CODE_FAILED, False)),
        (ProcessExit(1), True, (RunEnd.DEMOTED, WAITS, None, False)),
        (ProcessExit(143, saved_after_stop=True), True, (RunEnd.DEMOTED, WAITS, None, False)),
        (ProcessExit(signal=9), False, (RunEnd.FAILED, WAITS, None, True)),
        (ProcessExit(signal=9), True, (RunEnd.DEMOTED, WAITS, None, False)),
        (ProcessExit(), False, (RunEnd.FAILED, WAITS, None, True)),
        (ProcessExit(), True, (RunEnd.DEMOTED, WAITS, None, False)),
        (ProcessExit(environment_error="no torch"), False, (RunEnd.FAILED, OVER, JobEnd.ENVIRONMENT_FAILED, False)),
        (
            ProcessExit(environment_error="disk full", machine_fault=True),
            False,
            (RunEnd.FAILED, JobState.WAITING, None, True),
        ),
        (ProcessExit(signal=15, stranded=True), False, (RunEnd.UNSAVED, WAITS, None, False)),
        (ProcessExit(signal=15, saved_after_stop=True, stranded=True), True, (RunEnd.DEMOTED, WAITS, None, False)),
        (ProcessExit(environment_error="no torch"), True, (RunEnd.FAILED, OVER, JobEnd.ENVIRONMENT_FAILED, False)),
    ],
)
def test_what_an_exit_means(exit_: ProcessExit, asked: bool, expected: tuple[object, ...]) -> None:
    """Each way in which a process can end means one thing for its run and job, asked to stop or not."""
    outcome = judge_exit(exit_, asked_to_checkpoint=asked, faults=0, fault_budget=3)
    assert (outcome.run_end, outcome.job_state, outcome.job_end, outcome.fault) == expected
    assert outcome.message


@pytest.mark.parametrize("exit_", [ProcessExit(signal=9), ProcessExit()])
def test_faults_use_up_the_budget(exit_: ProcessExit) -> None:
    """A process killed or vanished goes on while faults are left, then the job fails as killed, not as the user's."""
    outcomes = [judge_exit(exit_, asked_to_checkpoint=False, faults=n, fault_budget=2) for n in range(3)]
    assert [outcome.job_state for outcome in outcomes] == [WAITS, WAITS, OVER]
    assert outcomes[-1].job_end is JobEnd.PROCESS_KILLED
    assert all(outcome.fault for outcome in outcomes)


def test_fault_messages_count() -> None:
    """A fault's message says which one of how many it was, and the last that the budget is used up."""
    first = after_fault("the node is gone", RunEnd.NODE_LOST, JobEnd.NODE_LOST, faults=0, fault_budget=1)
    last = after_fault("the node is gone", RunEnd.NODE_LOST, JobEnd.NODE_LOST, faults=1, fault_budget=1)
    assert first == Outcome(RunEnd.NODE_LOST, WAITS, None, True, "the node is gone (fault 1 of 1)")
    assert last.job_end is JobEnd.NODE_LOST
    assert "budget of 1 faults is used up" in last.message


def test_messages_name_what_was_seen() -> None:
    """The message carries the exit code, the signal or the environment's own error."""

    def message(exit_: ProcessExit) -> str:
        return judge_exit(exit_, asked_to_checkpoint=False, faults=0, fault_budget=1).message

    assert message(ProcessExit(3)) == "exit code 3"
    assert "signal 11" in message(ProcessExit(signal=11))
    assert "vanished" in message(ProcessExit())
    assert message(ProcessExit(environment_error="pip: no such package")) == "pip: no such package"


@pytest.mark.parametrize("asked", [False, True])
def test_an_outcome_is_a_way_out_of_every_state_it_can_meet(asked: bool) -> None:
    """Whatever an exit means, the job's table has that arrow from the states in which a process can end."""
    exits = [ProcessExit(0), ProcessExit(0, saved_after_stop=True), ProcessExit(1), ProcessExit(signal=9)]
    exits += [ProcessExit(), ProcessExit(environment_error="x")]
    states = {JobState.CHECKPOINTING} if asked else {JobState.STARTING, JobState.RUNNING}
    for exit_ in exits:
        for faults in (0, 5):
            outcome = judge_exit(exit_, asked_to_checkpoint=asked, faults=faults, fault_budget=3)
            assert all(outcome.job_state in JOB_TRANSITIONS[state] for state in states)
