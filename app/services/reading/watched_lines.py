"""What the watchers of one project share: lines that somebody has not been told yet, and the messages made of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.db.reading.changed_jobs import Moment
from app.db.reading.job_lines import LineRow
from app.services.reading.list_lines import Line


@dataclass(frozen=True, slots=True)
class LineWriter:
    """How what is found is written for the wire. `still`: that the line is alive, and how far all has been told."""

    line: Callable[[Line], bytes]
    changes: Callable[[Sequence[bytes], Mapping[JobState, int], Moment], bytes]
    reset: Callable[[Moment], bytes]
    still: Callable[[Moment], bytes]


class TableWatcher:
    """One that watches, with what let it in. `leave` ends `LineHub.watch` at its next step, wherever it waits."""

    def __init__(self, key_id: str, session_id: str | None) -> None:
        self.key_id = key_id
        self.session_id = session_id
        self.number = 0
        self.left = False
        self.woken = asyncio.Event()

    def leave(self) -> None:
        self.left = True
        self.woken.set()


class Window:
    """What is known of one project: what has changed that somebody was not told yet."""

    def __init__(self, writer: LineWriter) -> None:
        self.watchers: set[TableWatcher] = set()
        self.number = 0
        self.since: Moment | None = None  # up to which it was read what has changed
        self.position: Moment | None = None  # up to which all of it is in a message
        self.broken = self.to_count = False
        self.counts: Mapping[JobState, int] = {}
        self.pending: dict[str, None] = {}
        self.words: dict[str, int] = {}
        self.checked_s = self.words_s = 0.0
        self._states: dict[str, JobState] = {}
        self._writer = writer
        self._lines: OrderedDict[str, tuple[int, bytes]] = OrderedDict()  # by job, in the order of their numbers
        self._messages: dict[int, bytes] = {}  # by the number that they follow
        self.greetings: dict[Moment | None, bytes] = {}  # for who comes back from there, while nothing else is told

    def see(self, rows: Sequence[LineRow]) -> None:
        """Jobs are to be counted again when one is in another state than when it was seen last."""
        self.to_count |= any(self._states.get(row.id) is not row.state for row in rows)
        for row in rows:
            if row.state in TERMINAL_JOB_STATES:
                self._states.pop(row.id, None)
            else:
                self._states[row.id] = row.state

    def add(self, lines: Mapping[str, bytes]) -> None:
        self.number += 1
        self.greetings.clear()
        for job_id, line in lines.items():
            self._lines.pop(job_id, None)
            self._lines[job_id] = self.number, line
        had_by_all = min((watcher.number for watcher in self.watchers), default=self.number)
        while self._lines and next(iter(self._lines.values()))[0] <= had_by_all:
            self._lines.popitem(last=False)

    def beyond(self, number: int) -> bytes:
        """One message with all lines above this number: the same bytes for all who ask."""
        assert self.position is not None
        message = self._messages.get(number)
        if message is None:
            lines = []
            for above, line in reversed(self._lines.values()):
                if above <= number:
                    break
                lines.append(line)
            message = self._messages[number] = self._writer.changes(lines, self.counts, self.position)
        return message

    def forget_messages(self) -> None:
        self._messages.clear()

    def wake(self) -> None:
        for watcher in self.watchers:
            watcher.woken.set()
