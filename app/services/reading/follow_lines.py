"""Follow the jobs of a project live: one reader per project that is watched, however many watch it.

The reader asks once a second which jobs have changed, and encodes the line of each once. What it finds is numbered; a
watcher is only a number. It gets all lines above its number in one message, the newest of each job, so that a slow one
delays nobody, piles nothing up, and misses nothing but what is out of date. Lines that all have are forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence

from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.db.access.keys import live_keys
from app.db.access.sessions import live_sessions
from app.db.connection import Connection
from app.db.engine import Database
from app.db.reading.changed_jobs import Moment, jobs_changed, moment_before, this_moment
from app.db.reading.job_lines import LineFilter, LineRow, count_by_state, lines_by_id, wait_words
from app.errors import AllpassError, Unavailable
from app.ports.clock import Clock
from app.services.reading.list_lines import complete_lines
from app.services.reading.watched_lines import LineWriter, TableWatcher, Window

log = logging.getLogger(__name__)

EVERY_S = 1.0
BEAT_S = 15.0
MOST_LINES = 500  # of one message; the others have their turn a second later
MOST_PENDING = 20_000
MOST_CAUGHT_UP = 1000  # of a watcher that comes back: more are read sooner as a page
MAX_WATCHERS = 20_000
OVERLAP_S = 10  # what a watcher is told first that does not say what it has
CHECK_S = 5.0
WORDS_S = 15.0
_CATCH_UPS_AT_ONCE = 4
_GREETINGS_KEPT = 16
_EVERYTHING = LineFilter()
_WITH_WORDS = tuple(state for state in JobState if state not in TERMINAL_JOB_STATES and state is not JobState.RUNNING)


class LineHub:
    """One per process."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        writer: LineWriter,
        *,
        every_s: float = EVERY_S,
        beat_s: float = BEAT_S,
        check_s: float = CHECK_S,
        words_s: float = WORDS_S,
    ) -> None:
        self._database = database
        self._clock = clock
        self._writer = writer
        self.every_s = every_s
        self.beat_s = beat_s
        self.check_s = check_s
        self.words_s = words_s
        self._windows: dict[str, Window] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._catch_ups = asyncio.Semaphore(_CATCH_UPS_AT_ONCE)
        self.watchers = 0
        self.reads = 0

    @property
    def watched_projects(self) -> int:
        """So many readers there are."""
        return len(self._windows)

    def check_room(self) -> None:
        """Raises Unavailable when no more can watch here."""
        if self.watchers >= MAX_WATCHERS:
            raise Unavailable(f"{MAX_WATCHERS} streams are open at this server: read the table now and then instead")

    async def watch(self, project_id: str, watcher: TableWatcher, begin: Moment | None) -> AsyncGenerator[bytes, None]:
        """Messages: first what has changed since `begin` (None: lately), then what changes. It ends when the watcher
        has left, or may not watch any more; or where reading failed, so that it comes back. The caller closes it
        (`aclosing`): the last to go ends the reader."""
        with self._joined(project_id, watcher) as window:
            while window.position is None and not (watcher.left or window.broken):
                if await self._rest(watcher):
                    yield b""
            if window.position is None:
                return
            watcher.number = window.number
            try:
                yield await self._caught_up(project_id, window, begin)
            except Unavailable as error:
                log.warning("a watcher of %s has to come back: %s", project_id, error)
                return
            while not (watcher.left or window.broken):
                if window.number > watcher.number:
                    message, watcher.number = window.beyond(watcher.number), window.number
                    yield message
                elif await self._rest(watcher):
                    yield self._writer.still(window.position)

    async def _rest(self, watcher: TableWatcher) -> bool:
        """Wait for news; whether the time for a sign of life has come first."""
        try:
            async with asyncio.timeout(self.beat_s):
                await watcher.woken.wait()
        except TimeoutError:
            return True
        watcher.woken.clear()
        return False

    @contextlib.contextmanager
    def _joined(self, project_id: str, watcher: TableWatcher) -> Iterator[Window]:
        window = self._windows.get(project_id)
        if window is None or window.broken:
            window = self._windows[project_id] = Window(self._writer)
            reader = asyncio.create_task(self._read(project_id, window), name=f"jobs of {project_id}")
            self._readers[project_id] = reader
        window.watchers.add(watcher)
        self.watchers += 1
        try:
            yield window
        finally:
            self.watchers -= 1
            window.watchers.discard(watcher)
            if not window.watchers and self._windows.get(project_id) is window:
                del self._windows[project_id]
                self._readers.pop(project_id).cancel()

    async def _caught_up(self, project_id: str, window: Window, begin: Moment | None) -> bytes:
        """What a watcher is told first. Many come back from one moment at once, when a server was restarted: what is
        read for one of them is for all, until something else is told."""
        async with self._catch_ups:
            greeting = window.greetings.get(begin)
            if greeting is None:
                number = window.number
                greeting = await self._read_since(project_id, window, begin)
                if window.number == number:
                    if len(window.greetings) >= _GREETINGS_KEPT:
                        window.greetings.clear()
                    window.greetings[begin] = greeting
            return greeting

    async def _read_since(self, project_id: str, window: Window, begin: Moment | None) -> bytes:
        async with self._database.transaction() as connection:
            now = await this_moment(connection)
            since = await moment_before(connection, OVERLAP_S) if begin is None else begin
            changed = await jobs_changed(connection, project_id, since, now, most=MOST_CAUGHT_UP + 1)
            lines = {}
            if changed and len(changed) <= MOST_CAUGHT_UP:
                rows = await lines_by_id(connection, project_id, changed)
                lines = await self._encoded(connection, rows)
        position = window.position or now
        if changed is None or len(changed) > MOST_CAUGHT_UP:
            return self._writer.reset(position)
        return self._writer.changes(list(lines.values()), window.counts, position) if lines else b""

    async def _read(self, project_id: str, window: Window) -> None:
        """Keep the window up to date until nobody watches the project any more."""
        while not window.broken:
            try:
                await self._refresh(project_id, window)
            except Unavailable as error:
                log.warning("what changes in %s is read again soon: %s", project_id, error)
            except AllpassError as error:
                log.warning("what changes in %s cannot be read: %s", project_id, error)
                window.broken = True
            except Exception:
                log.exception("what changes in %s cannot be read", project_id)
                window.broken = True
            window.wake()
            await asyncio.sleep(self.every_s)

    async def _refresh(self, project_id: str, window: Window) -> None:
        self.reads += 1
        now_s = asyncio.get_running_loop().time()
        async with self._database.transaction() as connection:
            now = await this_moment(connection)
            if window.since is None:
                window.counts = await count_by_state(connection, project_id, _EVERYTHING)
                window.words = await wait_words(connection, project_id, _WITH_WORDS)
                window.since = window.position = now
                window.words_s = window.checked_s = now_s
                return
            if now_s - window.checked_s >= self.check_s:
                await self._turn_out(connection, window)
                window.checked_s = now_s
            changed = await jobs_changed(connection, project_id, window.since, now, most=MOST_PENDING)
            if changed is None or len(changed) + len(window.pending) >= MOST_PENDING:
                window.broken = True  # who comes back is told to read the table anew
                return
            window.pending |= dict.fromkeys(changed)
            if now_s - window.words_s >= self.words_s:
                await self._find_words(connection, project_id, window)
                window.words_s = now_s
            lines = await self._take(connection, project_id, window)
        window.since = now
        for job_id in list(window.pending)[:MOST_LINES]:
            del window.pending[job_id]
        window.position = window.position if window.pending else now
        window.forget_messages()
        if lines:
            window.add(lines)

    async def _take(self, connection: Connection, project_id: str, window: Window) -> dict[str, bytes]:
        """The lines whose turn it is, encoded; and how many jobs there are of each state, if that has changed."""
        turn = list(window.pending)[:MOST_LINES]
        if not turn:
            return {}
        rows = await lines_by_id(connection, project_id, turn)
        window.see(rows)
        if window.to_count:
            window.counts = await count_by_state(connection, project_id, _EVERYTHING)
            window.to_count = False
        return await self._encoded(connection, rows)

    async def _find_words(self, connection: Connection, project_id: str, window: Window) -> None:
        """Why a job waits is written for many at once, and triggers pass over it."""
        words = await wait_words(connection, project_id, _WITH_WORDS)
        window.pending |= {job_id: None for job_id, word in words.items() if window.words.get(job_id) != word}
        window.words = words

    async def _encoded(self, connection: Connection, rows: Sequence[LineRow]) -> dict[str, bytes]:
        lines = await complete_lines(connection, rows, now_ms=self._clock.now_ms())
        return {line.row.id: self._writer.line(line) for line in lines}

    async def _turn_out(self, connection: Connection, window: Window) -> None:
        """Those whose session or key has ended since they came."""
        now_ms, watchers = self._clock.now_ms(), tuple(window.watchers)  # others come while the database is asked
        by_session = {watcher.session_id for watcher in watchers if watcher.session_id is not None}
        by_key = {watcher.key_id for watcher in watchers if watcher.session_id is None}
        live = await live_sessions(connection, by_session, now_ms=now_ms) if by_session else set()
        live |= await live_keys(connection, by_key, now_ms=now_ms) if by_key else set()
        for watcher in watchers:
            if (watcher.session_id or watcher.key_id) not in live:
                watcher.leave()
