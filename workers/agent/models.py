"""Files of hub models that this machine has downloaded, kept for the next run of the same project.

folder/<hash of the project>/<model>/<hash of a file>      the agent's own, read-only; nobody else can enter the folder

The hub's library keeps what a run downloads in the run's home, each file under the name of its hash (a *blob*), with
links that say which of them a model consists of. When a run is over, blobs that are what their names say are moved
here. A run that begins finds those of its project where the library looks, as second names of the files here. It asks
the hub which files a model has, as ever, and downloads those that are not there. Links are never kept: so no run can
make another one read anything else than what the hub names.

Models are forgotten as a whole, the least recently used first. A run that reads one keeps its files.
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
from typing import TYPE_CHECKING, Any, BinaryIO, ContextManager, Iterator, List, Mapping, Optional, Tuple

from workers.agent.errors import Unsafe
from workers.agent.turns import Turns

if TYPE_CHECKING:  # else loaded with what runs need: the agent's first call waits for nothing
    from workers.agent.files import Fence
    from workers.agent.workspace import Workspace

LEAST_FREE_BYTES = 4 * 1024**3  # of the disk: below that, room belongs to runs
_BLOCK_BYTES = 1024 * 1024
_CACHE = (".cache", "huggingface", "hub")  # below a home
_MODEL = re.compile(r"models--[A-Za-z0-9_.-]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PROJECT = re.compile(r"[0-9a-f]{64}")
_Key = Tuple[str, str]  # folder of the project, folder of the model


def model_of(spec: Mapping[str, Any]) -> Optional[str]:
    """The hub's name of the model that a run, or a job to come, will load, as far as its parameters say; not of one in
    a folder."""
    parameters = spec.get("parameters")
    named = spec.get("model") or (parameters.get("model") if isinstance(parameters, dict) else None)
    return named if isinstance(named, str) and _NAME.fullmatch(named) else None


class Models:
    """At most `most_bytes` below `folder`; 0: nothing is kept. Thread-safe, for one agent at a time."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._turns = Turns()
        self._lock = threading.Lock()  # guards all below, and the names below `folder`
        self._sizes: "OrderedDict[_Key, int]" = OrderedDict()  # the least recently used first
        self._used_ns = 0  # the last use, as folders tell it

    def open(self) -> None:
        """Take over what an earlier agent kept, in its order."""
        with self._lock, contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            found = []
            for path in self._folder.glob("*/*"):
                if path.is_dir() and _MODEL.fullmatch(path.name) and _PROJECT.fullmatch(path.parent.name):
                    size_bytes = sum(blob.stat().st_size for blob in path.iterdir())
                    found.append((path.stat().st_mtime_ns, (path.parent.name, path.name), size_bytes))
            for self._used_ns, key, size_bytes in sorted(found):
                self._sizes[key] = size_bytes
            self._shrink()

    def turn(self, project_id: str, model: str, gone: threading.Event) -> ContextManager[None]:
        """Whoever fetches a model ahead does so in here, and a run that needs it waits for that. Raises Aborted,
        without having had its turn, once `gone` is set."""
        return self._turns.turn((project_id, model), gone)

    def is_coming(self, project_id: str, model: str) -> bool:
        """Whether somebody has the turn."""
        return self._turns.is_taken((project_id, model))

    def room_bytes(self) -> int:
        """How large a model may be that is fetched ahead."""
        with contextlib.suppress(OSError):
            return max(0, min(self._most_bytes, shutil.disk_usage(self._folder).free - LEAST_FREE_BYTES))
        return 0

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._most_bytes > 0

    def lend(self, project_id: str, workspace: Workspace) -> None:
        """Give the run's home second names of all that is kept for its project. Its folders are its user's already: no
        link that is there is followed."""
        with self._lock, contextlib.suppress(OSError):
            kept = [model for project, model in self._sizes if project == _project(project_id)]
            if not kept:
                return
            with _opened(workspace.home, _CACHE, workspace.uid) as cache:
                for model in kept:
                    with _opened_in(cache, (model, "blobs"), workspace.uid) as blobs:
                        _link_all(self._folder / _project(project_id) / model, blobs)

    def gather(self, project_id: str, workspace: Workspace, gone: threading.Event) -> None:
        """Keep what a run has downloaded, all of whose processes are gone. Stops once `gone` is set."""
        cache = workspace.home.joinpath(*_CACHE)
        with contextlib.suppress(OSError):
            for model in sorted(cache.glob("models--*")) if self.keeps else ():
                if _MODEL.fullmatch(model.name):
                    self._gather_model((_project(project_id), model.name), model, workspace.fence(), gone)

    def _gather_model(self, key: _Key, model: Path, fence: Fence, gone: threading.Event) -> None:
        blobs = sorted(blob for blob in model.glob("blobs/*") if blob.is_file())
        if sum(blob.stat().st_size for blob in blobs) > self._most_bytes:
            return  # rather than the others
        for blob in blobs:
            with contextlib.suppress(OSError, Unsafe):
                self._keep(fence, key, blob, gone)
        if (model / "snapshots").is_dir():  # not just lent, but used
            with self._lock:
                self._touch(key)

    def _keep(self, fence: Fence, key: _Key, blob: Path, gone: threading.Event) -> None:
        target = self._folder.joinpath(*key, blob.name)
        if not _BLOB.fullmatch(blob.name) or target.exists():
            return
        with fence.open(blob) as file:
            facts = os.fstat(file.fileno())
            if facts.st_nlink != 1 or not facts.st_size:
                return
            os.fchown(file.fileno(), os.getuid(), os.getgid())
            os.fchmod(file.fileno(), 0o444)
            if not _is_named_for(file, blob.name, facts.st_size, gone):
                return
        with self._lock:
            target.parent.mkdir(parents=True, exist_ok=True)
            blob.resolve(strict=True).replace(target)  # whole or not at all, also for an agent that dies
            self._sizes[key] = self._sizes.get(key, 0) + facts.st_size
            self._touch(key)
            self._shrink()

    # All below with the lock.

    def _touch(self, key: _Key) -> None:
        if key in self._sizes:
            self._sizes.move_to_end(key)
            self._used_ns = max(time.time_ns(), self._used_ns + 1)
            os.utime(self._folder.joinpath(*key), ns=(self._used_ns, self._used_ns))  # the order, for the next agent

    def _shrink(self) -> None:
        while self._sizes and (
            sum(self._sizes.values()) > self._most_bytes or shutil.disk_usage(self._folder).free < LEAST_FREE_BYTES
        ):
            key, _ = self._sizes.popitem(last=False)
            shutil.rmtree(self._folder.joinpath(*key), ignore_errors=True)


@contextlib.contextmanager
def _opened(root: Path, names: Tuple[str, ...], uid: Optional[int]) -> Iterator[int]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with _opened_in(descriptor, names, uid) as found:
            yield found
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened_in(folder: int, names: Tuple[str, ...], uid: Optional[int]) -> Iterator[int]:
    """A folder below an open one, made where it is missing, as that user's. No link on the way is followed."""
    opened: List[int] = []
    try:
        for name in names:
            above = opened[-1] if opened else folder
            made = True
            try:
                os.mkdir(name, 0o700, dir_fd=above)
            except FileExistsError:
                made = False
            opened.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above))
            if made and uid is not None:
                os.fchown(opened[-1], uid, uid)
        yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _link_all(kept: Path, folder: int) -> None:
    for blob in kept.iterdir():
        with contextlib.suppress(FileExistsError):
            os.link(blob, blob.name, dst_dir_fd=folder, follow_symlinks=False)


def _is_named_for(file: BinaryIO, name: str, size_bytes: int, gone: threading.Event) -> bool:
    """Large files are named for their sha256, others as git names them."""
    import hashlib

    digest = hashlib.sha256() if len(name) == 64 else hashlib.sha1(b"blob %d\0" % size_bytes)  # noqa: S324 - git's
    for block in iter(lambda: file.read(_BLOCK_BYTES), b""):
        if gone.is_set():
            return False
        digest.update(block)
    return digest.hexdigest() == name


def _project(project_id: str) -> str:
    import hashlib

    return hashlib.sha256(project_id.encode()).hexdigest()
