"""Looking through folders while others remove them."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.living import files_with, paths_below


def _machine(folder: Path) -> None:
    (folder / "root" / "lib").mkdir(parents=True)
    (folder / "root" / "lib" / "file").write_text("the token")


def test_everything_is_found(tmp_path: Path) -> None:
    """Folders and files, hidden ones too."""
    _machine(tmp_path / "a")
    (tmp_path / ".hidden").write_bytes(b"\xff the token")
    assert sorted(paths_below(tmp_path)) == sorted(tmp_path.rglob("*"))
    assert sorted(files_with("the token", tmp_path)) == [tmp_path / ".hidden", tmp_path / "a/root/lib/file"]
    assert files_with(b"\xff", tmp_path) == [tmp_path / ".hidden"]


def test_what_goes_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is wiped right after it was listed, and a file right before it is read; the rest is seen."""
    machines = tmp_path / "machines"
    for name in ("goes", "stays"):
        _machine(machines / name)
    scandir = os.scandir

    def wiped(place: str | Path) -> object:
        if Path(place) == machines / "goes":
            Path(place).rename(tmp_path / "gone")
        return scandir(place)

    monkeypatch.setattr(os, "scandir", wiped)
    assert machines / "stays/root/lib/file" in paths_below(machines)
    assert (tmp_path / "gone").exists()
    assert files_with("the token", machines) == [machines / "stays/root/lib/file"]
    read = Path.read_bytes

    def removed(path: Path) -> bytes:
        path.unlink()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", removed)
    assert files_with("the token", machines) == []
    assert not (machines / "stays/root/lib/file").exists()


def test_machines_that_come_and_go_disturb_nobody(tmp_path: Path) -> None:
    """A hundred looks while a folder is made and removed all the time."""
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            _machine(tmp_path / "one")
            shutil.rmtree(tmp_path / "one")

    busy = threading.Thread(target=come_and_go)
    busy.start()
    try:
        for _ in range(100):
            files_with("the token", tmp_path)
    finally:
        over.set()
        busy.join()


def test_a_folder_that_is_not_there_is_no_clean_one(tmp_path: Path) -> None:
    """Whoever looks for a secret in the wrong place finds none."""
    with pytest.raises(FileNotFoundError):
        files_with("the token", tmp_path / "wrong")


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(5, "input/output error")])
def test_what_cannot_be_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    """It may hold what is looked for."""
    _machine(tmp_path / "a")

    def refused(place: str) -> object:
        raise error

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(type(error)):
        paths_below(tmp_path)
