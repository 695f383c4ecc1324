"""Words of a newer release, in rows that outlive releases.

After a rollback, and while replicas are replaced one by one, a process meets states and choices that only a newer
release knows. Each is read as the word here that harms least; ADR 0038 has the reasons. Words that are missing here
(of moves, merges and operations) have no such reading: a release that writes a new one comes after one that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from app.core.model.checkpoint import CheckpointState
from app.core.model.image import ImageState
from app.core.model.job import JobKind, JobState, PauseReason, PriorityClass, StartRule
from app.core.model.node import BillingStart, NodeState, Tier
from app.core.model.run import RunPurpose, RunState, StopMode
from app.errors import InvalidInput

E = TypeVar("E", bound=Enum)

READ_AS: Mapping[type[Enum], Enum] = {
    # It costs money until its end is confirmed. Given no run; ready as soon as its agent calls, lost when it does not.
    NodeState: NodeState.UNREACHABLE,
    RunState: RunState.RUNNING,  # its agent goes on, and tells how it ends
    JobState: JobState.PAUSED,  # nothing new is begun for it; its owner may resume or cancel it
    PauseReason: PauseReason.USER,
    StopMode: StopMode.CHECKPOINT,  # it saves and leaves
    RunPurpose: RunPurpose.TRAIN,  # what every release knows
    Tier: Tier.CONVENTIONAL,  # ends when we end it; offers of unknown tiers are left out
    BillingStart: BillingStart.REQUEST,  # rather too much, until the provider's own figure closes the meter
    CheckpointState: CheckpointState.ABORTED,  # never resumed from
    JobKind: JobKind.BATCH,
    PriorityClass: PriorityClass.GUARANTEED,
    StartRule: StartRule.AUTO,
    ImageState: ImageState.WANTED,  # it is built, or found to be there
}

# What may become of a row in a state of a newer release: whatever ends it or takes it over, and nothing that begins.
AFTER_FOREIGN: Mapping[type[Enum], frozenset[Enum]] = {
    JobState: frozenset(JobState) - {JobState.STARTING},
    RunState: frozenset({RunState.RUNNING, RunState.STOPPING, RunState.ENDED}),
    NodeState: frozenset({NodeState.READY, NodeState.TERMINATING, NodeState.FAILED}),
}


def read_as(kind: type[E], word: Any) -> E:
    """The member of `kind` that a durable word stands for. Raises InvalidInput for a foreign one without a reading."""
    try:
        return kind(word)
    except ValueError:
        reading = READ_AS.get(kind)
        if not isinstance(reading, kind) or not isinstance(word, str):
            accepted = ", ".join(str(member.value) for member in kind)
            raise InvalidInput(f"{word!r:.80} is not one of: {accepted}") from None
        return reading
