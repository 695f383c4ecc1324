"""What Windows does otherwise, played here: it was never run there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from allpass.training import checkpoints


def test_what_cannot_be_opened_there_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders have no handle, and a file is synced by one that may write."""
    folder = tmp_path / "step-1"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "state.json").write_text("{}")
    real, flags = os.open, []

    def opened(path: Any, how: int, *rest: Any) -> int:
        assert not Path(path).is_dir(), "PermissionError there"
        flags.append(how)
        return real(path, how, *rest)

    monkeypatch.setattr(checkpoints, "_ON_WINDOWS", True)
    monkeypatch.setattr(os, "open", opened)
    checkpoints.sync_tree(folder)
    assert flags == [os.O_RDWR]
