"""What runs of this machine fetched by hash and never change, kept on disk for the next run of the same project.

folder/<hash of the project>/<sha256>      the agent's own, read-only; nobody else can enter the folder

A content is known by project and hash together: a run finds only what runs of its own project had, and cannot tell
what others had. Whatever fails here (a full disk, a file that is gone) costs a download, and never the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import ContextManager, Tuple

from workers.agent.turns import Turns

LEAST_FREE_BYTES = 1024**3  # of the disk: below that, room belongs to runs
_BLOCK_BYTES = 1024 * 1024
_NAME = re.compile(r"[0-9a-f]{64}")
_Key = Tuple[str, str]  # folder of the project, sha256


class ContentCache:
    """At most `most_bytes` below `folder`, the least recently used going first; 0: nothing is kept.

    Thread-safe, for one agent at a time. Nothing is found before it was opened.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._lock = threading.Lock()  # guards the next three and the names below `folder`
        self._sizes: "OrderedDict[_Key, int]" = OrderedDict()  # the least recently used first
        self._total_bytes = 0
        self._used_ns = 0  # the last use, as files tell it
        self._turns = Turns()

    def open(self) -> None:
        """Take over what an earlier agent kept, in its order, and remove what is not whole or too much."""
        with self._lock, contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            found = []
            for path in (*self._folder.glob("*"), *self._folder.glob("*/*")):
                if _is_content(path):
                    facts = path.stat()
                    found.append((facts.st_mtime_ns, (path.parent.name, path.name), facts.st_size))
                elif not (path.parent == self._folder and _is_project(path)):
                    _remove(path)
            for used_ns, key, size_bytes in sorted(found):
                self._note(key, size_bytes)
                self._used_ns = used_ns
            self._shrink(self._most_bytes)

    def turn(self, project_id: str, sha256: str, gone: threading.Event) -> ContextManager[None]:
        """Whoever fetches a content does so in here, after a look for it: one at a time, so that those who come
        meanwhile find it. Raises Aborted, without having had its turn, once `gone` is set."""
        return self._turns.turn(_key(project_id, sha256), gone)

    def has(self, project_id: str, sha256: str) -> bool:
        """Whether it is here, as far as is known without reading it."""
        with self._lock:
            return _key(project_id, sha256) in self._sizes

    def has_room(self, size_bytes: int) -> bool:
        """Whether a content of that size would be kept."""
        with contextlib.suppress(OSError):
            left_bytes = shutil.disk_usage(self._folder).free - size_bytes
            return 0 < size_bytes <= self._most_bytes and left_bytes >= LEAST_FREE_BYTES
        return False

    def take(self, project_id: str, sha256: str, target: Path) -> bool:
        """Make `target` that content, for reading only; False when it is not here, or not any more what it was.

        `target` is the kept file under a second name, so it must be where user code cannot write.
        """
        key = _key(project_id, sha256)
        with self._lock:
            if key not in self._sizes:
                return False
        with contextlib.suppress(OSError):
            target.unlink(missing_ok=True)
            os.link(self._path(key), target)  # it stays whoever forgets the other name meanwhile
            if _sha256(target) == sha256:
                with self._lock:
                    self._touch(key)
                return True
        with self._lock, contextlib.suppress(OSError):
            self._forget(key)
        with contextlib.suppress(OSError):
            target.unlink()
        return False

    def keep(self, project_id: str, sha256: str, file: Path) -> None:
        """`file`, whose hash was verified, is not needed any more: it is moved here, or removed."""
        key = _key(project_id, sha256)
        with self._lock, contextlib.suppress(OSError):
            if key in self._sizes:
                self._touch(key)
            else:
                self._put(key, file)
        with contextlib.suppress(OSError):
            file.unlink()

    # All below with the lock.

    def _put(self, key: _Key, file: Path) -> None:
        size_bytes = file.stat().st_size
        if not 0 < size_bytes <= self._most_bytes:
            return
        if shutil.disk_usage(self._folder).free < LEAST_FREE_BYTES:
            self._shrink(0)
            return
        self._shrink(self._most_bytes - size_bytes)
        self._path(key).parent.mkdir(mode=0o700, exist_ok=True)
        file.chmod(0o400)
        file.replace(self._path(key))  # whole or not at all, also for an agent that dies
        self._note(key, size_bytes)
        self._touch(key)

    def _shrink(self, most_bytes: int) -> None:
        while self._total_bytes > most_bytes:
            self._forget(next(iter(self._sizes)))

    def _note(self, key: _Key, size_bytes: int) -> None:
        self._sizes[key] = size_bytes
        self._total_bytes += size_bytes

    def _touch(self, key: _Key) -> None:
        if key in self._sizes:
            self._sizes.move_to_end(key)
            with contextlib.suppress(OSError):
                self._used_ns = max(time.time_ns(), self._used_ns + 1)
                os.utime(self._path(key), ns=(self._used_ns, self._used_ns))  # the order, for the next agent

    def _forget(self, key: _Key) -> None:
        self._total_bytes -= self._sizes.pop(key, 0)
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: _Key) -> Path:
        return self._folder.joinpath(*key)


def _is_content(path: Path) -> bool:
    return _is_project(path.parent) and bool(_NAME.fullmatch(path.name)) and path.is_file() and not path.is_symlink()


def _is_project(path: Path) -> bool:
    return bool(_NAME.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _key(project_id: str, sha256: str) -> _Key:
    import hashlib  # with what else runs need: the agent's first call waits for nothing

    return hashlib.sha256(project_id.encode()).hexdigest(), sha256


def _sha256(path: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(_BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()
