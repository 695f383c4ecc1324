"""Checkpoints on their way to the store: hashed, opened, sent, committed. The newest one always wins."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Collection, Dict, List, Optional, Sequence, Set, Tuple

from workers.agent.api import Api, Writer
from workers.agent.early import Early
from workers.agent.errors import Aborted, AgentError, Changed, Fenced, Forgotten, Refused, Unsafe
from workers.agent.files import Fence, listing
from workers.agent.pieces import Content, Cut, cut, sha256_of
from workers.agent.transfer import in_parallel, store
from workers.agent.transport import Transport

MOST_FILES = 10_000
Marks = Dict[str, Tuple[int, int, int]]


@dataclass(frozen=True)
class Candidate:
    """A complete folder (or file). `names`: its files, when only some of the folder's belong to it."""

    path: Path
    step: int
    metrics: Dict[str, float] = field(default_factory=dict)
    after_stop: bool = False
    names: Optional[List[str]] = None


class Uploader:
    """One thread that uploads the newest candidate. While it is busy only the newest of the others is kept.

    `before_commit` sends what was measured up to the checkpoint: a run that goes on from it never measures that again.
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
    ) -> None:
        self._api = api
        self._before_commit = before_commit
        self._transport = transport
        self._writer = writer
        self._fence = fence
        self._on_fenced = on_fenced
        self._say = say
        self._gone = gone
        self._changed = threading.Condition()  # guards the next four
        self._early: Optional[Early] = None
        self._pending: Optional[Candidate] = None
        self._finishing = False
        self.saved_after_stop = False
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, candidate: Candidate) -> None:
        with self._changed:
            self._pending = candidate
            self._changed.notify_all()

    def send_early(self, early: Early) -> None:
        """The process was asked to save: its final checkpoint may travel while it is written."""
        early.start()
        with self._changed:
            self._early = early

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
                self._finish_early(None)
                return
            self._upload(candidate)

    def _upload(self, candidate: Candidate) -> None:
        name = f"checkpoint {candidate.path.name} of step {candidate.step}"
        try:
            saved, sent_bytes = self._store(candidate)
        except Fenced:
            self._on_fenced()
        except Aborted:
            return
        except (AgentError, OSError) as error:
            self._say(f"{name} was not stored: {error}")
        else:
            sent = "" if sent_bytes == saved.size_bytes else f", {sent_bytes:,} of them new"
            self._say(f"{name} is stored ({len(saved.files)} files, {saved.size_bytes:,} bytes{sent})")
            with self._changed:
                self.saved_after_stop = self.saved_after_stop or candidate.after_stop

    def _store(self, candidate: Candidate) -> Tuple[Cut, int]:
        """What was stored, and how many bytes of it were sent. Notes that turn out wrong cost a second try."""
        saved = in_pieces(self._fence, candidate, self._gone)
        sent = self._finish_early(saved) if candidate.after_stop else set()
        sent_bytes = sum(one.size_bytes for sha256, one in saved.contents.items() if sha256 in sent)
        try:
            return saved, sent_bytes + self._commit(candidate, saved, sent)
        except (Fenced, Forgotten):
            raise
        except (Refused, Changed):
            if not saved.unproven:
                raise
        saved = in_pieces(self._fence, candidate, self._gone, believing=False)
        return saved, self._commit(candidate, saved)

    def _finish_early(self, saved: Optional[Cut]) -> Set[str]:
        with self._changed:
            early, self._early = self._early, None
        return set() if early is None else early.finish(saved)

    def _commit(self, candidate: Candidate, saved: Cut, sent: Collection[str] = ()) -> int:
        """The number of bytes that were sent, besides those of the pieces `sent`."""
        opened: List[str] = []
        # Until the store has taken these very bytes under that name, or we have read them.
        unproven = set(saved.unproven).difference(sent)

        def ask() -> Dict[str, str]:
            if opened and self._is_superseded():
                raise Aborted("a newer checkpoint waits")
            answer = self._api.open_checkpoint(
                self._writer,
                step=candidate.step,
                files=[file.as_wire() for file in saved.files],
                metrics=candidate.metrics,
            )
            opened[:] = [answer["checkpoint_id"]]
            urls: Dict[str, str] = answer["urls"]
            unproven.difference_update(urls)
            return urls

        def confirm() -> None:
            prove([saved.contents[sha256] for sha256 in sorted(unproven)], self._gone)
            unproven.clear()
            self._before_commit()
            self._api.commit_checkpoint(self._writer, opened[0], final=candidate.after_stop)

        return store(self._transport, saved.contents, ask, confirm, self._gone)

    def _is_superseded(self) -> bool:
        with self._changed:
            return self._pending is not None


def in_pieces(fence: Fence, candidate: Candidate, gone: threading.Event, *, believing: bool = True) -> Cut:
    """The candidate's files, cut and hashed; `believing` what their writer has hashed.

    Raises Unsafe when there is nothing in it, too much, or something that may not be read; Changed, Aborted; OSError.
    """
    if candidate.path.is_dir():
        folder = candidate.path
        names = listing(folder) if candidate.names is None else candidate.names
    else:
        folder, names = candidate.path.parent, [candidate.path.name]
    if not names:
        raise Unsafe("the folder is empty")
    if len(names) > MOST_FILES:
        raise Unsafe(f"it has {len(names)} files; at most {MOST_FILES} can be stored")
    return cut(fence, folder, names, gone, believing=believing)


def prove(contents: Sequence[Content], gone: threading.Event) -> None:
    """Raises Changed when the bytes of one have another hash than its note says; Unsafe, Aborted; OSError."""

    def check(content: Content) -> None:
        if sha256_of(content.fence, content.folder, content.parts, gone) != content.sha256:
            raise Changed(f"{content.parts[0].name} is not what its note says")

    in_parallel(check, contents)


def inside(folder: Path, name: str) -> Path:
    """The path that a `checkpoint` line names. Raises Unsafe when it is not below `folder`."""
    path = folder / name
    if "\0" in name or ".." in path.parts or folder not in path.parents:
        raise Unsafe(f"checkpoint {name!r} is not below the checkpoint directory")
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
