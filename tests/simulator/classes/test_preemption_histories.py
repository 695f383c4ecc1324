"""The benchmark that plays many histories tells those that were not kept by their number."""

from __future__ import annotations

import json

import pytest

from app.simulator.classes.eviction_histories import EvictionHistory
from benchmarks import preemption_histories


def test_what_is_not_kept_or_raises_is_told_with_its_number_and_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def plays(seed: int, **_: object) -> EvictionHistory:
        if seed == 1:
            raise RuntimeError("no such row")
        return EvictionHistory(seed, 5, 2, 1, ["somebody left for nothing"] if seed == 2 else [])

    monkeypatch.setattr(preemption_histories, "play_eviction_history", plays)
    words = ["preemption_histories", "--kind", "evictions", "--histories", "4", "--processes", "1"]
    monkeypatch.setattr("sys.argv", words)
    preemption_histories.main()
    *told, last = capsys.readouterr().out.splitlines()
    assert told == [
        "not kept: --kind evictions --first 1 --histories 1: RuntimeError: no such row",
        "not kept: --kind evictions --first 2 --histories 1: somebody left for nothing",
    ]
    found = json.loads(last)
    assert (found["value"], found["goal"]) == (2, 0)
    assert found["kinds"] == {"evictions": {"begun": 15, "evicted": 6, "histories": 4, "served": 3}}
