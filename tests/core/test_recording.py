"""What a decision saw is read again as it was, whatever happened between the records."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.codec import dumps
from app.core.model.plan import Plan, Waiting
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from app.core.recording import Record, RecordedDecision, Recorder, read_record
from app.errors import InvalidInput
from tests.core.samples import CONFIG, OFFERS, configs, job, snapshot, snapshots

SEEN = RecordedDecision(
    snapshot(jobs=[job("job_a"), job("job_b")], offers=OFFERS), PolicyState(), CONFIG, Plan("allpass")
)


def decided(snapshot: Snapshot, config: PolicyConfig) -> RecordedDecision:
    state = PolicyState().having(F=1.5)
    return RecordedDecision(
        snapshot, state, config, policy_named("allpass").decide(Board.of(snapshot), state, config)[0]
    )


def ordered(seen: RecordedDecision) -> RecordedDecision:
    """With what the records tell apart by ids in the order of these."""
    rows = {"jobs": "job_id", "runs": "run_id", "nodes": "node_id", "merges": "merge_id"}
    shown = {
        part: tuple(sorted(getattr(seen.snapshot, part), key=lambda row: getattr(row, name)))
        for part, name in rows.items()
    }
    waiting = tuple(sorted(seen.plan.waiting, key=lambda wait: wait.job_id))
    return replace(seen, snapshot=replace(seen.snapshot, **shown), plan=replace(seen.plan, waiting=waiting))


def read_all(records: list[Record]) -> list[RecordedDecision]:
    read, base = [], b""
    for record in records:
        base = record.body if record.is_whole else base
        read.append(read_record(record.body, None if record.is_whole else base, record.offers))
    return read


@settings(max_examples=60)
@given(st.lists(st.builds(decided, snapshots(), configs), min_size=1, max_size=6))
def test_every_decision_is_read_as_it_was(story: list[RecordedDecision]) -> None:
    """Views that come, change and go, other offers, another configuration: all of it is told by whole record and
    differences together, to the byte."""
    recorder = Recorder()
    read = read_all([recorder.record(seen) for seen in story])
    assert [dumps(seen) for seen in read] == [dumps(ordered(seen)) for seen in story]


@settings(max_examples=40)
@given(snapshots(), configs)
def test_what_was_decided_is_decided_again(seen: Snapshot, config: PolicyConfig) -> None:
    """The plan that is made of what was read is the plan that was made then."""
    before = decided(seen, config)
    record = Recorder().record(before)
    after = read_record(record.body, None, record.offers)
    plan, _ = policy_named("allpass").decide(Board.of(after.snapshot), after.state, after.config)
    assert plan == replace(after.plan, waiting=plan.waiting)
    assert set(plan.waiting) == set(after.plan.waiting)


def test_what_did_not_change_is_told_once() -> None:
    """After a whole record only the differences are written, and they are small."""
    crowd = tuple(job(f"job_{number:04d}") for number in range(500))
    recorder, seen = Recorder(), replace(SEEN, snapshot=snapshot(jobs=crowd, offers=OFFERS))
    whole = recorder.record(seen)
    moved = (replace(crowd[0], row_version=2), *crowd[1:])
    delta = recorder.record(replace(seen, snapshot=snapshot(jobs=moved, offers=OFFERS, now_ms=2_000_000)))
    assert (whole.is_whole, delta.is_whole) == (True, False)
    assert b"row_version" in zlib.decompress(delta.body)
    assert b"deadline_ms" not in zlib.decompress(delta.body)
    assert len(delta.body) < len(whole.body) / 10
    assert delta.offers_sha256 == whole.offers_sha256


def test_a_whole_record_comes_again_in_time() -> None:
    """However little changes, a reader never depends on a record that is hundreds of decisions old; and when very much
    has changed, the next one is whole."""
    recorder = Recorder()
    kinds = [recorder.record(replace(SEEN, state=PolicyState().having(n=number))).is_whole for number in range(400)]
    assert [number for number, is_whole in enumerate(kinds) if is_whole] == [0, 201]
    other = replace(SEEN, snapshot=snapshot(jobs=[job(f"job_x{n}") for n in range(50)], offers=OFFERS))
    assert not recorder.record(other).is_whole
    assert recorder.record(other).is_whole


def test_a_record_that_was_not_stored_is_no_base() -> None:
    recorder = Recorder()
    recorder.record(SEEN)
    recorder.forget()
    assert recorder.record(SEEN).is_whole


def test_what_waits_and_why() -> None:
    """Reasons in words are part of what was decided; an unchanged one is not told again."""
    recorder = Recorder()
    first = replace(SEEN, plan=Plan("allpass", waiting=(Waiting("job_a", "no GPU"), Waiting("job_b", "no GPU"))))
    second = replace(SEEN, plan=Plan("allpass", waiting=(Waiting("job_a", "no money"), Waiting("job_b", "no GPU"))))
    third = replace(SEEN, plan=Plan("allpass", waiting=(Waiting("job_b", "no GPU"),)))
    records = [recorder.record(seen) for seen in (first, second, third)]
    assert read_all(records) == [first, second, third]
    assert b"no GPU" not in zlib.decompress(records[1].body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "damaged"),
        (b"no zlib", "damaged"),
        (zlib.compress(b"no json"), "damaged"),
        (zlib.compress(b"[]"), "format None"),
        (zlib.compress(b'{"format": 2}'), "format 2"),
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes, why: str) -> None:
    """A record of another release, or a damaged one, is never taken for something else."""
    with pytest.raises(InvalidInput, match=why):
        read_record(body, None, Recorder().record(SEEN).offers)


def test_what_an_earlier_release_did_not_see_is_as_if_there_were_none() -> None:
    """A part of the world that this release looks at besides, in a whole record and in one of differences."""
    recorder = Recorder()
    whole, delta = recorder.record(SEEN), recorder.record(replace(SEEN, state=PolicyState().having(n=1)))

    def earlier(body: bytes) -> bytes:
        content = json.loads(zlib.decompress(body))
        content.pop("queue_means", None)
        return zlib.compress(json.dumps(content).encode())

    assert earlier(whole.body) != whole.body
    assert read_record(earlier(whole.body), None, whole.offers) == SEEN
    assert read_record(earlier(delta.body), earlier(whole.body), whole.offers).snapshot == SEEN.snapshot


def test_a_field_of_another_release_is_refused() -> None:
    """A view with a field that this release does not know cannot be decided on as it was."""
    record = Recorder().record(SEEN)
    strange = zlib.compress(zlib.decompress(record.body).replace(b'"row_version":1', b'"row_versions":1'))
    with pytest.raises(InvalidInput, match="no such field"):
        read_record(strange, None, record.offers)
