"""Words of a newer release: each has a reading here, and rows in such states can be ended."""

from __future__ import annotations

import importlib
import pkgutil
from enum import StrEnum

import pytest

import app.core.model
from app.core.foreign import AFTER_FOREIGN, READ_AS, read_as
from app.core.lifecycle import JOB_TRANSITIONS, NODE_TRANSITIONS, RUN_TRANSITIONS
from app.core.model.budget import Period
from app.core.model.finding import Verdict
from app.core.model.health import Chore, PartKind
from app.core.model.job import TERMINAL_JOB_STATES, JobEnd, JobState
from app.core.model.merge import MergeMode, MergeState
from app.core.model.move import MoveState
from app.core.model.node import GONE_NODE_STATES, NodeState
from app.core.model.plan import ActionKind
from app.core.model.price_list import PriceSource
from app.core.model.run import RunEnd, RunState
from app.core.model.transfer import TransferKind
from app.errors import InvalidInput

# What is only told (ends, the health of parts), what is only recorded (actions), and what is looked for by the words
# that are known. A budget of a period that is not known holds nothing, and is told. Verdicts and sources of prices
# are in no row.
_NO_READING = {ActionKind, Chore, JobEnd, MergeMode, MergeState, MoveState, PartKind, Period, RunEnd, TransferKind}
_NO_READING |= {PriceSource, Verdict}


def _words() -> set[type[StrEnum]]:
    names = [f"app.core.model.{one.name}" for one in pkgutil.iter_modules(app.core.model.__path__)]
    modules = [importlib.import_module(name) for name in names]
    found = [value for module in modules for value in vars(module).values()]
    return {one for one in found if isinstance(one, type) and issubclass(one, StrEnum) and one is not StrEnum}


def test_every_kind_of_word_has_a_reading_or_a_reason() -> None:
    """Whoever adds an enumeration that rows hold says what a foreign word of it is read as."""
    assert _words() == set(READ_AS) | _NO_READING
    assert set(READ_AS).isdisjoint(_NO_READING)


@pytest.mark.parametrize("kind", sorted(READ_AS, key=str))
def test_a_known_word_is_itself_and_a_foreign_one_its_reading(kind: type[StrEnum]) -> None:
    """Only words are read so: what is no text is refused."""
    for member in kind:
        assert read_as(kind, member.value) is member
    assert read_as(kind, "newer-word") is READ_AS[kind]
    with pytest.raises(InvalidInput, match="is not one of"):
        read_as(kind, 7)


def test_a_word_without_a_reading_is_refused() -> None:
    """A move in a state that is not known here is nobody's to go on with."""
    with pytest.raises(InvalidInput, match="'newer-word' is not one of: preparing, saving"):
        read_as(MoveState, "newer-word")


def test_a_foreign_state_is_alive_and_can_be_ended() -> None:
    """It is read as no end, and every end can be reached from it, but nothing that begins."""
    assert read_as(JobState, "newer-word") not in TERMINAL_JOB_STATES
    assert AFTER_FOREIGN[JobState] >= TERMINAL_JOB_STATES
    assert JobState.STARTING not in AFTER_FOREIGN[JobState]
    assert AFTER_FOREIGN[JobState] >= JOB_TRANSITIONS[JobState.PAUSED] | JOB_TRANSITIONS[JobState.RUNNING]
    assert read_as(NodeState, "newer-word") not in GONE_NODE_STATES
    assert AFTER_FOREIGN[NodeState] == NODE_TRANSITIONS[NodeState.UNREACHABLE]
    assert AFTER_FOREIGN[RunState] == RUN_TRANSITIONS[RunState.RUNNING] | {RunState.RUNNING}
