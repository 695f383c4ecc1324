"""What a script tells of its training: layout and peak memory, in lines of the metrics file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allpass.training.session import Session


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Gpu:
    """A torch whose GPU holds what a test says."""

    __version__ = "2.5.1+cu124"
    GIB = 1 << 30

    def __init__(self) -> None:
        self.held = self.GIB
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            max_memory_allocated=lambda: self.held,
            max_memory_reserved=lambda: self.held * 2,
            mem_get_info=lambda: (60 * self.GIB, 80 * self.GIB),
        )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session(tmp_path: Path, clock: Clock) -> Session:
    return Session({"ALLPASS_METRICS_FILE": str(tmp_path / "metrics.jsonl")}, clock)


def told(tmp_path: Path) -> list[Any]:
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    return [line["training"] for line in lines if "training" in line]


def test_peak_memory_is_told_when_it_has_grown(
    session: Session, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second step on, looked at every ten seconds, and only what is new."""
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "torch", gpu)  # type: ignore[arg-type]  # stands in for the module
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    session.report(1, loss=1.0)
    assert told(tmp_path) == []
    session.report(2, loss=1.0)
    (first,) = told(tmp_path)
    assert first == {
        "allocated_bytes": gpu.GIB,
        "reserved_bytes": 2 * gpu.GIB,
        "process_bytes": 20 * gpu.GIB,
        "versions": {"torch": "2.5.1+cu124"},
    }
    gpu.held *= 3
    session.report(3, loss=1.0)
    assert len(told(tmp_path)) == 1
    clock.now += 10
    session.report(4, loss=1.0)
    assert told(tmp_path)[1]["allocated_bytes"] == 3 * gpu.GIB
    clock.now += 10
    session.report(5, loss=1.0)
    assert len(told(tmp_path)) == 2


def test_a_broken_torch_does_not_break_the_training(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever asking for memory raises, steps are reported."""

    def fail() -> bool:
        raise RuntimeError("no driver")

    # Stands in for the module.
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=fail)))  # type: ignore[arg-type]
    for step in (1, 2, 3):
        session.report(step, loss=1.0)
    assert told(tmp_path) == []
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_layout_is_described(session: Session, tmp_path: Path) -> None:
    """What is known is told, what is not is left out, and a misspelt fact is refused."""
    session.describe(micro_batch=4, accumulation=4, checkpointing=True, sharding=None)
    assert told(tmp_path) == [{"micro_batch": 4, "accumulation": 4, "checkpointing": True}]
    with pytest.raises(TypeError, match="'microbatch' is nothing that describe"):
        session.describe(microbatch=4)
