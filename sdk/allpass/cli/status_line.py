"""Below a log that is followed: one line with step, loss, speed and time left, for the person at the terminal.

It is drawn on stderr, below what the log has said so far, and taken away before the log goes on: what is piped or kept
never has it. Nobody but a terminal that shows both streams gets one.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from allpass.cli import screen, words

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.jobs import Job

_EVERY_S = 1.0
_SPEED_OVER = 10  # looks
_ROOM_FOR_CTRL_C = 3  # which a terminal writes where the line ends: in the next one, it would be erased alone
_ERASE = "\r\x1b[K"


@contextmanager
def below(client: Client, job_id: str) -> Iterator[Callable[[str], None]]:
    """Gives what writes a piece of the log. Whatever ends the following, the line is gone then."""
    if not (screen.is_interactive() and screen.is_interactive(sys.stderr)) or os.environ.get("TERM") == "dumb":
        yield _write
        return
    line = StatusLine()
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(client, job_id, line, over), daemon=True)
    watcher.start()
    try:
        yield line.write
    finally:
        over.set()
        line.close()


class StatusLine:
    """The line and the log, which take turns. A log that stops in the middle of a line hides it until that is whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._is_drawn = self._is_closed = False
        self._log_is_at_start = True

    def write(self, text: str) -> None:
        with self._lock:
            self._erase()
            _write(text)
            if text:
                self._log_is_at_start = text.endswith("\n")
            self._draw()

    def say(self, text: str) -> None:
        with self._lock:
            self._erase()
            self._text = text
            self._draw()

    def close(self) -> None:
        """Take the line away, with the ^C that the terminal has written behind it, if that ended the following."""
        with self._lock:
            self._is_drawn = self._is_drawn or self._log_is_at_start
            self._erase()
            self._is_closed = True

    def _erase(self) -> None:
        if self._is_drawn:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
            self._is_drawn = False

    def _draw(self) -> None:
        if self._is_closed or not self._text or not self._log_is_at_start:
            return
        room = max(1, shutil.get_terminal_size().columns - _ROOM_FOR_CTRL_C)  # asked each time: windows change
        text = screen.shorten(screen.printable(self._text), room)
        sys.stderr.write(f"\x1b[2m{text}\x1b[0m" if screen.colours_wanted(sys.stderr) else text)
        sys.stderr.flush()
        self._is_drawn = True


class Speed:
    """Steps a second, over the last looks."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SPEED_OVER)

    def at(self, now_s: float, step: int) -> float | None:
        if self._seen and step < self._seen[-1][1]:
            self._seen.clear()  # it went back to a checkpoint
        self._seen.append((now_s, step))
        (since_s, first), took_s = self._seen[0], now_s - self._seen[0][0]
        return (step - first) / took_s if took_s > 0 and step > first and since_s < now_s else None


def describe(job: Job, loss: float | None, speed: float | None, now: datetime) -> str:
    """step 120/400 · loss 0.1234 · 5.2 steps/s · 54s left · $0.02"""
    parts = [f"step {words.steps(job)}" if job.status == "running" else job.status]
    if loss is not None:
        parts.append(f"loss {words.number(loss)}")
    if speed is not None:
        parts.append(f"{speed:.3g} steps/s" if speed >= 1 else f"{1 / speed:.3g} s a step")
    left = words.remaining(job, now)
    if left != "-":
        parts.append(f"{left} left")
    parts.append(words.spent(job.cost))
    if job.where is not None:
        parts.append(words.place(job.where))
    return " · ".join(parts)


def _watch(client: Client, job_id: str, line: StatusLine, over: threading.Event) -> None:
    from allpass.errors import AllpassError

    speed = Speed()
    while not over.wait(_EVERY_S):
        try:
            job = client.get_job(job_id)
            if job.status in words.ENDED:
                line.say("")
                return
            loss = client.last_metrics(job_id).get("loss") if job.step else None
        except (AllpassError, OSError, RuntimeError):  # an outage, or a client that was closed: the log says so itself
            continue
        line.say(describe(job, loss, speed.at(time.monotonic(), job.step), datetime.now(timezone.utc)))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
