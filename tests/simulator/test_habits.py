"""What a simulation learns of how long jobs run, for a policy that goes by queues."""

from __future__ import annotations

import pytest

from tests.simulator.scenarios import simulate, task


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.core.elastic.queues.RE_ESTIMATED_EVERY", 3)


def test_jobs_that_have_ended_say_when_others_are_long() -> None:
    """Of each kind by itself, and not before as many have ended as it takes; with another policy nobody counts."""
    short = [task("a", 20, kind="interactive"), task("b", 40, kind="interactive")]
    tasks = [*short, task("c", 4000), task("d", 9, at_s=5000)]
    seen = simulate("cornucopia", *tasks)
    told = [snapshot.queue_means for snapshot, *_ in seen.snapshots]
    assert told[0] == ()
    assert [one for number, one in enumerate(told) if one and not told[number - 1]] == [told[-1]]
    assert [(one.interactive_s, one.batch_s) for one in told[-1]] == [(30.0, 4000.0)]
    others = simulate("tiresias-l", *tasks)
    assert {snapshot.queue_means for snapshot, *_ in others.snapshots} == {()}
