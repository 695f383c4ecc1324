"""Which GPUs a training is to have, by the file that says so: whatever is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allpass.training.elastic.wanted_gpus import FILE, MOST, WantedGpus


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "gpus.json"
    monkeypatch.setenv(FILE, str(path))
    return path


def test_they_stay_until_something_is_said(file: Path) -> None:
    """And go on so when the file is taken away again."""
    wanted = WantedGpus.of(["0", "1"], may_change=True)
    wanted.look()
    assert wanted.names == ("0", "1")
    file.write_text('["0", "3", "1"]')
    wanted.look()
    assert wanted.names == ("0", "3", "1")
    file.unlink()
    wanted.look()
    assert wanted.names == ("0", "3", "1")


@pytest.mark.parametrize(
    "told",
    [
        "", "{", "null", "3", '"0"', "[]", '["1"]', '["1", "0"]', '["0", "0"]', '["0", 1]', '["0", ""]', '{"0": 1}',
        json.dumps([str(number) for number in range(MOST + 1)]), "\x00", '["0", "' + "x" * 10_000 + '"', "[" * 100_000,
    ],
)  # fmt: skip
def test_what_makes_no_sense_changes_nothing(file: Path, capfd: pytest.CaptureFixture[str], told: str) -> None:
    """It is told once, shortly; what comes after it counts."""
    wanted = WantedGpus.of(["0", "1"], may_change=True)
    file.write_text(told)
    for _ in range(3):
        wanted.look()
    assert wanted.names == ("0", "1")
    said = capfd.readouterr().err
    assert said.count("training: its GPUs stay as they are: ") == 1
    assert len(said) < 400
    file.write_text('["0"]')
    wanted.look()
    assert wanted.names == ("0",)


def test_bytes_that_are_no_text_change_nothing(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As after a disk has lost them."""
    wanted = WantedGpus.of(["0"], may_change=True)
    file.write_bytes(b"\xff\xfe\xff")
    wanted.look()
    assert wanted.names == ("0",)
    assert "its GPUs stay as they are" in capfd.readouterr().err


def test_a_training_that_cannot_change_does_not_look(file: Path) -> None:
    """One of an earlier edition, whose bytes depend on its single process."""
    file.write_text('["0", "1"]')
    wanted = WantedGpus.of(["0"], may_change=False)
    wanted.look()
    assert not wanted.may_change
    assert wanted.names == ("0",)


def test_where_nobody_may_say_anything_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of an agent from before."""
    monkeypatch.delenv(FILE, raising=False)
    assert not WantedGpus.of(["0"], may_change=True).may_change


def test_one_on_which_nothing_can_begin_is_given_up(file: Path) -> None:
    """Until it is asked for again."""
    wanted = WantedGpus.of(["0", "1"], may_change=True)
    wanted.give_up("1")
    wanted.look()
    assert wanted.names == ("0",)
    file.write_text('["0", "1"]')
    wanted.look()
    assert wanted.names == ("0", "1")
