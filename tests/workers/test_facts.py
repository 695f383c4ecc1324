"""What a script tells of its training reaches the server with the report of its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allpass.wire.agent import RunReport, TrainingFacts
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from workers.agent.facts import facts_of, total_of
from workers.agent.total import TotalSteps

Start = Callable[..., AgentProcess]

SCRIPT = r"""
import os
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
    file.write('{"step": 0, "training": {"micro_batch": 4, "accumulation": 2, "checkpointing": true}}\n')
    file.write('{"step": 1, "loss": 1.0}\n')
    file.write('{"step": 2, "training": {"allocated_bytes": 100, "reserved_bytes": 120, "versions": {"torch": "2"}}}\n')
    file.write('{"step": 3, "training": {"allocated_bytes": 300, "reserved_bytes": -1, "colour": "red"}}\n')
    file.write('{"step": 4, "training": 0.5}\n')
"""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False) | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=70), inner, max_size=20),
    max_leaves=20,
)
names = st.sampled_from([*TrainingFacts.model_fields, "other"])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, json_values) | json_values)
def test_whatever_a_script_tells_is_taken_by_the_server(told: Any) -> None:
    """A fact that cannot be is left out: it must never be the reason that the end of a run is refused."""
    TrainingFacts.model_validate(facts_of(told))


def test_good_facts_pass_as_they_are() -> None:
    """Nothing is lost on the way."""
    facts = {
        "micro_batch": 4, "accumulation": 2, "sequence": 2048, "checkpointing": False, "sharding": "fsdp",
        "allocated_bytes": 1, "reserved_bytes": 2, "process_bytes": 3, "versions": {"torch": "2.5.1"},
    }  # fmt: skip
    assert facts_of(facts) == facts


def test_the_end_tells_what_the_script_told(plane: Plane, start_agent: Start) -> None:
    """The last word on each fact counts; a number of that name stays a metric."""
    run = desired(plane, SCRIPT)
    plane.want(run)
    start_agent()
    exit_ = plane.wait_exit(run.run_id)
    assert exit_.training is not None
    assert exit_.training.model_dump(exclude_none=True) == {
        "micro_batch": 4,
        "accumulation": 2,
        "checkpointing": True,
        "allocated_bytes": 300,
        "reserved_bytes": 120,
        "versions": {"torch": "2"},
    }
    assert plane.metrics[run.run_id][4].values == {"training": 0.5}


_TOGETHER = """
from allpass import training
training.session().announce_together()
training.session().announce_together()
training.report(1, loss=1.0)
"""
_ODD = """
import os
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
    file.write('{"step": 1, "training": {"stops_together": "yes"}}\\n')
"""


@pytest.mark.parametrize(("script", "together"), [(_TOGETHER, True), (_ODD, False)])
def test_code_whose_processes_stop_together_is_told_as_such(
    plane: Plane, start_agent: Start, script: str, together: bool
) -> None:
    """A job on several machines is moved only where it is; whatever else a script writes there is not believed."""
    assert _reported(plane, start_agent, script).stops_together is together


def _reported(plane: Plane, start_agent: Start, script: str) -> RunReport:
    """The newest report of a run of this script, which has ended."""
    run = desired(plane, script)
    plane.want(run)
    start_agent()
    plane.wait_exit(run.run_id)
    report = plane.report(run.run_id)
    assert report is not None
    return report


@pytest.mark.parametrize(
    ("script", "saves"),
    [
        ("from allpass import training; training.report(1, loss=1.0); training.should_checkpoint(1)", True),
        ("from allpass import training; training.report(1, loss=1.0); training.announce_saves()", True),
        ("from allpass import training; training.report(1, loss=1.0)", False),
        (
            'import os; line = \'{"step": 1, "training": {"saves": 1}}\'\n'
            "open(os.environ['ALLPASS_METRICS_FILE'], 'a').write(line + chr(10))",
            False,
        ),
    ],
)
def test_the_agent_tells_that_a_script_saves_when_asked(
    plane: Plane, start_agent: Start, script: str, saves: bool
) -> None:
    """As the script says it itself. Anything but the plain truth is none."""
    assert _reported(plane, start_agent, script).saves is saves


@pytest.mark.parametrize("told", [0, -1, 2**53 + 1, 10**18, 1.5, "7", True, None, [7]])
def test_what_cannot_be_a_number_of_steps_is_none(told: Any) -> None:
    """A script may write anything."""
    assert total_of({"total_steps": told}) is None
    assert total_of(told) is None


def test_a_total_that_changes_is_believed_ever_more_rarely() -> None:
    """The first at once, another one after a minute, then after two, four and so on: the newest each time. What is
    left of a job decides what is rented for it."""
    now_s = 100.0
    total = TotalSteps(lambda: now_s)
    assert total.believed is None
    believed: list[int | None] = []
    for second in range(6 * 3600):
        now_s = 100.0 + second
        total.hear(1_000 + second)
        total.hear(None)
        if total.believed not in believed:
            believed.append(total.believed)
    assert believed[:3] == [1_000, 1_060, 1_180]
    assert len(believed) == 9


def test_a_script_tells_how_many_steps_it_takes(plane: Plane, start_agent: Start) -> None:
    """Before its first step, with what else it describes of itself."""
    run = desired(
        plane, "from allpass import training; training.describe(total_steps=40); training.report(1, loss=1.0)"
    )
    plane.want(run)
    start_agent()
    plane.wait_exit(run.run_id)
    report = plane.report(run.run_id)
    assert report is not None
    assert report.total_steps == 40
