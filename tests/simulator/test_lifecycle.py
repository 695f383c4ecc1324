"""The simulated world keeps to the tables of the live one: an arrow that is not there, is not there in it either."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from app.core.lifecycle import JOB_TRANSITIONS, NODE_TRANSITIONS, RUN_TRANSITIONS, pass_over
from app.core.model.job import JobState
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunState
from app.errors import InvariantBroken
from app.simulator import cloud, engine
from tests.simulator.scenarios import config, market, simulate, task

TABLES: tuple[Mapping[Any, frozenset[Any]], ...] = (JOB_TRANSITIONS, RUN_TRANSITIONS, NODE_TRANSITIONS)


@pytest.mark.parametrize("table", TABLES, ids=["job", "run", "node"])
def test_only_arrows_of_the_table_are_passed(table: Mapping[StrEnum, frozenset[StrEnum]]) -> None:
    """All of them, and no others; staying where it is is no arrow."""
    for state in table:
        for target in table:
            if target in table[state]:
                assert pass_over(table, state, target) is target
            else:
                with pytest.raises(InvariantBroken, match="cannot become"):
                    pass_over(table, state, target)


@pytest.mark.parametrize(
    ("module", "name", "state", "target"),
    [
        (engine, "JOB_TRANSITIONS", JobState.QUEUED, JobState.STARTING),
        (engine, "JOB_TRANSITIONS", JobState.RUNNING, JobState.SUCCEEDED),
        (engine, "RUN_TRANSITIONS", RunState.STANDBY, RunState.PROMOTING),
        (engine, "RUN_TRANSITIONS", RunState.PROMOTING, RunState.RUNNING),
        (cloud, "NODE_TRANSITIONS", NodeState.BOOTING, NodeState.READY),
        (cloud, "NODE_TRANSITIONS", NodeState.READY, NodeState.TERMINATING),
    ],
)
def test_a_simulation_passes_the_arrows_of_the_tables(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, state: StrEnum, target: StrEnum
) -> None:
    """A job that starts on serverless and moves to a rented node goes through each of these; without one it stops."""
    tasks, on = [task("long", 20_000, predicted_ms=None)], market(Tier.SERVERLESS, Tier.MARKETPLACE)
    moved = simulate("allpass", *tasks, on=on, using=config()).result.outcomes
    assert [one.moves for one in moved] == [1]
    table = getattr(module, name)
    monkeypatch.setattr(module, name, {**table, state: table[state] - {target}})
    with pytest.raises(
        InvariantBroken, match=f"{state!r} cannot become {target!r}".replace("(", ".").replace(")", ".")
    ):
        simulate("allpass", *tasks, on=on, using=config())
