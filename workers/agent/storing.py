"""Files of a run, read and sent as whole contents, each for itself: one that cannot be costs the others nothing."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from workers.agent.api import Writer, batches
from workers.agent.errors import Aborted, AgentError, Fenced, Forgotten, Full
from workers.agent.files import Fence, Piece
from workers.agent.machine import Machine
from workers.agent.pieces import Content, FilePart
from workers.agent.refusals import words_of
from workers.agent.results import Mark
from workers.agent.transfer import distinct, in_parallel, store

LATE_S = 30.0  # for what is left of a run that the server does not list any more
PATIENCE_S = 600.0  # without one file that arrives
_SETTLED_NS = 2_000_000_000  # a file that was changed so shortly before it was read may change without a sign
_BATCH = 500
_TICK_S = 0.1
_NOT_IN_TIME = "was not sent in time"


class File(NamedTuple):
    folder: Path
    fence: Fence
    mark: Mark


class Ready(NamedTuple):
    """A file as it was read."""

    file: File
    piece: Piece


class Until(threading.Event):
    """Set by itself, and by time: `patience_s` without progress, or `LATE_S` after the server has forgotten the run."""

    def __init__(self, forgotten: threading.Event, patience_s: float = PATIENCE_S) -> None:
        super().__init__()
        self._forgotten = forgotten
        self._patience_s = patience_s
        self._until_s = time.monotonic() + patience_s
        self._last_s = float("inf")
        self._is_late = False

    def progress(self) -> None:
        self._until_s = time.monotonic() + self._patience_s

    def hasten(self, most_s: float) -> None:
        """Progress or not, no longer than that from now on."""
        self._last_s = min(self._last_s, time.monotonic() + most_s)

    def is_set(self) -> bool:
        if self._forgotten.is_set() and not self._is_late:
            self._is_late = True
            self.hasten(LATE_S)
        return super().is_set() or time.monotonic() > min(self._until_s, self._last_s)

    def wait(self, timeout: Optional[float] = None) -> bool:
        return super().wait(timeout) or self.is_set()


class Storing:
    """Of one run; one pass at a time."""

    def __init__(self, machine: Machine, writer: Writer) -> None:
        self._machine = machine
        self._writer = writer
        self._known: Dict[str, Ready] = {}  # hashed, by path
        self._sent: Set[str] = set()  # contents that are in the store
        self._why_late = _NOT_IN_TIME
        self._is_shut_out = False  # the server lets this machine in no more

    def read(self, files: Mapping[str, File], until: Until) -> Tuple[Dict[str, Ready], Dict[str, str]]:
        """Each as it is now, and of those that cannot be read, why."""
        ready: Dict[str, Ready] = {}
        unread: Dict[str, str] = {}

        def read_one(path: str) -> None:
            file = files[path]
            known = self._known.get(path)
            if known is not None and known.file == file:
                ready[path] = known
                return
            begun_ns = time.time_ns()
            try:
                piece = file.fence.fingerprint(file.folder, path, most_bytes=file.mark.size_bytes, gone=until)
            except (AgentError, OSError) as error:
                unread[path] = _why_unread(error)
                return
            until.progress()
            ready[path] = Ready(file, piece)
            if begun_ns - file.mark.changed_ns > _SETTLED_NS and piece.size_bytes == file.mark.size_bytes:
                self._known[path] = ready[path]

        in_parallel(read_one, sorted(files))
        return ready, unread

    def store(
        self,
        ready: Mapping[str, Ready],
        stored: Iterable[Piece],
        until: Until,
        on_sent: Callable[[int], None] = lambda _: None,
    ) -> Dict[str, str]:
        """Send what the store lacks; why not, of those that could not be sent. `stored`: what the server was told of,
        which it keeps."""
        failed: Dict[str, str] = {}
        self._sent = {piece.sha256 for piece in stored}

        def send(paths: Sequence[str]) -> None:
            try:
                self._send([ready[path] for path in paths], until, on_sent)
            except Aborted:
                failed.update({path: self._why_late for path in paths if ready[path].piece.sha256 not in self._sent})
            except (AgentError, OSError) as error:
                if isinstance(error, Fenced) or self._is_shut_out:
                    raise
                if len(paths) == 1:
                    failed[paths[0]] = words_of(error)
                    return
                send(paths[: len(paths) // 2])  # one of them is to blame
                send(paths[len(paths) // 2 :])

        lacking = [path for path in sorted(ready) if ready[path].piece.sha256 not in self._sent]
        for batch in batches(lacking, _BATCH):
            send(batch)
        return failed

    def _send(self, ready: Sequence[Ready], until: Until, on_sent: Callable[[int], None]) -> None:
        contents = {
            one.piece.sha256: Content(
                one.file.fence,
                one.file.folder,
                one.piece.sha256,
                one.piece.size_bytes,
                (FilePart(one.piece.path, 0, one.piece.size_bytes),),
            )
            for one in ready
        }
        wanted = distinct([one.piece for one in ready])

        def note(content: Content) -> None:
            until.progress()
            self._sent.add(content.sha256)
            on_sent(content.size_bytes)

        def ask() -> Dict[str, str]:
            try:
                return self._machine.api.uploads(self._writer, wanted)
            except Forgotten:  # not a store's word about a URL
                self._is_shut_out = True
                raise

        def note_full(_: Full) -> None:
            self._why_late = "was not sent in time: the object store has no room"

        _attended(lambda: store(self._machine.transport, contents, ask, until.progress, until, note, note_full), until)
        self._sent.update(contents)


def _why_unread(error: Exception) -> str:
    if isinstance(error, Aborted):
        return _NOT_IN_TIME
    return "was removed while it was read" if isinstance(error, FileNotFoundError) else words_of(error)


def _attended(work: Callable[[], object], until: Until) -> None:
    """Do the work, but wait no longer than that for a store that does not answer. Raises what it raises, or Aborted."""
    errors: List[BaseException] = []

    def do() -> None:
        try:
            work()
        except Exception as error:  # it is raised again below
            errors.append(error)

    thread = threading.Thread(target=do, name="result", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_TICK_S)
        if thread.is_alive() and until.is_set():
            raise Aborted("a store does not answer")
    if errors:
        raise errors[0]
