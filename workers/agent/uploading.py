"""One checkpoint on its way to the store: hashed, opened, sent, committed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from workers.agent.api import Api, Writer
from workers.agent.early import Early
from workers.agent.errors import Aborted, Changed, Fenced, Forgotten, Full, Refused, Unsafe
from workers.agent.files import Fence, listing
from workers.agent.patience import Halt
from workers.agent.pieces import LISTED_ABOVE, Content, CutFolder, cut, sha256_of
from workers.agent.transfer import FRESH_S, in_parallel, store
from workers.agent.transfers import TransferProgress, Transfers
from workers.agent.transport import Transport


@dataclass(frozen=True)
class Candidate:
    """A complete folder (or file). `names`: its files, when only some of the folder's belong to it.

    `after_stop`: it came after the request to stop. `overtaken`: the training had gone on by then. `called`: its name
    for people, where that of the path says nothing. `part_of`: of so many machines that each write a part of it, of
    which this is one; 0: it is whole.
    """

    path: Path
    step: int
    metrics: Dict[str, float] = field(default_factory=dict)
    after_stop: bool = False
    names: Optional[List[str]] = None
    overtaken: bool = False
    called: str = ""
    part_of: int = 0

    @property
    def is_final(self) -> bool:
        """The job may go on elsewhere from it at once, and loses no step."""
        return self.after_stop and not self.overtaken


AwaitParts = Callable[["Upload", Mapping[str, Any], Callable[[], Mapping[str, Any]]], None]


class Way(NamedTuple):
    """Where checkpoints of a run go, and who may read them."""

    api: Api
    transport: Transport
    writer: Writer
    fence: Fence
    transfers: Optional[Transfers] = None


class Upload:
    """A candidate's upload, for one thread; `halt` it, and ask it, from any.

    `take_early` is called once, when the manifest is open: who has sent pieces before. `is_superseded`: whether a newer
    candidate waits, for which a repeated try is given up. `before_commit` may raise as well. `on_full` is called once,
    when the store has no room: that is waited for. `await_parts` returns when what was committed is a checkpoint: it is
    given the answer, and how to ask again, for a part.
    """

    def __init__(
        self,
        way: Way,
        candidate: Candidate,
        gone: threading.Event,
        *,
        take_early: Callable[[], Optional[Early]],
        is_superseded: Callable[[], bool],
        before_commit: Callable[[], None],
        on_full: Callable[[Full], None] = lambda _: None,
        await_parts: Optional[AwaitParts] = None,
    ) -> None:
        self.candidate = candidate
        self.halt = Halt(gone)
        self.is_over = False  # kept by whoever runs it
        self._way = way
        self._take_early = take_early
        self._is_superseded = is_superseded
        self._before_commit = before_commit
        self._on_full = on_full
        self._await_parts = await_parts
        self._is_full = False
        self._sending: Optional[TransferProgress] = None
        self._lock = threading.Lock()  # guards the next
        self._left_bytes: Optional[int] = None  # to be sent; None: not known yet
        self._size_bytes = 0

    def is_nearly_through(self) -> bool:
        """Most of its bytes are in the store."""
        with self._lock:
            return self._left_bytes is not None and 2 * self._left_bytes < self._size_bytes

    def run(self) -> Tuple[CutFolder, int]:
        """What was stored, and how many bytes of it were sent. Notes that turn out wrong cost a second try.

        Raises Aborted when it was halted, Fenced, Refused and all other AgentErrors; OSError.
        """
        try:
            saved = self._in_pieces(believing=True)
            try:
                return saved, self._commit(saved)
            except (Fenced, Forgotten):
                raise
            except (Refused, Changed):
                if not saved.unproven:
                    raise
            saved = self._in_pieces(believing=False)
            return saved, self._commit(saved)
        finally:
            if self._sending is not None and self._way.transfers is not None:
                self._way.transfers.over(self._sending)

    def _in_pieces(self, *, believing: bool) -> CutFolder:
        way = self._way
        return in_pieces(way.fence, self.candidate, self.halt, believing=believing, transfers=way.transfers)

    def _commit(self, saved: CutFolder) -> int:
        """The number of bytes that were sent, early ones too."""
        opened: List[str] = []
        sent_early: Set[str] = set()
        # Until the store has taken these very bytes under that name, or we have read them.
        unproven = set(saved.unproven)

        def ask() -> Dict[str, str]:
            if opened and self._is_superseded():
                raise Aborted("a newer checkpoint waits")
            urls = open_it()
            early = self._take_early()
            if early is not None:
                begun_s = time.monotonic()
                self._note_left(saved, urls)
                sent_early.update(early.finish(saved, urls, self._note_early))
                unproven.difference_update(sent_early)
                if time.monotonic() - begun_s > FRESH_S and not urls.keys() <= sent_early:
                    urls = open_it()
            lacking = {sha256: url for sha256, url in urls.items() if sha256 not in sent_early}
            self._note_left(saved, lacking)
            return lacking

        def open_it() -> Dict[str, str]:
            candidate = self.candidate
            try:
                answer = self._way.api.open_checkpoint(
                    self._way.writer,
                    step=candidate.step,
                    told=saved.as_wire(),
                    metrics=candidate.metrics,
                    part=bool(candidate.part_of),
                )
            except Refused as error:
                if saved.is_listed and error.param == "listing":  # it knows no such field
                    count = len(saved.files)
                    words = f"it has {count:,} files, and this server takes {LISTED_ABOVE:,}: pack them"
                    raise Unsafe(words) from error
                raise
            if candidate.part_of and not answer.get("part"):  # it would take the part for all of it
                raise Unsafe("this server does not put parts of several machines together")
            opened[:] = [answer["checkpoint_id"]]
            urls: Dict[str, str] = answer["urls"]
            unproven.difference_update(urls)
            return urls

        def confirm() -> None:
            prove([saved.contents[sha256] for sha256 in sorted(unproven)], self.halt)
            unproven.clear()
            self._before_commit()
            if self.halt.is_set():
                raise Aborted("no longer wanted")
            answer = commit()
            if self.candidate.part_of and self._await_parts is not None:
                self._await_parts(self, answer, commit)

        def commit() -> Dict[str, Any]:
            return self._way.api.commit_checkpoint(self._way.writer, opened[0], final=self.candidate.is_final)

        sent_bytes = store(
            self._way.transport, saved.contents, ask, confirm, self.halt, self._note_sent, self._note_full
        )
        return sent_bytes + sum(one.size_bytes for sha256, one in saved.contents.items() if sha256 in sent_early)

    def _note_left(self, saved: CutFolder, urls: Dict[str, str]) -> None:
        with self._lock:
            self._size_bytes = saved.size_bytes
            left = self._left_bytes = sum(
                saved.contents[sha256].size_bytes for sha256 in urls if sha256 in saved.contents
            )
        if self._sending is None and left and self._way.transfers is not None:
            self._sending = self._way.transfers.begin("send", left)

    def _note_sent(self, content: Content) -> None:
        self._note_early(content.size_bytes)
        with self._lock:
            self._left_bytes = (self._left_bytes or 0) - content.size_bytes

    def _note_early(self, count: int) -> None:
        if self._sending is not None:
            self._sending.advance(count)

    def _note_full(self, error: Full) -> None:
        if not self._is_full:
            self._is_full = True
            self._on_full(error)


def in_pieces(
    fence: Fence,
    candidate: Candidate,
    gone: threading.Event,
    *,
    believing: bool = True,
    transfers: Optional[Transfers] = None,
) -> CutFolder:
    """The candidate's files, cut and hashed; `believing` what their writer has hashed.

    Raises Unsafe when there is nothing in it (one machine's part may be empty), too much, or something that may not be
    read; Changed, Aborted; OSError.
    """
    if candidate.path.is_dir():
        folder = candidate.path
        names = listing(folder) if candidate.names is None else candidate.names
    else:
        folder, names = candidate.path.parent, [candidate.path.name]
    if not names and not candidate.part_of:
        raise Unsafe("the folder is empty")
    machines = max(1, candidate.part_of)
    return cut(fence, folder, names, gone, believing=believing, transfers=transfers, machines=machines)


def prove(contents: Sequence[Content], gone: threading.Event) -> None:
    """Raises Changed when the bytes of one have another hash than its note says; Unsafe, Aborted; OSError."""

    def check(content: Content) -> None:
        if sha256_of(content.fence, content.folder, content.parts, gone) != content.sha256:
            raise Changed(f"{content.parts[0].name} is not what its note says")

    in_parallel(check, contents)
