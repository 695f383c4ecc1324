"""How far apart checkpoints are on machines that fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.training.session import Session, Snapshot
from allpass.training.spacing import LEAST_S, Spacing, spacing


class Time:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def session_on(tmp_path: Path, time_s: Time, **variables: str) -> Session:
    folders = {"ALLPASS_CHECKPOINT_DIR": str(tmp_path / "checkpoints"), "ALLPASS_METRICS_FILE": str(tmp_path / "m")}
    return Session({**folders, **variables}, time_s)


def writing(time_s: Time, took_s: float) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "state").write_text("weights")
        time_s.now_s += took_s

    return write


def due_after(session: Session, time_s: Time, step: int) -> float:
    """Seconds from the last save, to the second."""
    begun_s = time_s.now_s
    while not session.should_checkpoint(step):
        time_s.now_s += 1
    return time_s.now_s - begun_s


def test_without_failures_it_is_as_asked_for(tmp_path: Path) -> None:
    time_s = Time()
    session = session_on(tmp_path, time_s)
    assert due_after(session, time_s, 1) == 300
    session.save(1, writing(time_s, 2.0))
    assert due_after(session, time_s, 2) == 300


def test_where_machines_fail_every_hour_saves_are_closer(tmp_path: Path) -> None:
    """Ten seconds are assumed at first: sqrt(2 x 10 x 3600) = 268.3 s. One that takes 2 s may come every 120 s; one
    that takes 8 s every 240 s."""
    time_s = Time()
    session = session_on(tmp_path, time_s, ALLPASS_MEAN_LIFE_S="3600")
    assert due_after(session, time_s, 1) == 269
    session.save(1, writing(time_s, 2.0))
    assert due_after(session, time_s, 2) == 120
    session.save(2, writing(time_s, 8.0))
    assert due_after(session, time_s, 3) == 240


@pytest.mark.parametrize("announced", [True, False], ids=["rank 0", "another rank"])
def test_a_save_beside_the_training_counts_until_it_is_written(tmp_path: Path, *, announced: bool) -> None:
    """From when it was asked for; however quickly training went on. All ranks measure their own part."""
    time_s = Time()
    session = session_on(tmp_path, time_s, ALLPASS_MEAN_LIFE_S="3600")

    class Slow(Snapshot):
        def write(self, folder: Path) -> None:
            folder.mkdir(exist_ok=True)
            writing(time_s, 8.0)(folder)

    session.save_soon(1, Slow, announced=announced)
    session.finish_saving()
    assert session._spacing.interval_s == 240


def test_it_is_never_less_often_than_asked_for_nor_all_the_time(tmp_path: Path) -> None:
    """A template's interval is the most; and a minute, or twice what a save takes, the least."""
    time_s = Time()
    asked = session_on(tmp_path, time_s, ALLPASS_MEAN_LIFE_S="3600", ALLPASS_CHECKPOINT_INTERVAL_S="100")
    assert due_after(asked, time_s, 1) == 100
    brittle = session_on(tmp_path, time_s, ALLPASS_MEAN_LIFE_S="1")
    assert due_after(brittle, time_s, 1) == LEAST_S
    brittle.save(1, writing(time_s, 50.0))
    assert due_after(brittle, time_s, 2) == 100


@given(st.floats(1e-9, 1e6), st.floats(0, 1e12), st.floats(0, 1e6))
def test_the_interval_is_a_time(asked_s: float, mean_life_s: float, took_s: float) -> None:
    found = Spacing(asked_s, mean_life_s)
    found.saved(took_s)
    assert 0 < found.interval_s <= asked_s
    assert math.isfinite(found.interval_s)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_a_mean_life_that_is_none_is_refused(text: str) -> None:
    """The variable and its value are named."""
    with pytest.raises(ValueError, match=f"ALLPASS_MEAN_LIFE_S is '{text}'"):
        spacing("300", text)
