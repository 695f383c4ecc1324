"""One object on its way to the disk: written aside, checked, made durable, then renamed into place.

The methods block, and are for one thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from app.errors import ObjectCorrupt, StoreUnavailable

INCOMING_FOLDER = ".incoming"
STORE_FULL = "store_full"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class IncomingFile:
    """A temporary file that becomes an object or disappears.

    It is locked (flock) while its writer lives, so that a sweep by another process, or after a crash, can tell a
    file in use from a leftover.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._given_up = False
        self._path: Path | None = None
        self._fd = -1
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append. Raises StoreUnavailable (code `store_full` when there is no room)."""
        with disk_errors("writing an upload"):
            self._open()
            self._hash.update(data)
            self.size_bytes += len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]

    def commit(self, target: Path, *, sha256: str, size_bytes: int) -> None:
        """Check size and hash, make the bytes durable and let them appear under `target` at once.

        Raises ObjectCorrupt (nothing is stored) and StoreUnavailable.
        """
        with disk_errors("finishing an upload"):
            path = self._open()
            if self.size_bytes != size_bytes:
                raise ObjectCorrupt(f"{size_bytes} bytes were promised, {self.size_bytes} came", param="size_bytes")
            if self._hash.hexdigest() != sha256:
                raise ObjectCorrupt(
                    f"sha256 {sha256} was promised, the bytes have {self._hash.hexdigest()}", param="sha256"
                )
            os.fsync(self._fd)
            _make_folder(target.parent, self._root)
            path.rename(target)
            self._path = None
            _fsync_folder(target.parent)

    def discard(self) -> None:
        """Remove what is left and refuse further calls. Harmless after `commit` and when repeated."""
        self._given_up = True
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> Path:
        """Created on first use, so that every path on disk belongs to an object that somebody will discard."""
        if self._given_up:
            raise StoreUnavailable("the upload was given up")
        if self._path is None:
            self._path, self._fd = _create_locked(self._root / INCOMING_FOLDER)
        return self._path


def sweep(root: Path) -> int:
    """Delete the temporary files of writers that died; answers how many."""
    swept = 0
    folder = root / INCOMING_FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            swept += 1
    return swept


@contextlib.contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """Turn the file system's errors into ours, the cause chained."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            message = f"no room left in the object store while {action}: free some space, then retry"
            raise StoreUnavailable(message, code=STORE_FULL) from error
        raise StoreUnavailable(f"the object store's disk failed while {action}: {error}") from error


def _create_locked(folder: Path) -> tuple[Path, int]:
    """A new file that no sweep takes for a leftover: locked, and still in its place after locking."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        path = folder / f"{secrets.token_hex(16)}.part"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if path.exists():
            return path, fd
        os.close(fd)  # a sweep came between creating and locking


def _make_folder(folder: Path, root: Path) -> None:
    """Create a folder below `root` so that it survives a power cut: each parent that gained a child is synced."""
    missing = []
    while folder != root and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for child in reversed(missing):
        child.mkdir(exist_ok=True)
        _fsync_folder(child.parent)


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
