"""`allpass replay`: which decision, decided how, and what came out otherwise."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from allpass.cli.replay import moment
from allpass.errors import InvalidInput
from tests.sdk.fake_service import NOW, FakeService
from tests.sdk.test_cli import call, finished, live  # noqa: F401  # a fixture is used by its name

NOON = datetime(2026, 12, 1, 12, 0, 30, tzinfo=timezone(timedelta(hours=1)))
START = {"kind": "start", "job_id": "job_1", "offer": "modal/a100", "price_per_hour": 2_100_000, "reason": "cheapest"}
RENT = {"kind": "provision", "job_id": "job_1", "offer": "vast/1", "price_per_hour": 700_000, "reason": "will be long"}
SAME: dict[str, Any] = {
    "at": NOW, "policy_then": "allpass", "policy_now": "allpass", "same": True, "caveat": None, "both": [START],
    "only_then": [], "only_now": [], "waits": [], "unchanged_waits": 12,
    "others": {"both": 2, "only_then": 0, "only_now": 0, "waits": 0}, "signals_then": {"p": 1.5},
    "signals_now": {"p": 1.5},
}  # fmt: skip
OTHER = {
    **SAME, "policy_now": "cheapest-first", "same": False, "both": [], "only_then": [START], "only_now": [RENT],
    "waits": [{"job_id": "job_2", "then": "no GPU is free", "now": None}], "signals_now": {},
}  # fmt: skip
DECISION = {
    "id": 41, "at": NOW, "policy": "allpass", "trigger": "change", "pressure": None, "serverless_budget_s": None,
    "capacity_gpus": None, "demand_gpu_s": None, "jobs_waiting": 0, "nodes": {}, "actions": {"start": 2}, "reasons": [],
    "duration_ms": 7,
}  # fmt: skip


def test_what_comes_out_the_same(live: FakeService) -> None:  # noqa: F811  # the fixture
    live.replay = SAME
    lines = finished("replay", "7").splitlines()
    assert lines[0].startswith("tick 7 ")
    assert "= start     job_1  cheapest" in lines
    assert lines[-1] == "decided again, it comes out the same: 1 actions, 12 waits   (and 2 of other projects)"


def test_what_comes_out_otherwise(live: FakeService) -> None:  # noqa: F811  # the fixture
    """What was done and would not be, what would be and was not, why jobs wait, and the figures."""
    live.replay = OTHER
    told = finished("replay", "7", "--policy", "cheapest-first", "--set", "move_gain=2")
    assert "allpass -> cheapest-first" in told
    assert "- start     job_1  cheapest" in told
    assert "+ provision job_1  will be long" in told
    assert "job_2 waits\n  then  no GPU is free\n  now   it would not" in told
    assert "pressure: 1.5 -> -" in told
    assert told.splitlines()[-1].startswith("0 actions the same, 1 only then (-), 1 only now (+)")
    (asked,) = live.replays
    assert (asked[0], asked[1].policy, asked[1].rules) == (7, "cheapest-first", {"move_gain": 2.0})


def test_a_caveat_is_told_first_and_json_is_the_object(live: FakeService) -> None:  # noqa: F811  # the fixture
    live.replay = {**SAME, "caveat": "another release"}
    assert finished("replay", "7").splitlines()[1] == "not exact: another release"
    assert json.loads(finished("replay", "7", "--json"))["caveat"] == "another release"


def test_the_newest_of_those_that_are_named(live: FakeService) -> None:  # noqa: F811  # the fixture
    """By job or by time the newest decision is taken; --list names them and takes none."""
    live.decisions, live.replay = [DECISION, {**DECISION, "id": 40}], SAME
    finished("replay", "--job", "job_1")
    finished("replay", "--at", "2026-12-01T11:02:00Z")
    assert [number for number, _ in live.replays] == [41, 41]
    assert [line.split()[0] for line in finished("replay", "--list").splitlines()[1:]] == ["41", "40"]
    assert [one["id"] for one in json.loads(finished("replay", "--list", "--json"))] == [41, 40]
    assert len(live.replays) == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "which decision?"),
        (("--at", "noon"), "'noon' is no time"),
        (("7", "--set", "move_gain"), "'move_gain' is no rule with a number"),
        (("7", "--set", "move_gain=much"), "is no rule with a number"),
        (("--job", "job_1"), "no decision with an action on job_1 is kept"),
    ],
)
def test_bad_input_is_named(live: FakeService, words: tuple[str, ...], why: str) -> None:  # noqa: F811  # the fixture
    done = call("replay", *words)
    assert done.exit_code == 2
    assert why in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("11:02", "2026-12-01T11:02:59.999999+01:00"),
        ("11:02:14", "2026-12-01T11:02:14.999999+01:00"),
        ("12:00", "2026-12-01T12:00:59.999999+01:00"),
        ("23:00", "2026-11-30T23:00:59.999999+01:00"),
        ("2026-12-01T11:02:00+00:00", "2026-12-01T11:02:00+00:00"),
    ],
)
def test_times_are_the_last_that_were_so_late(text: str, expected: str) -> None:
    """A minute is taken to its end; what is still to come today was yesterday."""
    assert moment(text, NOON).isoformat() == expected


def test_a_time_that_is_none() -> None:
    with pytest.raises(InvalidInput, match="11:02"):
        moment("25:61", NOON)
