"""Saving beside the training: what waits, what gives way, what is told."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpass.training.background import Background
from allpass.training.session import Session, Snapshot


class Held(Snapshot):
    """A snapshot whose writing goes on when `go` is set."""

    def __init__(self, content: str = "state", go: threading.Event | None = None) -> None:
        self.content = content
        self.go = go
        self.begun = threading.Event()
        self.released = 0
        self.fails: list[OSError] = []

    def write(self, folder: Path) -> None:
        self.begun.set()
        if self.go is not None:
            assert self.go.wait(30)
        if self.fails:
            raise self.fails.pop()
        (folder / "state").write_text(self.content)

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(
        {
            "ALLPASS_JOB_ID": "job_1",
            "ALLPASS_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
            "ALLPASS_METRICS_FILE": str(tmp_path / "metrics"),
        }
    )


def announced(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "metrics"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if "checkpoint" in line]


def until_nothing_waits(session: Session) -> None:
    """Return when what waited for its turn has been given up; it must wait already."""
    end_s = time.monotonic() + 20
    while session._background._waiting is not None:
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_the_training_goes_on_while_a_checkpoint_is_written(session: Session, tmp_path: Path) -> None:
    """`save_soon` returns before anything is on disk; once written, the checkpoint is announced with what was reported
    of its own step, not of the steps since."""
    slow = Held(go=threading.Event())
    session.report(5, loss=0.5)
    session.save_soon(5, lambda: slow)
    assert slow.begun.wait(30)
    assert (session.is_saving(), announced(tmp_path)) == (True, [])
    session.report(6, loss=0.25)
    assert slow.go is not None
    slow.go.set()
    session.finish_saving()
    assert announced(tmp_path) == [{"step": 5, "checkpoint": "step-00000005", "loss": 0.5}]
    assert (slow.released, session.saved_step) == (1, 5)


def test_one_is_written_at_a_time_and_the_newest_waits(session: Session, tmp_path: Path) -> None:
    """Of those that come while one is written, only the last is saved; the memory of the others is given back."""
    go = threading.Event()
    held = {step: Held(go=go if step == 1 else None) for step in (1, 2, 3, 4)}
    for step, one in held.items():
        # Mypy cannot follow a default that binds a loop's value.
        session.save_soon(step, lambda one=one: one)  # type: ignore[misc]
        if step == 1:
            assert one.begun.wait(30)
    go.set()
    session.finish_saving()
    assert [line["step"] for line in announced(tmp_path)] == [1, 4]
    assert [one.released for one in held.values()] == [1, 1, 1, 1]
    assert [one.begun.is_set() for one in held.values()] == [True, False, False, True]


def test_the_last_save_is_waited_for(session: Session, tmp_path: Path) -> None:
    """Asked to stop, it gives up what only waits, and returns when the checkpoint of this step is announced."""
    go = threading.Event()
    first, waiting = Held(go=go), Held()
    session.save_soon(1, lambda: first)
    assert first.begun.wait(30)
    session.save_soon(2, lambda: waiting)
    session.request_stop()
    goes_on = threading.Thread(target=lambda: (until_nothing_waits(session), go.set()))
    goes_on.start()
    session.save_soon(3, Held)
    goes_on.join()
    assert [line["step"] for line in announced(tmp_path)] == [1, 3]
    assert (waiting.begun.is_set(), waiting.released) == (False, 1)
    with pytest.raises(SystemExit) as leaving:
        session.exit_if_stopping(3)
    assert leaving.value.code == 75


def test_a_stop_right_after_a_save_is_served_by_that_save(session: Session, tmp_path: Path) -> None:
    """The checkpoint of this very step is under way: it is waited for, and nothing is saved twice."""
    go = threading.Event()
    one = Held(go=go)
    session.save_soon(7, lambda: one)
    session.request_stop()
    threading.Timer(0.05, go.set).start()
    with pytest.raises(SystemExit):
        session.exit_if_stopping(7)
    assert [line["step"] for line in announced(tmp_path)] == [7]


@pytest.mark.parametrize(
    "call", [lambda one: one.should_checkpoint(2), lambda one: one.save_soon(2, Held), lambda one: one.finish_saving()]
)
def test_what_went_wrong_is_raised_by_the_next_call(
    session: Session, tmp_path: Path, call: Callable[[Session], object]
) -> None:
    """Once, in the training's own thread; nothing of it is announced."""
    broken = Held()
    broken.fails = [OSError(errno.EIO, "the disk is broken")]
    session.save_soon(1, lambda: broken)
    end_s = time.monotonic() + 30
    while session.is_saving():
        assert time.monotonic() < end_s
        time.sleep(0.001)
    with pytest.raises(OSError, match="the disk is broken"):
        call(session)
    assert announced(tmp_path) == []
    assert not list((tmp_path / "checkpoints").glob(".partial*"))
    session.finish_saving()


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_makes_room_by_older_checkpoints(session: Session, tmp_path: Path) -> None:
    """All but the newest of those on this disk give way, and it is tried again."""
    for step in (1, 2):
        session.save(step, Held().write)
    third = Held()
    third.fails = [full()]
    session.save_soon(3, lambda: third)
    session.finish_saving()
    assert [line["step"] for line in announced(tmp_path)] == [1, 2, 3]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000003"]


def test_a_disk_that_stays_full_costs_a_checkpoint_but_not_the_training(
    session: Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is told, and the next save is tried; the last one, on which the work depends, raises."""
    one = Held()
    one.fails = [full(), full()]
    session.save_soon(1, lambda: one)
    session.finish_saving()
    assert "the disk is full" in capfd.readouterr().err
    session.save_soon(2, Held)
    session.finish_saving()
    assert [line["step"] for line in announced(tmp_path)] == [2]
    session.request_stop()
    last = Held()
    last.fails = [full(), full()]
    with pytest.raises(OSError, match="No space"):
        session.save_soon(3, lambda: last)


def test_many_savers_lose_nothing_and_deadlock_never() -> None:
    """Every job runs or is dropped, exactly one of the two, whatever the timing; the newest always runs."""
    background = Background()
    ran: list[int] = []
    dropped: list[int] = []
    for number in range(500):
        background.submit(
            number, lambda number=number: ran.append(number), lambda number=number: dropped.append(number)
        )  # type: ignore[misc]  # mypy cannot follow a default that binds a loop's value
    background.wait()
    assert sorted(ran + dropped) == list(range(500))
    assert ran[-1] == 499
    assert ran == sorted(ran)
    assert not background.is_busy()
