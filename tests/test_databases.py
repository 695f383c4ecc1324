"""Where the tests keep their databases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import databases
from tests.databases import server_folder


def test_a_server_has_its_files_in_memory_where_that_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere on the disk."""
    monkeypatch.setattr(databases, "_LEAST_FREE_BYTES", 1)
    with server_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
    monkeypatch.setattr(databases, "_LEAST_FREE_BYTES", 2**62)
    for memory in (tmp_path, tmp_path / "none"):
        with server_folder(memory) as folder:
            assert tmp_path not in folder.parents
        assert not folder.exists()


def test_what_a_killed_run_left_there_goes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is not filled by runs that never come to their end, and no run loses its own."""
    monkeypatch.setattr(databases, "_LEAST_FREE_BYTES", 1)
    of_nobody = 2**22 + 1  # no process has an id above 2**22
    left, own, other = (tmp_path / f"{databases._PREFIX}{pid}-x" for pid in (of_nobody, os.getpid(), 1))
    for folder in (left, own, other, tmp_path / "of-others"):
        folder.mkdir()
    with server_folder(tmp_path):
        assert not left.exists()
        assert own.exists() and other.exists() and (tmp_path / "of-others").exists()
