"""Follow a job's events live: one reader per followed job, however many follow it.

The reader asks the database once per change and keeps the newest events, already written for the wire, in a window
that all followers share. A follower is only a position: it takes what the window holds beyond it, and one that has
fallen behind the window reads on from the database. So memory does not grow with followers, a slow one delays nobody,
and none skips an event: positions have no gaps, and each one is sent after its predecessor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.db.engine import Database
from app.db.listen import Listener
from app.db.notify import JOB
from app.db.reading.event_tail import read_tail
from app.db.reading.job_records import EventRow, events_after
from app.errors import AllpassError, NotFound, Unavailable

log = logging.getLogger(__name__)

WINDOW_EVENTS = 512
BATCH_EVENTS = 128
MAX_FOLLOWERS = 20_000
BEAT_S = 15.0
_CATCH_UPS_AT_ONCE = 4

Encode = Callable[[EventRow], bytes]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events above the position asked for, in order and encoded, up to `position`. None means: still there."""

    position: int
    content: bytes


class Follower:
    """One that follows. `leave` ends `EventHub.follow` at its next step, wherever it waits."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.left = False
        self.woken = asyncio.Event()

    def leave(self) -> None:
        self.left = True
        self.woken.set()


class _Window:
    """What is known of one job: its newest events, and how it ended once all of them are here."""

    def __init__(self, encode: Encode, size: int) -> None:
        self.followers: set[Follower] = set()
        self.last = 0
        self.ended: JobState | None = None
        self.error: AllpassError | None = None
        self.filled = False
        self._encode = encode
        self._newest: deque[bytes] = deque(maxlen=size)  # positions last - len + 1 .. last

    def add(self, events: tuple[EventRow, ...]) -> None:
        if events and events[0].position != self.last + 1:
            self._newest.clear()  # more came than the window holds
        for event in events:
            self._newest.append(self._encode(event))
            self.last = event.position

    def beyond(self, position: int) -> EventBatch | None:
        """The next events above `position`; None when the first of them has left the window."""
        behind = self.last - position
        if behind <= 0:
            return EventBatch(position, b"")
        if behind > len(self._newest):
            return None
        start = len(self._newest) - behind
        chosen = [self._newest[index] for index in range(start, min(start + BATCH_EVENTS, len(self._newest)))]
        return EventBatch(position + len(chosen), b"".join(chosen))

    def wake(self) -> None:
        for follower in self.followers:
            follower.woken.set()


class EventHub:
    """One per process. `encode` turns an event into what followers are sent, once per event.

    `beat_s`: so often a follower without news gets an empty batch, to say that the line is alive.
    """

    def __init__(
        self,
        database: Database,
        listener: Listener,
        encode: Encode,
        *,
        poll_s: float,
        beat_s: float = BEAT_S,
        window_events: int = WINDOW_EVENTS,
    ) -> None:
        self._database = database
        self._listener = listener
        self._encode = encode
        self._poll_s = poll_s
        self._beat_s = beat_s
        self._window_events = window_events
        self._windows: dict[str, _Window] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._catch_ups = asyncio.Semaphore(_CATCH_UPS_AT_ONCE)
        self.followers = 0
        self.reads = 0
        self.catch_ups = 0

    @property
    def followed_jobs(self) -> int:
        """How many jobs somebody follows: so many readers there are."""
        return len(self._windows)

    async def follow(self, job_id: str, follower: Follower) -> AsyncGenerator[EventBatch | JobState, None]:
        """Batches from `follower.position` on, empty ones as a sign of life, and at last the state it ended in.

        Ends early, without a state, once the follower has left. Raises NotFound and Unavailable. The caller has
        checked whose job it is, and closes the iterator (`aclosing`): the last to go ends the reader.
        """
        with self._joined(job_id, follower) as window:
            while not follower.left:
                follower.woken.clear()
                if window.error is not None:
                    raise window.error
                batch = window.beyond(follower.position) if window.filled else EventBatch(follower.position, b"")
                if batch is None:
                    batch = await self._catch_up(job_id, follower.position)
                if batch.position > follower.position:
                    yield batch
                    follower.position = batch.position
                    continue
                if window.ended is not None and follower.position >= window.last:
                    yield window.ended
                    return
                if await self._rest(follower):
                    yield batch

    async def _rest(self, follower: Follower) -> bool:
        """Wait for news; whether the time for a sign of life has come first."""
        try:
            async with asyncio.timeout(self._beat_s):
                await follower.woken.wait()
        except TimeoutError:
            return True
        return False

    @contextlib.contextmanager
    def _joined(self, job_id: str, follower: Follower) -> Iterator[_Window]:
        if self.followers >= MAX_FOLLOWERS:
            raise Unavailable(f"{MAX_FOLLOWERS} streams are open at this server: follow with wait_s, or try again")
        window = self._windows.get(job_id)
        if window is None:
            window = self._windows[job_id] = _Window(self._encode, self._window_events)
            self._readers[job_id] = asyncio.create_task(self._read(job_id, window), name=f"events of {job_id}")
        window.followers.add(follower)
        self.followers += 1
        try:
            yield window
        finally:
            self.followers -= 1
            window.followers.discard(follower)
            if not window.followers and self._windows.get(job_id) is window:
                del self._windows[job_id]
                self._readers.pop(job_id).cancel()

    async def _read(self, job_id: str, window: _Window) -> None:
        """Keep the window up to date until the job is over, or nobody follows it any more."""
        with self._listener.watch(JOB, job_id) as changed:
            while window.ended is None and window.error is None:
                changed.clear()
                try:
                    await self._refresh(job_id, window)
                except Unavailable as error:
                    log.warning("the events of %s are read again soon: %s", job_id, error)
                except AllpassError as error:
                    window.error = error
                except Exception as error:
                    log.exception("the events of %s cannot be followed", job_id)
                    window.error = Unavailable("the events could not be read; connect again")
                    window.error.__cause__ = error
                window.wake()
                if window.ended is None and window.error is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._poll_s):
                            await changed.wait()

    async def _refresh(self, job_id: str, window: _Window) -> None:
        self.reads += 1
        async with self._database.transaction() as connection:
            tail = await read_tail(connection, job_id, window.last, newest=self._window_events)
        if tail is None:
            raise NotFound(f"there is no job {job_id!r} in this project")
        window.add(tail.events)
        window.filled = True
        if tail.state in TERMINAL_JOB_STATES:
            window.ended = tail.state

    async def _catch_up(self, job_id: str, position: int) -> EventBatch:
        async with self._catch_ups:
            self.catch_ups += 1
            async with self._database.transaction() as connection:
                events = await events_after(connection, job_id, position, limit=BATCH_EVENTS)
        content = b"".join(self._encode(event) for event in events)
        return EventBatch(events[-1].position if events else position, content)
