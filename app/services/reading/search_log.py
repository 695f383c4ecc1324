"""Search a job's log as one text, across all its runs: piece by piece, in bounded memory.

A cursor names the place where the next unread line begins: piece (epoch, sequence), characters into it, and the number
of that line. Line numbers count as they do in the text that `read_log` serves.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass, field, replace

from app.db.engine import Database
from app.db.jobs.reads import find_state
from app.db.reading.job_records import ChunkRow, LoggedRun, RunHead, log_chunks_from, runs_by_epoch
from app.errors import InvalidInput, NotFound
from app.ports.objects import ObjectStore
from app.services.reading.read_log import MAX_PAGE_CHUNKS, choose, format_position, heads_of, texts_of

MAX_SCAN_BYTES = 8 * 1024 * 1024
LONGEST_LINE = 64 * 1024  # of a longer line, this much at least is looked at in one piece
SHOWN_BEFORE = 200
SHOWN_CHARS = 1000
LONGEST_QUERY = 200
_ALL_READ = 10**9 - 1  # a sequence beyond every piece
_CURSOR = re.compile(r"^(\d{1,9})\.(\d{1,9})\.(\d{1,9})\.(\d{1,15})\.([01])\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class LinePosition:
    """Where a line, or what is left of it, begins. `told`: a match in that line was given before."""

    epoch: int = 0
    sequence: int = 0
    offset: int = 0
    line: int = 1
    told: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """A line that holds the text. `position`: from there `read_log` serves the piece in which the line begins."""

    line: int
    position: str
    text: str


@dataclass(frozen=True, slots=True)
class SearchPage:
    """`next_cursor` None: all that is stored by now has been looked at."""

    matches: tuple[Match, ...]
    next_cursor: str | None


async def search_log(
    database: Database,
    objects: ObjectStore,
    project_id: str,
    job_id: str,
    query: str,
    *,
    ignore_case: bool,
    limit: int,
    cursor: str | None,
) -> SearchPage:
    """Up to `limit` lines that hold `query`, literally, from `cursor` on; each line once.

    Looks at a bounded amount of text: an empty answer may have a next cursor. Raises NotFound and InvalidInput.
    """
    pattern = re.compile(re.escape(check_query(query)), re.IGNORECASE if ignore_case else 0)
    place = parse_cursor(cursor)
    scan = Scan(pattern, limit, place)
    sequences = {place.epoch: place.sequence}
    seen_bytes = 0
    while seen_bytes < MAX_SCAN_BYTES or scan.place == place:  # a line over many pieces is not begun for nothing
        chunks, runs, heads = await _chunks(database, project_id, job_id, sequences)
        scan.epochs = frozenset(runs)
        texts = await texts_of(objects, project_id, chunks, heads, runs)
        for chunk, text in zip(chunks, texts, strict=True):
            if await asyncio.to_thread(scan.feed, chunk.epoch, chunk.sequence, text):
                return SearchPage(tuple(scan.matches), format_cursor(scan.place))
            sequences[chunk.epoch] = chunk.sequence + 1
            seen_bytes += chunk.size_bytes
        if not chunks:
            scan.finish()
            return SearchPage(tuple(scan.matches), None)
    return SearchPage(tuple(scan.matches), format_cursor(scan.place))


def check_query(query: str) -> str:
    """Raises InvalidInput for what no line can hold."""
    if not query or len(query) > LONGEST_QUERY or "\n" in query:
        raise InvalidInput(f"q: {query!r} is not 1 to {LONGEST_QUERY} characters within one line", param="q")
    return query


def parse_cursor(text: str | None) -> LinePosition:
    """Raises InvalidInput."""
    if text is None:
        return LinePosition()
    match = _CURSOR.match(text)
    if match is None:
        raise InvalidInput(f"cursor: {text!r} is not a next_cursor of this search", param="cursor")
    epoch, sequence, offset, line, told = (int(part) for part in match.groups())
    return LinePosition(epoch, sequence, offset, line, bool(told))


def format_cursor(place: LinePosition) -> str:
    return f"{place.epoch}.{place.sequence}.{place.offset}.{place.line}.{int(place.told)}"


@dataclass(slots=True)
class Scan:
    """The state between two pieces: the line that has begun, and where. `place` is where to go on."""

    pattern: re.Pattern[str]
    limit: int
    place: LinePosition
    epochs: frozenset[int] = frozenset()  # all that the job has had
    matches: list[Match] = field(default_factory=list)
    _open: deque[tuple[int, int, int, str]] = field(default_factory=deque)  # epoch, sequence, offset, text

    def feed(self, epoch: int, sequence: int, text: str) -> bool:
        """Look at the next piece; True once there are `limit` matches, with `place` behind the last line told."""
        skip = self.place.offset if (epoch, sequence) == (self.place.epoch, self.place.sequence) else 0
        at = skip if not self._open else 0
        if not self._open:
            self.place = replace(self.place, epoch=epoch, sequence=sequence, offset=at)
        while True:
            if not self._open:
                at, begins = self._skip_to_match(epoch, sequence, text, at)
                if not begins:
                    break
            end = text.find("\n", at)
            if end < 0:
                break
            self._open.append((epoch, sequence, at, text[at:end]))
            self._look()
            self._next_line(epoch, sequence, end + 1, 1)
            at = end + 1
            if len(self.matches) >= self.limit:
                return True
        if at < len(text):
            self._open.append((epoch, sequence, at, text[at:]))
            self._shorten()
        return False

    def _skip_to_match(self, epoch: int, sequence: int, text: str, at: int) -> tuple[int, bool]:
        """Only count the lines before the next match: where its line begins (without one: the last line), and whether
        there is one."""
        match = self.pattern.search(text, at)
        start = text.rfind("\n", at, len(text) if match is None else match.start()) + 1
        if start > at:
            self._next_line(epoch, sequence, start, text.count("\n", at, start))
            at = start
        return at, match is not None

    def finish(self) -> None:
        """The last line has no end yet: it is looked at as it is."""
        self._look()

    def _next_line(self, epoch: int, sequence: int, offset: int, lines: int) -> None:
        self._open.clear()
        self.place = LinePosition(epoch, sequence, offset, self.place.line + lines)

    def _look(self) -> None:
        if not self._open or self.place.told:
            return
        line = "".join(part for *_, part in self._open)
        match = self.pattern.search(line)
        if match is None:
            return
        start = max(0, match.start() - SHOWN_BEFORE)
        served = dict.fromkeys((epoch for epoch in self.epochs if epoch < self.place.epoch), _ALL_READ)
        served |= {self.place.epoch: self.place.sequence} if self.place.sequence else {}
        position = format_position(served)
        self.matches.append(Match(self.place.line, position, line[start : start + SHOWN_CHARS]))
        self.place = replace(self.place, told=True)

    def _shorten(self) -> None:
        """Of a line that does not end, look at what is there and keep only what a match could still begin in."""
        size = sum(len(part) for *_, part in self._open)
        if size <= LONGEST_LINE:
            return
        self._look()
        excess = size - (SHOWN_BEFORE + LONGEST_QUERY)
        while excess > 0:
            epoch, sequence, offset, part = self._open.popleft()
            if len(part) > excess:
                self._open.appendleft((epoch, sequence, offset + excess, part[excess:]))
            excess -= len(part)
        epoch, sequence, offset, _ = self._open[0]
        self.place = replace(self.place, epoch=epoch, sequence=sequence, offset=offset)


async def _chunks(
    database: Database, project_id: str, job_id: str, sequences: dict[int, int]
) -> tuple[list[ChunkRow], dict[int, LoggedRun], dict[int, RunHead]]:
    """The next pieces, as `read_log` would choose them, none of epochs that lie behind; all runs there are; and how
    those begin whose first piece is among them."""
    async with database.transaction() as connection:
        if await find_state(connection, project_id, job_id) is None:
            raise NotFound(f"there is no job {job_id!r} in this project")
        runs = await runs_by_epoch(connection, job_id)
        newest = max(sequences)
        served = {**dict.fromkeys((epoch for epoch in runs if epoch < newest), _ALL_READ), **sequences}
        known = await log_chunks_from(connection, job_id, served, limit=MAX_PAGE_CHUNKS + 1)
        chunks = choose(known, served, runs)
        return chunks, runs, await heads_of(connection, job_id, chunks)
