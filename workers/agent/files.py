"""Files below a folder that user code may write: read without being led out of it, hashed, listed.

The agent may have more rights than the user code. So what a path leads to is judged after it was opened, on the open
file itself: a link that is swapped in the middle of it gains nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Dict, Iterator, List, Optional, Tuple

from workers.agent.errors import Aborted, Unsafe

BLOCK_BYTES = 1024 * 1024
LONGEST_PATH = 512
MOST_FILES = 200_000
_SHOWN_CHARS = 200
NOTE = re.compile(r"\.(.+)\.allpass-note")  # beside a file: what `allpass.training.noted_file` says of it
_GETPATH = getattr(fcntl, "F_GETPATH", None)  # macOS


@dataclass(frozen=True)
class Piece:
    """One file: its path inside the folder (relative, `/` separated), content hash and size."""

    path: str
    sha256: str
    size_bytes: int

    def as_wire(self) -> Dict[str, object]:
        return {"path": self.path, "sha256": self.sha256, "size_bytes": self.size_bytes}


class Fence:
    """Opens files below `root` only, and, when `owner_uid` is given, only those of that user."""

    def __init__(self, root: Path, owner_uid: Optional[int]) -> None:
        self.root = root.resolve()
        self._owner_uid = owner_uid

    def open(self, path: Path) -> BinaryIO:
        """A regular file, for reading. Raises Unsafe when it is another kind, another's, or elsewhere; OSError."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            self._judge(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")

    def _judge(self, descriptor: int, path: Path) -> None:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise Unsafe(f"{path.name} is not a regular file")
        if not _real_path(descriptor, path).startswith(f"{self.root}/"):
            raise Unsafe(f"{path.name} leads out of the run's folder")
        if self._owner_uid is not None and facts.st_uid != self._owner_uid:
            raise Unsafe(f"{path.name} belongs to somebody else")

    def fingerprint(self, folder: Path, name: str, *, most_bytes: int, gone: threading.Event) -> Piece:
        """Hash and size of `folder/name` as it is now, up to `most_bytes`: a file that grows while it is read has an
        end too. Raises Aborted when `gone` is set."""
        digest, size = hashlib.sha256(), 0
        with self.open(folder / name) as file:
            while block := file.read(min(BLOCK_BYTES, most_bytes - size)):
                if gone.is_set():
                    raise Aborted("no longer wanted")
                digest.update(block)
                size += len(block)
        return Piece(name, digest.hexdigest(), size)


@contextlib.contextmanager
def folder_of(path: Path) -> Iterator[int]:
    """A descriptor of a folder that user code may replace: of the folder itself, never of what a link in its place
    leads to. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def listing(folder: Path, *, without: Tuple[str, ...] = ()) -> List[str]:
    """The files below `folder` by relative path, sorted; notes are none, and linked folders are not entered.

    `without` names folders directly below it that are left out. Raises Unsafe for a name that cannot be written down
    for everybody, and for more than `MOST_FILES`: a folder that grows while it is read has an end too; OSError for a
    folder that cannot be read, of which nothing would be known.
    """
    found: List[str] = []
    if not folder.exists():  # removed by the script
        return found
    for path in _walk(os.fspath(folder), without):
        if NOTE.fullmatch(path.rpartition("/")[2]):
            continue
        if "\\" in path or len(path) > LONGEST_PATH or not _is_text(path):
            raise Unsafe(
                f"{_shortened(path)} cannot be stored: use names in UTF-8, without backslashes, of at most "
                f"{LONGEST_PATH} characters with their folders (it has {len(path)})"
            )
        found.append(path)
    return sorted(found)


def _walk(top: str, without: Tuple[str, ...]) -> Iterator[str]:
    waiting, count = [""], 0
    while waiting:
        prefix = waiting.pop()
        with os.scandir(os.path.join(top, prefix)) as entries:  # noqa: PTH118 - checkpoints have 100,000 files
            for entry in entries:
                count += 1
                if count > MOST_FILES:
                    raise Unsafe(f"it has more than {MOST_FILES:,} files and folders, the most that can be stored")
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if prefix or entry.name not in without:
                        waiting.append(path + "/")
                elif not _leads_to_folder(entry):
                    yield path


def _leads_to_folder(entry: "os.DirEntry[str]") -> bool:
    """Of what is no folder itself."""
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:  # a link that leads to itself: whoever opens it finds out
        return False


def _shortened(path: str) -> str:
    return repr(path if len(path) <= _SHOWN_CHARS else f"{path[:_SHOWN_CHARS]}...")


def give_to(uid: Optional[int], folder: Path) -> None:
    """Make `uid` the owner of `folder` and all below it (nothing to do when it is None)."""
    if uid is None:
        return
    os.lchown(folder, uid, uid)
    for base, folders, files in os.walk(folder):
        for name in folders + files:
            os.lchown(os.path.join(base, name), uid, uid)  # noqa: PTH118 - environments have 100,000 files


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _real_path(descriptor: int, path: Path) -> str:
    if _GETPATH is not None:
        return os.fsdecode(fcntl.fcntl(descriptor, _GETPATH, bytes(1024)).rstrip(b"\0"))
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - not a path of ours
    except FileNotFoundError:  # no /proc here
        return str(path.resolve())
