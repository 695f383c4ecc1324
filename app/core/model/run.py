"""A run: one execution of one or more jobs on one or more allocations."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    ASSIGNED = "assigned"  # decided; the agent has not taken it up
    STARTING = "starting"  # the agent prepares code, environment and checkpoint
    RUNNING = "running"
    STOPPING = "stopping"  # asked to stop, see StopMode
    STANDBY = "standby"  # target of a move: prepared, not yet allowed to train
    PROMOTING = "promoting"
    ENDED = "ended"


class RunPurpose(StrEnum):
    """What a run is for."""

    TRAIN = "train"
    PROFILE = "profile"  # a short look at the job's data, which tells whom it helps; the job itself gets no further


LIVE_RUN_STATES = frozenset(RunState) - {RunState.ENDED}
PREPARED_RUN_STATES = frozenset({RunState.STANDBY, RunState.PROMOTING})  # the second run of a move


class StopMode(StrEnum):
    """What a stopping run was asked to do. The agent reads it as its instruction."""

    CHECKPOINT = "checkpoint"  # save at the next step boundary, then exit
    KILL = "kill"  # exit now; nothing more is wanted


class RunEnd(StrEnum):
    FINISHED = "finished"
    FAILED = "failed"
    DEMOTED = "demoted"
    PREEMPTED = "preempted"
    MIGRATED = "migrated"
    MERGED = "merged"
    SPLIT = "split"
    NODE_LOST = "node_lost"
    CANCELLED = "cancelled"
    CAPPED = "capped"
    PAUSED = "paused"  # asked to save and leave, so that its job can be paused
    UNSAVED = "unsaved"  # asked to save and leave, and left without what it had done since its last checkpoint


# A run that was asked to save and leave, and did.
ORDERLY_ENDS = frozenset({RunEnd.DEMOTED, RunEnd.MIGRATED, RunEnd.PAUSED, RunEnd.CAPPED})
# Planned moves never use up the fault budget of a job.
FAULT_ENDS = frozenset({RunEnd.NODE_LOST, RunEnd.FAILED})
