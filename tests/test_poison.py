"""The poison benchmark: everything that can be bad is in it, and a job that notices is told; some of it is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from typing import Any, get_args

import pytest

from app.core.model.health import Chore
from app.core.model.plan import Action
from app.db.tables import metadata
from app.stack.postgres import EmbeddedPostgres
from benchmarks.poison import Bench, Outcome, every_case
from benchmarks.poison_actions import FACTORIES
from benchmarks.poison_bodies import bodies, fields, hostile_values
from benchmarks.poison_cases import Case
from benchmarks.poison_chores import POISONS
from benchmarks.poison_rows import row_cases
from tests.api.document import document


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return dict(document())


def fields_of(kind: Any) -> dict[str, Any]:
    return {field.name: field for field in dataclass_fields(kind)}


def test_every_chore_has_its_poison() -> None:
    assert set(POISONS) == set(Chore)


def test_every_action_has_its_poison() -> None:
    """`resize` has no action yet: it gets its poison with it."""
    assert set(FACTORIES) == {fields_of(action)["kind"].default for action in get_args(Action)}


def test_every_table_has_its_poison() -> None:
    """Its writes are refused, and each column that no key is made of is garbled, but for truth values and lists."""
    subjects = {case.subject for case in row_cases()}
    assert {table.name for table in metadata.sorted_tables} <= subjects
    assert {"jobs.resources", "nodes.offer", "runs.state", "offers.offer", "merges.mode"} <= subjects


def test_every_field_of_every_request_has_its_poison(schema: dict[str, Any]) -> None:
    """Agents' messages too; a number is tried at its limits and beyond them, and beyond all that JSON can hold."""
    keys = {case.key for case in every_case(schema)}
    for method, route, name in bodies(schema):
        for path, _ in fields(schema, name):
            told = f"{name}.{'.'.join(map(str, path))} of {method} {route}"
            assert {f"field {told}", f"message {told}"} & keys, told
    assert "field JobRequest.template.training.steps of POST /v1/jobs" in keys
    assert "message SyncRequest.runs.0.exit.training.micro_batch of POST /v1/agent/sync" in keys
    steps = hostile_values(({"type": "integer", "minimum": 1, "maximum": 10},))
    assert {0, 1, 10, 11, 2**64, 10**40} <= {value for value in steps if isinstance(value, int)}


_PLAYED = {"row": 12, "write": 4, "chore": 4, "action": 4}  # hostile bodies are sent to every route by other tests


def some_of_each_kind(cases: Sequence[Case]) -> list[Case]:
    """From all over each kind. Not every row can be reached in a small play, whose projects use little of what there
    is; what else there is can."""
    found = []
    for group, count in _PLAYED.items():
        kind = [case for case in cases if case.group == group]
        found += kind[1 :: len(kind) // count][:count]
    return found


async def test_good_jobs_do_not_notice(
    postgres: EmbeddedPostgres, template_database: str, schema: dict[str, Any]
) -> None:
    """A small play: cases from all over, one after the other, beside four good jobs. The benchmark plays all of them
    beside two hundred."""
    bench = Bench(postgres, 4, template=template_database, rounds=20, most_steps=60)
    cases = some_of_each_kind(every_case(schema))
    without = await bench.play([])
    outcome = await bench.play(cases)
    assert {fate.state for fate in without.fates.values()} == {"succeeded"}
    assert outcome.disturbed(without) == {}
    assert (outcome.failures, outcome.server_errors) == ([], [])
    assert len(outcome.not_reached) < len(cases) // 2


def test_a_disturbance_is_seen() -> None:
    """What the benchmark is for: a job that was restarted, billed otherwise or started late is told, with the way."""
    from benchmarks.poison_jobs import Fate

    calm = Fate("succeeded", "finished", 40, 0, 0, (("serverless", "finished", None),), (("run", 7),), (), (), 10_000)
    cases = {
        "stays": Fate(
            "succeeded", "finished", 40, 0, 0, (("serverless", "node_lost", None),), (("run", 7),), (), (), 10_000
        ),
        "lines": Fate("succeeded", "finished", 40, 0, 0, calm.stays, (("run", 8),), (), (), 10_000),
        "first start": Fate("succeeded", "finished", 40, 0, 0, calm.stays, (("run", 7),), (), (), 30_000),
    }
    for way, fate in cases.items():
        told = Outcome({"good-000": fate}).disturbed(Outcome({"good-000": calm}))
        assert [one.startswith(way) for one in told["good-000"]] == [True]
    late = Fate("succeeded", "finished", 40, 0, 0, calm.stays, (("run", 7),), (), (), 20_000)
    assert Outcome({"good-000": late}).disturbed(Outcome({"good-000": calm})) == {}
