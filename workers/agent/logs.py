"""A run's log: the process's output and our own remarks, as text, in order.

Bytes become lines, lines become chunks (every second or 64 KiB), chunks wait in a spool on disk and leave it when the
control plane has taken them. Nobody waits for a log: neither the process that writes it (what comes faster than it can
be sent is left out, and told) nor, for longer than a moment, the end of its run, until which its GPUs are paid for.
"""

from __future__ import annotations

import codecs
import sys
import threading
import time
from typing import Callable, List, Optional

from workers.agent.api import Api, Writer
from workers.agent.errors import AgentError, Fenced, Refused
from workers.agent.files import Fence
from workers.agent.patience import PAUSE_AT_THE_END_S, Respite
from workers.agent.pieces import Content, FilePart
from workers.agent.redaction import Redactor
from workers.agent.spool import Chunk, Spool
from workers.agent.transfer import distinct, store
from workers.agent.transport import Transport

FLUSH_S = 1.0
FLUSH_BYTES = 64 * 1024
PARTIAL_S = 5.0  # a line that does not end (a progress bar) is sent after this time
TAIL_LINES = 40
TAIL_CHARS = 8000
CHUNKS_PER_REPORT = 16
REPORT_BYTES = 1024 * 1024  # of chunks under way, which the end of the log has to wait for
DRAIN_S = 1.0  # after all else is safe: for what has not been sent by then
LAST_S = 3.0  # and then for the log's end
LATE_S = 10.0  # once the server knows of the run's end
_CHUNK_CHARS = 256 * 1024
_TICK_S = 0.2


class Log:
    """Fed by the output thread and by whoever has something to say; cut into chunks by time and size.

    Nothing gets in before `redactor` has masked it: not into the spool, nor into the last lines.
    """

    def __init__(self, spool: Spool, redactor: Optional[Redactor] = None) -> None:
        self._spool = spool
        self._redactor = redactor or Redactor(())
        self._output = self._redactor.stream()
        self._lock = threading.RLock()  # guards all below; nobody waits while holding it
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole: List[str] = []  # text up to a line's end
        self._whole_chars = 0
        self._partial = ""
        self._first_ms = self._last_ms = 0
        self._since_s: Optional[float] = None  # when the oldest waiting text came
        self._partial_since_s = 0.0
        self._tail = ""

    def feed(self, data: bytes) -> None:
        """Output of the process. NUL disappears, then invalid UTF-8 becomes U+FFFD."""
        with self._lock:
            # NUL goes first: with it gone, what stood around it (UTF-16, say) may spell a secret.
            self._take_output(self._output.feed(data.replace(b"\0", b"")))

    def say(self, remark: str) -> None:
        """A line of our own, between lines of the process."""
        with self._lock:
            self._touch()
            text = f"allpass: {remark}".replace("\0", "")
            self._take_whole(self._redactor.text(text) + "\n")

    def hides(self, text: str) -> bool:
        """Whether something in it is masked wherever it is shown."""
        return self._redactor.text(text) != text

    def last_lines(self) -> str:
        """The end of the process's own output: at most 40 lines and 8000 characters."""
        with self._lock:
            return "\n".join(self._tail.rstrip("\n").split("\n")[-TAIL_LINES:])[-TAIL_CHARS:]

    def cut_if_due(self) -> None:
        """Make a chunk of what waited long enough."""
        with self._lock:
            now_s = time.monotonic()
            if self._since_s is None or now_s - self._since_s < FLUSH_S:
                return
            self._cut(with_partial=bool(self._partial) and now_s - self._partial_since_s >= PARTIAL_S)

    def finish(self) -> bool:
        """Make a chunk of all there is; whether there was anything."""
        with self._lock:
            self._take_output(self._output.finish())
            if self._decoder.getstate()[0]:  # half a character was the last thing it wrote
                self._append(self._decoder.decode(b"", True))
            anything = bool(self._whole or self._partial)
            self._cut(with_partial=True)
            return anything

    def _take_output(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        if text:
            self._tail = (self._tail + text)[-2 * TAIL_CHARS :]
            self._append(text)

    def _append(self, text: str) -> None:
        self._touch()
        whole, newline, rest = text.rpartition("\n")
        if newline:
            self._take_whole(self._partial + whole + newline)
            self._partial = ""
        if rest and not self._partial:
            self._partial_since_s = time.monotonic()
        self._partial += rest
        if len(self._partial) >= self._enough_chars():
            self._cut(with_partial=True)

    def _take_whole(self, text: str) -> None:
        self._whole.append(text)
        self._whole_chars += len(text)
        if self._whole_chars >= self._enough_chars():
            self._cut(with_partial=False)

    def _enough_chars(self) -> int:
        """For a chunk: fewer and larger ones where many wait."""
        return _CHUNK_CHARS if self._spool.is_behind else FLUSH_BYTES

    def _touch(self) -> None:
        self._last_ms = time.time_ns() // 1_000_000
        if self._since_s is None:
            self._since_s = time.monotonic()
            self._first_ms = self._last_ms

    def _cut(self, *, with_partial: bool) -> None:
        text = "".join(self._whole)
        if with_partial:
            text, self._partial = text + self._partial, ""
        self._whole, self._whole_chars = [], 0
        first_ms = min(self._first_ms, self._last_ms)
        self._since_s = time.monotonic() if self._partial else None
        self._first_ms = self._last_ms
        for start in range(0, len(text), _CHUNK_CHARS):
            self._put(text[start : start + _CHUNK_CHARS].encode(), first_ms)

    def _put(self, data: bytes, first_ms: int) -> None:
        self._spool.put(data, line_count=data.count(b"\n"), first_ms=first_ms, last_ms=self._last_ms)


class Shipper:
    """Takes chunks from the spool to the store and tells the control plane, in order, from a thread of its own.

    A log outlives its run: being fenced does not stop it. `gone` does, at once.
    """

    def __init__(self, api: Api, transport: Transport, writer: Writer, log: Log, spool: Spool) -> None:
        self._api = api
        self._transport = transport
        self._writer = writer
        self._log = log
        self._spool = spool
        self._finishing = threading.Event()
        self._told_refusal = False
        self.gone = threading.Event()
        self._thread = threading.Thread(target=self._work, name="log-shipper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, is_away: Callable[[], bool]) -> None:
        """The process is over and all else of the run is safe. Return when the log is shipped too, or its time is up:
        first the middle of what is left is given up, then its end goes on its way unattended. While the server is
        away nobody can be told of the run's end, and nothing is given up."""
        self._finishing.set()
        if not self._spool.is_full and self._ships_within(DRAIN_S, is_away):
            return
        self._log.finish()
        self._spool.keep_last()
        self._ships_within(LAST_S, is_away)

    def close(self) -> None:
        """Ship for a little while longer, then let go."""
        self._thread.join(LATE_S)
        self.abandon()
        self._thread.join()

    def abandon(self) -> None:
        """Stop shipping now."""
        self.gone.set()
        self._spool.abandon()

    def _ships_within(self, limit_s: float, is_away: Callable[[], bool]) -> bool:
        respite = Respite(limit_s, is_away)
        while self._thread.is_alive() and not respite.is_over():
            self._thread.join(_TICK_S)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while not self.gone.is_set():
            self._log.cut_if_due()
            chunks = self._spool.head(CHUNKS_PER_REPORT, REPORT_BYTES)
            if chunks:
                self._ship(chunks)
            elif not self._finishing.is_set():
                self._spool.wait_for_chunk(_TICK_S)
            elif not self._log.finish() and not self._spool.keep_last():
                return

    def _ship(self, chunks: List[Chunk]) -> None:
        pieces = [chunk.piece() for chunk in chunks]
        try:
            store(
                self._transport,
                {chunk.sha256: _content(chunk) for chunk in chunks},
                lambda: self._api.uploads(self._writer, distinct(pieces)),
                lambda: self._api.logs(self._writer, [chunk.as_wire() for chunk in chunks]),
                self.gone,
                longest_pause_s=PAUSE_AT_THE_END_S,
            )
        except (Refused, Fenced) as error:
            # For good, so keeping it would only block what follows. Said once: the remark may be refused as well.
            remark = f"{sum(chunk.line_count for chunk in chunks)} lines of this log were refused: {error}"
            print(f"allpass agent: {self._writer.run_id}: {remark}", file=sys.stderr)
            if not self._told_refusal:
                self._told_refusal = True
                self._log.say(remark)
        except AgentError:
            return
        self._spool.drop(chunks)


def _content(chunk: Chunk) -> Content:
    """In a folder that user code cannot reach."""
    folder = chunk.file.parent
    part = FilePart(chunk.file.name, 0, chunk.size_bytes)
    return Content(Fence(folder, None), folder, chunk.sha256, chunk.size_bytes, (part,))
