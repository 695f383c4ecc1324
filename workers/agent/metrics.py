"""The metrics file: read as it grows, judged line by line, sent in batches.

The end of a run waits for what is read here, so none of it takes long whatever a script writes: lines are parsed many
at a time, points are sent as far as a curve needs them (`points.py`), and what a process leaves unread beyond a
moment's work is only looked through for the lines that count.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, List, Optional, Sequence

from workers.agent.api import Api, Writer
from workers.agent.errors import AgentError, Fenced, Refused, Unsafe
from workers.agent.metric_lines import MetricLine, MetricTail, excerpt, parse_all, skimmed
from workers.agent.patience import PAUSE_AT_THE_END_S, Halt, Respite, patiently
from workers.agent.points import Point, Points, reports_of

READ_S = 0.1
READ_SOON_S = 0.02  # once the process was asked to save: training pauses meanwhile
READ_ON_S = 0.01  # between two blocks: other runs have lines too
SEND_S = 0.5
PARSE_S = 0.5  # after the end of the process; then the rest is looked through
FLUSH_S = 5.0  # for points that somebody waits for, while the server hears us


class Metrics:
    """Tells of steps and checkpoints as they come (`on_lines`), and sends points to the control plane.

    Two threads: reading goes on while sending waits for the server.
    """

    def __init__(
        self,
        api: Api,
        writer: Writer,
        tail: MetricTail,
        *,
        on_lines: Callable[[Sequence[MetricLine]], None],
        on_fenced: Callable[[], None],
        say: Callable[[str], None],
        gone: threading.Event,
    ) -> None:
        self._api = api
        self._writer = writer
        self._tail = tail
        self._on_lines = on_lines
        self._on_fenced = on_fenced
        self._say = say
        self._gone = Halt(gone)
        self._told: "set[str]" = set()
        self._points = Points()
        self._read_s = READ_S
        self._reading = threading.Lock()  # one reads at a time
        self._read_all = threading.Event()  # no line will come any more: the process has ended
        self._sent_all = threading.Event()  # and all of them were read
        self._hurry = threading.Event()  # somebody waits for points to be sent
        self._progress = threading.Condition()  # guards the next three
        self._asked = 0  # so often somebody wanted all that was there to be sent
        self._answered = 0  # and it was, or refused for good
        self._sending = True
        self._reader = threading.Thread(target=self._read, name="metrics-reader", daemon=True)
        self._sender = threading.Thread(target=self._send, name="metrics-sender", daemon=True)

    def start(self) -> None:
        self._reader.start()
        self._sender.start()

    def catch_up(self) -> None:
        """Read all that is there: the process has ended, and another one will write on."""
        self._take(final=True)
        while not self._tail.is_through:
            self._take(final=True)

    def finish_reading(self) -> None:
        """Read the file to its end. The process has ended."""
        self._read_all.set()
        self._reader.join()

    def flush(self) -> None:
        """Return when the points that were read so far are sent, or sending is over. A server that hears us and will
        not have them is not waited for."""
        respite = Respite(FLUSH_S, self._api.is_away)
        with self._progress:
            self._asked += 1
            mine = self._asked
            while self._sending and self._answered < mine and not respite.is_over():
                self._hurry.set()
                self._progress.wait(SEND_S)

    def finish_sending(self) -> None:
        """Return when all points are sent, or nobody wants them any more; as `flush`."""
        self._sent_all.set()
        respite = Respite(FLUSH_S, self._api.is_away)
        while self._sender.is_alive() and not respite.is_over():
            self._hurry.set()
            self._sender.join(SEND_S)
        if self._sender.is_alive():
            self._gone.set()
            self._complain("the last metric points are lost, for they could not be sent in time")
        if self._points.left_out:
            self._say(f"{self._points.left_out:,} metric points were left out; first, last and extremes were kept")
        self._tail.close()

    def read_often(self, often: bool = True) -> None:
        """Somebody waits for what the process says next; or nobody does any more."""
        self._read_s = READ_SOON_S if often else READ_S

    def _read(self) -> None:
        while not self._read_all.wait(self._read_s if self._tail.is_through else READ_ON_S):
            self._take()
        parse_until_s = time.monotonic() + PARSE_S
        self._take(final=True)
        while not self._tail.is_through:
            self._take(final=True, skims=time.monotonic() > parse_until_s)

    def _take(self, *, final: bool = False, skims: bool = False) -> None:
        with self._reading:
            self._take_next(final=final, skims=skims)

    def _take_next(self, *, final: bool, skims: bool) -> None:
        try:
            texts = self._tail.read(final=final)
        except (OSError, Unsafe) as error:
            self._complain(f"the metrics file cannot be read: {error}")
            self._tail.is_through = True
            return
        if skims:
            looked_at = skimmed(texts)
            self._points.leave_out(len(texts) - len(looked_at))
            texts = looked_at
        now_ms = time.time_ns() // 1_000_000
        lines: List[MetricLine] = []
        for found in parse_all(texts):
            if isinstance(found, MetricLine):
                lines.append(found)
                for why in found.left_out:
                    self._complain(f"of the metrics file, {why}: from step {found.step} on", why)
            else:
                remark = f"a line of the metrics file is skipped, for {found.reason}: {excerpt(found.text)}"
                self._complain(remark, found.reason)
        self._points.add([Point(line.step, now_ms, line.values) for line in lines if line.values])
        if lines:
            self._on_lines(lines)

    def _send(self) -> None:
        try:
            self._send_all()
        finally:
            with self._progress:
                self._sending = False
                self._progress.notify_all()

    def _send_all(self) -> None:
        while not self._gone.is_set():
            ending = self._sent_all.is_set()
            with self._progress:
                asked = self._asked
                at_once = ending or self._answered < asked
            for report in reports_of(self._points.take(at_once=at_once)):
                if not self._report(report):
                    return
            with self._progress:
                if at_once:
                    self._answered = asked
                    self._progress.notify_all()
            if self._points.left_out:
                self._complain(
                    "more is measured than a curve needs: of each stretch, the first and last point and the "
                    "lowest and highest of each name are kept"
                )
            if ending:
                return
            if self._hurry.wait(SEND_S):
                self._hurry.clear()

    def _report(self, points: Sequence[Point]) -> bool:
        """False when sending is over."""
        told = [point._asdict() for point in points]
        try:
            patiently(lambda: self._api.metrics(self._writer, told), self._gone, longest_s=PAUSE_AT_THE_END_S)
        except Fenced:
            self._on_fenced()
            return False
        except Refused as error:
            self._complain(f"{len(points)} metric points were refused: {error}", "refused")
        except AgentError:
            return False
        return True

    def _complain(self, remark: str, kind: Optional[str] = None) -> None:
        if (kind or remark) not in self._told:
            self._told.add(kind or remark)
            self._say(remark)
