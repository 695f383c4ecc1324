"""The final checkpoint on its way to the store while it is still being written: pieces that its writer has noted.

Nothing here is needed. What does not get through is sent when the checkpoint is complete, by whoever sends the rest,
and nothing of it is a checkpoint before its manifest is committed. But the next machine hears of what is stored, and
fetches it meanwhile: now and then, since each call costs processors that the training waits for.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from workers.agent.api import Api, Writer
from workers.agent.errors import AgentError
from workers.agent.files import NOTE, Fence
from workers.agent.notes import note_of
from workers.agent.pieces import OFFSET_UNIT_BYTES, Content, CutFolder, noted_part
from workers.agent.transfer import PARALLEL, send
from workers.agent.transport import Transport

LOOK_S = 0.02
CALL_S = 0.2  # at least, between two calls while something is on its way
_TOLD_AT_ONCE = 1000
_MOST_PLACES = 64
_SHARE = 64  # of what was told already: so much more is worth another call

Spans = List[Dict[str, Any]]


class Early:
    """From `start` until `finish`: watches the folders below `folder` for notes that were not there at first.

    `step`: the newest one that was heard of. A thread of its own does all the work.
    """

    def __init__(
        self,
        api: Api,
        transport: Transport,
        writer: Writer,
        fence: Fence,
        folder: Path,
        step: Callable[[], int],
        gone: threading.Event,
    ) -> None:
        self._api = api
        self._transport = transport
        self._writer = writer
        self._fence = fence
        self._folder = folder
        self._step = step
        self._gone = gone
        self._old = {path for path, _ in _noted_files(folder)}
        self._seen: Set[Tuple[Path, int]] = set()
        self._changed = threading.Condition()  # guards all below
        self._contents: Dict[str, Content] = {}
        self._spans: Dict[str, Spans] = {}
        self._news: List[str] = []  # to be told: found, or stored since it was asked for
        self._told = 0
        self._called_at_s = 0.0
        self._urls: Dict[str, str] = {}  # of pieces that the complete checkpoint lacks in the store
        self._under_way: Set[str] = set()
        self._stored: Set[str] = set()  # our bytes, under that name
        self._is_last = False  # no other piece will be found
        self._on_found: Callable[[], None] = lambda: None
        self._on_sent: Callable[[int], None] = lambda _: None
        self._thread = threading.Thread(target=self._work, name="early", daemon=True)

    def start(self, on_found: Callable[[], None] = lambda: None) -> None:
        """`on_found` is called when there is something to send, from the thread that finds it."""
        self._on_found = on_found
        self._thread.start()

    def finish(
        self, saved: Optional[CutFolder], urls: Mapping[str, str], on_sent: Callable[[int], None] = lambda _: None
    ) -> Set[str]:
        """Send what the store lacks of `saved`, which is complete, to its `urls`, and return when that was tried: the
        pieces that were sent and are stored. With None there is nothing to send any more. `on_sent` is called with the
        bytes of each piece that is stored from now on."""
        with self._changed:
            self._on_sent = on_sent
            if saved is not None:
                self._take_all(saved, urls)
            else:
                self._news.clear()
            self._is_last = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            return set(self._stored)

    def _work(self) -> None:
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="early") as pool:
            try:
                while not self._gone.is_set() and self._turn(pool):
                    pass
            except (AgentError, OSError):
                return  # whoever commits will find out what is lacking

    def _turn(self, pool: ThreadPoolExecutor) -> bool:
        """Find, send and tell what is new; False when all is done."""
        with self._changed:
            is_last = self._is_last
        if not is_last:
            self._look()
        with self._changed:
            urls, self._urls = self._urls, {}
            self._begin_sending(pool, urls)
            if self._is_last and not self._under_way:
                return False
            if not self._is_worth_a_call():
                self._changed.wait(LOOK_S)
                return True
            told, self._news = self._news[:_TOLD_AT_ONCE], self._news[_TOLD_AT_ONCE:]
            spans = [span for sha256 in told for span in self._spans[sha256]]
        urls = self._api.coming(self._writer, step=self._step(), spans=spans)
        with self._changed:
            self._called_at_s = time.monotonic()
            self._told += len(told)
            self._begin_sending(pool, urls)
        return True

    def _is_worth_a_call(self) -> bool:
        """With the lock. Of the last pieces the next machine hears by the commit, which is all but there."""
        if self._is_last and len(self._under_way) <= PARALLEL:
            return False
        if len(self._news) <= self._told // _SHARE:
            return False
        is_idle = not self._under_way and any(sha256 not in self._stored for sha256 in self._news)
        return is_idle or time.monotonic() - self._called_at_s >= CALL_S

    def _begin_sending(self, pool: ThreadPoolExecutor, urls: Mapping[str, str]) -> None:
        """With the lock."""
        for sha256, url in sorted(urls.items()):
            if sha256 not in self._stored | self._under_way and sha256 in self._contents:
                self._under_way.add(sha256)
                pool.submit(self._send, sha256, url)

    def _send(self, sha256: str, url: str) -> None:
        """In a thread of the pool."""
        is_stored = False
        try:
            with contextlib.suppress(AgentError, OSError):
                send(self._transport, self._contents[sha256], url, self._gone)
                is_stored = True
        finally:
            with self._changed:
                self._under_way.discard(sha256)
                if is_stored:
                    self._on_sent(self._contents[sha256].size_bytes)
                    self._stored.add(sha256)
                    if sha256 in self._spans:
                        self._news.append(sha256)
                self._changed.notify_all()

    def _look(self) -> None:
        for path, name in _noted_files(self._folder):
            if path in self._old:
                continue
            note = note_of(self._fence, path.with_name(name))
            if note is None or note.piece_bytes % OFFSET_UNIT_BYTES:
                continue
            for number, sha256 in note.hashes.items():
                if (path, number) not in self._seen:
                    self._seen.add((path, number))
                    part = noted_part(name, note, number)
                    self._found(
                        Content(self._fence, path.parent, sha256, part.length, (part,)),
                        [_span(name, note.size_bytes, part.offset, sha256, part.length, 0, part.length)],
                    )

    def _found(self, content: Content, spans: Spans) -> None:
        with self._changed:
            is_first = not self._contents
            self._contents[content.sha256] = content
            self._spans[content.sha256] = spans
            self._news.append(content.sha256)
        if is_first:
            self._on_found()

    def _take_all(self, saved: CutFolder, urls: Mapping[str, str]) -> None:
        """With the lock: what the store lacks is to be sent, and of the rest to be told what was not; all of it is
        where the complete checkpoint says."""
        told = set(self._spans) - set(self._news)
        spans: Dict[str, Spans] = {}
        for file in saved.files:
            offset = 0
            for one in file.spans:
                if offset % OFFSET_UNIT_BYTES == 0:
                    place = _span(file.path, file.size_bytes, offset, one.sha256, one.size_bytes, one.start, one.length)
                    spans.setdefault(one.sha256, []).append(place)
                offset += one.length
        self._contents.update(saved.contents)
        # Who stands by fetches a pack of very many files by itself: each would have to be told, and kept, by its name.
        spans = {sha256: places for sha256, places in spans.items() if len(places) <= _MOST_PLACES}
        self._spans.update(spans)
        self._urls = dict(urls)
        waiting = [sha256 for sha256 in self._news if sha256 in self._stored and sha256 in self._spans]
        self._news = waiting + [sha256 for sha256 in spans if sha256 not in told and sha256 not in urls]


def _noted_files(folder: Path) -> Iterator[Tuple[Path, str]]:
    """The notes in folders directly below: each with the name of its file."""
    with contextlib.suppress(OSError), os.scandir(folder) as children:
        for child in children:
            if not child.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError), os.scandir(child.path) as entries:
                for entry in entries:
                    found = NOTE.fullmatch(entry.name)
                    if found is not None:
                        yield Path(entry.path), found.group(1)


def _span(
    path: str, file_bytes: int, offset: int, sha256: str, size_bytes: int, start: int, length: int
) -> Dict[str, Any]:
    return {
        "path": path,
        "file_bytes": file_bytes,
        "offset": offset,
        "sha256": sha256,
        "size_bytes": size_bytes,
        "start": start,
        "length": length,
    }
