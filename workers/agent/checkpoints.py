"""The checkpoints of a run on their way to the store, one after the other. The newest one always wins."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from workers.agent.api import Api, Writer
from workers.agent.early import Early
from workers.agent.errors import Aborted, AgentError, Fenced, Unsafe
from workers.agent.files import Fence, listing
from workers.agent.parts_awaited import await_parts
from workers.agent.refusals import Refusals, shown
from workers.agent.transfers import Transfers
from workers.agent.transport import Transport
from workers.agent.uploading import Candidate, Upload, Way

Marks = Dict[str, Tuple[int, int, int]]


class Uploader:
    """Uploads the newest candidate, in threads. While one is under way only the newest of the others is kept.

    The final one waits for nobody. What is under way when there is something of it gives way, unless most of that is
    stored already: then a machine that has seconds left may have it at least. What gave way is tried again should no
    final one be stored: its pieces are there.

    `before_commit` sends what was measured up to the checkpoint: a run that goes on from it never measures that again.
    `keep_up` keeps what it wrote beside it; a final one, which a move waits for, goes before that. `on_outcome` hears
    of each that is stored, and of each that never will be.
    """

    def __init__(
        self,
        api: Api,
        transport: Transport,
        writer: Writer,
        fence: Fence,
        *,
        before_commit: Callable[[], None],
        on_fenced: Callable[[], None],
        say: Callable[[str], None],
        gone: threading.Event,
        refusals: Optional[Refusals] = None,
        transfers: Optional[Transfers] = None,
        keep_up: Callable[[], None] = lambda: None,
        on_outcome: Callable[[Candidate, bool], None] = lambda *_: None,
    ) -> None:
        self._on_outcome = on_outcome
        self._way = Way(api, transport, writer, fence, transfers)
        self._refusals = refusals or Refusals(api, writer, say, gone)
        self._before_commit = before_commit
        self._keep_up = keep_up
        self._on_fenced = on_fenced
        self._say = say
        self._gone = gone
        self._changed = threading.Condition()  # guards the next six
        self._early: Optional[Early] = None
        self._pending: Optional[Candidate] = None
        self._periodic: Optional[Upload] = None  # the newest that is not final
        self._aside: Optional[Candidate] = None  # gave way
        self._finishing = False
        self.saved_after_stop = False
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, candidate: Candidate) -> None:
        with self._changed:
            self._pending = candidate
            self._changed.notify_all()
        if candidate.is_final:
            self._make_way()

    def send_early(self, early: Early) -> None:
        """The process was asked to save: its final checkpoint may travel while it is written."""
        with self._changed:
            self._early = early
        early.start(self._make_way)

    def finish(self) -> None:
        """Return when the last candidate is committed or given up."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending is not None or self._finishing)
                candidate, self._pending = self._pending, None
            if candidate is None:
                break
            self._upload(candidate)
        early = self._take_early()
        if early is not None:
            early.finish(None, {})
        self._end_periodic()

    def _upload(self, candidate: Candidate) -> None:
        """Return when it is over, or a final one waits."""
        upload = Upload(
            self._way,
            candidate,
            self._gone,
            take_early=self._take_early if candidate.is_final else lambda: None,
            is_superseded=self._is_superseded,
            before_commit=self._halt_periodic if candidate.is_final else self._before_periodic,
            on_full=lambda error: self._refuse(candidate, error),
            await_parts=self._await_parts,
        )
        if candidate.is_final:
            self._run(upload)
            return
        with self._changed:
            self._periodic = upload
        threading.Thread(target=self._run, args=(upload,), name="checkpoint", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: upload.is_over or (self._pending is not None and self._pending.is_final))

    def _run(self, upload: Upload) -> None:
        candidate = upload.candidate
        try:
            saved, sent_bytes = upload.run()
        except Aborted:
            pass
        except Fenced:
            if not upload.halt.is_set():  # else another one of ours gave the job away meanwhile
                self._on_fenced()
        except (AgentError, OSError) as error:
            if not upload.halt.is_set():
                self._refuse(candidate, error)
        else:
            sent = "" if sent_bytes == saved.size_bytes else f", {sent_bytes:,} of them new"
            self._say(f"{_name(candidate)} is stored ({len(saved.files)} files, {saved.size_bytes:,} bytes{sent})")
            with self._changed:
                self.saved_after_stop = self.saved_after_stop or candidate.after_stop
            self._on_outcome(candidate, True)
        finally:
            with self._changed:
                upload.is_over = True
                self._changed.notify_all()

    def _await_parts(self, upload: Upload, answer: Mapping[str, Any], ask: Callable[[], Mapping[str, Any]]) -> None:
        await_parts(upload, answer, ask, is_superseded=self._is_superseded, say=self._say)

    def _refuse(self, candidate: Candidate, error: Exception) -> None:
        self._on_outcome(candidate, False)
        self._refusals.tell("checkpoint", _name(candidate), candidate.step, error)

    def _make_way(self) -> None:
        """From any thread: there is something of the final checkpoint."""
        with self._changed:
            upload = self._periodic
        if upload is not None and not upload.is_nearly_through():
            self._halt(upload)

    def _before_periodic(self) -> None:
        self._keep_up()
        self._before_commit()

    def _halt_periodic(self) -> None:
        """Before the final one is committed, which gives the job away: nothing may come after it."""
        with self._changed:
            upload = self._periodic
        if upload is not None:
            self._halt(upload)
        self._before_commit()

    def _halt(self, upload: Upload) -> None:
        with self._changed:
            if not upload.is_over and not upload.halt.is_set():
                upload.halt.set()
                self._aside = upload.candidate

    def _end_periodic(self) -> None:
        """Without a final checkpoint, the newest of the others counts: the one that goes on, or that gave way."""
        with self._changed:
            if self.saved_after_stop:
                return
            upload, candidate = self._periodic, self._aside
            if upload is not None and not upload.halt.is_set():
                self._changed.wait_for(lambda: upload.is_over)
        if candidate is not None:
            self._upload(candidate)

    def _take_early(self) -> Optional[Early]:
        with self._changed:
            early, self._early = self._early, None
        return early

    def _is_superseded(self) -> bool:
        with self._changed:
            return self._pending is not None


def _name(candidate: Candidate) -> str:
    return f"checkpoint {shown(candidate.called or candidate.path.name)} of step {candidate.step}"


def inside(folder: Path, name: str) -> Path:
    """The path that a `checkpoint` line names. Raises Unsafe when it is not below `folder`."""
    path = folder / name
    if "\0" in name or ".." in path.parts or folder not in path.parents:
        raise Unsafe(f"checkpoint {shown(name)} is not below the checkpoint directory: announce a folder or file in it")
    return path


def marks(folder: Path, *, without: Tuple[str, ...]) -> Marks:
    """What tells that a file was changed: change time, size and inode, by path."""
    found: Marks = {}
    for name in listing(folder, without=without):
        try:
            facts = (folder / name).lstat()
        except FileNotFoundError:  # removed while we looked
            continue
        found[name] = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
    return found


def written_over_s(candidate: Candidate) -> float:
    """From its first file to its last one: about as long as it took to save. 0 where that cannot be told."""
    try:
        names = listing(candidate.path) if candidate.names is None else candidate.names
        times_s = [(candidate.path / name).lstat().st_mtime for name in names]
    except (OSError, Unsafe):
        return 0.0
    return max(times_s, default=0.0) - min(times_s, default=0.0)
