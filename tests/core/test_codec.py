"""Recorded values: they come back equal, and equal values give equal bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.codec import decode, decode_row, digest, dumps, encode, loads
from app.core.model.job import JobState
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.plan import Plan, Release
from app.core.model.snapshot import JobView, Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from app.errors import InvalidInput
from tests.core.samples import CONFIG, NOW_MS, OFFERS, configs, job, node, offer, on_serverless, snapshot, snapshots

TRAITS = ProviderTraits(
    "local", Tier.SERVERLESS, BillingRule(1_000, BillingStart.REQUEST), 3_000, 60_000, 30_000, True, False, 86_400_000
)


def rich_snapshot() -> Snapshot:
    held = job("job_run", JobState.RUNNING, serverless_used_ms=5, avoided_offers=frozenset({"b/2", "a/1", "c/3"}))
    run, place = on_serverless(held, 400_000)
    seen = snapshot(jobs=[held, job("job_a")], runs=[run], nodes=[place, node("node_x")], offers=OFFERS)
    return replace(seen, traits=(TRAITS,))


@settings(max_examples=30)
@given(snapshots(), configs)
def test_snapshot_config_and_plan_come_back(seen: Snapshot, config: PolicyConfig) -> None:
    """A snapshot, the settings and the plan made of them survive bytes, so that a tick can be decided again."""
    plan, state = policy_named("fixed-threshold").decide(Board.of(seen), PolicyState((("p", 1.5),)), config)
    again = loads(Snapshot, dumps(seen))
    assert again == seen
    assert loads(PolicyConfig, dumps(config)) == config
    assert loads(Plan, dumps(plan)) == plan
    assert loads(PolicyState, dumps(state)) == state
    assert dumps(policy_named("fixed-threshold").decide(Board.of(again), state, config)[0]) == dumps(plan)


def test_every_field_survives() -> None:
    """Traits, options that are set, sets and nested values all come back, through a store that reorders keys too."""
    seen = rich_snapshot()
    stored = json.loads(json.dumps(encode(seen), sort_keys=True))
    assert decode(Snapshot, stored) == seen


@given(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=6), st.randoms(use_true_random=False))
def test_equal_values_give_equal_bytes(keys: list[str], random: Any) -> None:
    """The order in which a set was filled does not show in its bytes or digest."""
    shuffled = keys[:]
    random.shuffle(shuffled)
    one, other = job(avoided_offers=frozenset(keys)), job(avoided_offers=frozenset(shuffled))
    assert dumps(one) == dumps(other)
    assert digest(one) == digest(other)


def test_different_values_give_different_digests() -> None:
    """One micro-dollar more is another value."""
    assert digest(job(spent=Money(1))) != digest(job(spent=Money(2)))


def test_bytes_are_pinned() -> None:
    """The written form is canonical: sorted keys, no spaces, money as micro-dollars, text as it is."""
    plan = Plan("x", (Release("node_ä", "why", (("node_ä", 3),)),), signals=(("F_s", 300.0),), wake_at_ms=5)
    assert dumps(plan).decode() == (
        '{"actions":[{"kind":"release","node_id":"node_ä","reason":"why","versions":[["node_ä",3]]}],"images":[],'
        '"policy":"x","signals":[["F_s",300.0]],"waiting":[],"wake_at_ms":5}'
    )


def test_older_records_take_defaults() -> None:
    """A record from before a field with a default existed reads as that default."""
    stored = encode(job())
    del stored["serverless_used_ms"], stored["avoided_offers"]
    assert decode(JobView, stored) == job()


def without(name: str) -> Any:
    stored = encode(job())
    del stored[name]
    return stored


@pytest.mark.parametrize(
    ("kind", "data", "param", "accepted"),
    [
        (JobView, without("deadline_ms"), "deadline_ms", "missing"),
        (JobView, encode(job()) | {"colour": 1}, "colour", "no such field"),
        (JobView, encode(job()) | {"state": "asleep"}, "state", "queued, starting"),
        (JobView, encode(job()) | {"row_version": True}, "row_version", "a whole number"),
        (JobView, encode(job()) | {"row_version": 1.5}, "row_version", "a whole number"),
        (JobView, encode(job()) | {"job_id": None}, "job_id", "text"),
        (ProviderTraits, encode(TRAITS) | {"preemptible": 0}, "preemptible", "true or false"),
        (JobView, encode(job()) | {"spent": "1"}, "spent", "a whole number"),
        (JobView, encode(job()) | {"resources": []}, "resources", "an object"),
        (JobView, encode(job()) | {"avoided_offers": "x"}, "avoided_offers", "a list"),
        (Snapshot, {"now_ms": 1, "jobs": [encode(job()), {}]}, "jobs[1].job_id", "missing"),
        (Plan, {"policy": "x", "actions": [{"kind": "explode"}]}, "actions[0]", "kind one of: assign, demote"),
        (Plan, {"policy": "x", "actions": [{"kind": []}]}, "actions[0]", "kind one of"),
        (Plan, {"policy": "x", "signals": [["p"]]}, "signals[0]", "a list of 2"),
        (Plan, {"policy": "x", "signals": [["p", "high"]]}, "signals[0][1]", "a number"),
        (Plan, 7, None, "an object"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(kind: Any, data: Any, param: str | None, accepted: str) -> None:
    """A record that is no such value names the place and what would be accepted there."""
    with pytest.raises(InvalidInput, match=accepted) as caught:
        decode(kind, data)
    assert caught.value.param == param


def with_more(stored: Any) -> Any:
    """As a newer release might have written it: every object has a field more."""
    if isinstance(stored, dict):
        return {"newer": {"colour": [1, None]}, **{name: with_more(value) for name, value in stored.items()}}
    return [with_more(value) for value in stored] if isinstance(stored, list) else stored


def test_rows_of_a_newer_release_are_read_without_what_is_new() -> None:
    """Unknown fields at any depth are ignored in a row, and refused in a record."""
    seen = rich_snapshot()
    assert decode_row(Snapshot, with_more(encode(seen))) == seen
    with pytest.raises(InvalidInput, match="no such field"):
        decode(Snapshot, with_more(encode(seen)))


def test_words_of_a_newer_release_are_read_as_what_harms_least() -> None:
    """In a row, a state that is not known here has a reading; in a record it is refused."""
    stored = encode(job()) | {"state": "hibernating", "kind": "dream"}
    assert decode_row(JobView, stored) == job(state=JobState.PAUSED)
    with pytest.raises(InvalidInput, match="queued, starting"):
        decode(JobView, stored)


@pytest.mark.parametrize(
    ("kind", "data", "param"),
    [
        (JobView, without("deadline_ms"), "deadline_ms"),
        (JobView, encode(job()) | {"state": 7}, "state"),
        (JobView, encode(job()) | {"row_version": "1"}, "row_version"),
        (Plan, {"policy": "x", "actions": [{"kind": "explode"}]}, "actions[0]"),
        (Plan, {"policy": "x", "signals": [["p", 1.0, 2.0]]}, "signals[0]"),
    ],
)
def test_a_row_is_still_refused_where_it_makes_no_sense(kind: Any, data: Any, param: str) -> None:
    """What every release has, a value of another type, and an action of another kind: none is guessed."""
    with pytest.raises(InvalidInput) as caught:
        decode_row(kind, data)
    assert caught.value.param == param


def test_broken_bytes() -> None:
    """Bytes that are no JSON are the caller's error, in our words."""
    with pytest.raises(InvalidInput, match="not JSON"):
        loads(Plan, b"{")


def test_only_core_values_are_recorded() -> None:
    """What is no core value (a set that could change, a dict) is refused on the way out, and NaN too."""
    with pytest.raises(TypeError, match="dict"):
        encode({"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(PolicyState((("p", float("nan")),)))


@dataclass(frozen=True)
class Odd:
    """A field of a type that records do not know."""

    inner: complex


@dataclass(frozen=True)
class Odder:
    inner: dict[str, int]


@pytest.mark.parametrize("kind", [Odd, Odder])
def test_unknown_types_are_a_bug_not_a_guess(kind: Any) -> None:
    """Decoding into a type that records do not know says so."""
    with pytest.raises(TypeError, match="no place in a recorded value"):
        decode(kind, {"inner": 1})


def test_recorded_snapshot_is_decided_alike() -> None:
    """A tick that was stored can be replayed: the recorded snapshot gives the same plan, byte for byte."""
    policy, seen = policy_named("fixed-threshold"), rich_snapshot()
    recorded = dumps(seen)
    plan, _ = policy.decide(Board.of(seen), PolicyState(), CONFIG)
    assert dumps(policy.decide(Board.of(loads(Snapshot, recorded)), PolicyState(), CONFIG)[0]) == dumps(plan)
    assert plan.actions
    assert seen.now_ms == NOW_MS
    assert decode(Snapshot, encode(replace(seen, offers=(offer("z"),)))).offers == (offer("z"),)
