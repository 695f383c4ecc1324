"""The data directory of a one-machine stack: ours alone, one owner at a time, secrets that stay."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from app.errors import Conflict, Unavailable
from app.stack.layout import StackPaths
from app.stack.supervisor import check_port_is_free, free_port


def test_only_one_stack_holds_a_data_directory(tmp_path: Path) -> None:
    """The second one is told who has it and what to do; when the first lets go, it can have it."""
    layout = StackPaths(tmp_path / "data")
    layout.create()
    held = layout.lock()
    with pytest.raises(Conflict, match=r"is in use by another Allpass \(process \d+\).*--data-dir"):
        layout.lock()
    held.close()
    layout.lock().close()


def test_secrets_are_made_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    """A restart finds the same secrets: signed URLs, node tokens and machines stay valid."""
    layout = StackPaths(tmp_path / "data")
    layout.create()
    first = layout.secrets()
    assert set(first) == {"secret_key", "objects_signing_key", "local_cloud_key"}
    assert all(len(secret) == 64 for secret in first.values())
    assert StackPaths(tmp_path / "data").secrets() == first
    assert stat.S_IMODE((layout.root / "secrets.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("is_root", [True, False])
def test_what_the_service_keeps_is_open_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_root: bool
) -> None:
    """Others pass through to the folders of machines, where code of theirs runs as other users, and cannot even list
    what is on the way; a directory that an earlier version made is mended."""
    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    layout = StackPaths(tmp_path / "data")
    for folder in (layout.root, layout.objects, layout.logs):
        folder.mkdir(mode=0o755)
    layout.create()
    layout.lock().close()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (layout.root, *layout.root.iterdir())}
    way = 0o711 if is_root else 0o700
    ours = {"objects": 0o700, "logs": 0o700, "postgres": 0o700, "lock": 0o600}
    assert modes == {"data": way, "cloud": way, "emulated": way, **ours}


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file in the way gives an error with the path and the option, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"file/data cannot be written .*--data-dir"):
        StackPaths(tmp_path / "file" / "data").create()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("step", ["lock", "secrets"])
def test_a_data_directory_that_fills_up_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    """The error names the directory and the fix, and nothing half-written is taken for whole afterwards."""
    layout = StackPaths(tmp_path / "data")
    layout.create()

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open" if step == "lock" else "write_text", refused)
        with pytest.raises(Unavailable, match=rf"data cannot be written \({os.strerror(number)}\).*--data-dir") as told:
            getattr(layout, step)()
    assert ("free some space" in told.value.message) is (number == errno.ENOSPC)
    assert not (layout.root / "secrets.json").exists()
    with layout.lock():
        assert set(layout.secrets()) == {"secret_key", "objects_signing_key", "local_cloud_key"}


def test_a_port_in_use_is_told_before_anything_starts() -> None:
    """The error names the port and the option."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=rf"port {port} is in use.*--port"):
            check_port_is_free(port)
    check_port_is_free(free_port())
