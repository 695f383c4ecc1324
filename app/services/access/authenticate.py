"""Who is calling: an API key, or a session that was begun with one, looked up by its hash and remembered for a few
seconds."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.db.access.keys import KeyRow, find_key, set_used
from app.db.access.sessions import SessionRow, extend_session, find_session
from app.db.connection import Connection
from app.db.engine import Database
from app.errors import Forbidden, Unauthenticated, Unavailable
from app.ports.clock import Clock
from app.services.access.create_key import OWNER, hash_key

REMEMBERED_MS = 5_000  # so long may other processes still let in a key that was revoked in this one
USE_RECORDED_EVERY_MS = 60_000
PROJECT_ARCHIVED = "project_archived"
_REMEMBERED_KEYS = 10_000
log = logging.getLogger(__name__)

_HOW = "send Authorization: Bearer ak_..., with a key of this service"


@dataclass(frozen=True, slots=True)
class Caller:
    """A key that was let in; `session_id`: by a session that was begun with it."""

    key_id: str
    project_id: str
    scopes: frozenset[str]
    session_id: str | None = None

    def require(self, scope: str) -> None:
        """Raises Forbidden unless the key has the scope; `admin` includes all others but `owner`."""
        if scope not in self.scopes and (scope == OWNER or "admin" not in self.scopes):
            have = ", ".join(sorted(self.scopes))
            raise Forbidden(f"this needs a key with scope {scope!r}; the key that was sent has: {have}")


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """How long a session lives without being used, and in all."""

    idle_ms: int
    longest_ms: int


def hash_token(token: str) -> bytes:
    """What is stored of a session's token. Never what is stored of a key, so that neither can be sent as the other."""
    return hashlib.sha256(b"session " + token.encode()).digest()


def session_over() -> Unauthenticated:
    """What a cookie is told that opens nothing."""
    return Unauthenticated("there is no such session, or it has ended: sign in again")


def project_archived() -> Forbidden:
    """What every key of an archived project is told."""
    return Forbidden(
        "the project of this API key is archived: its keys open nothing until an owner of the installation restores it "
        "(allpass project restore)",
        code=PROJECT_ARCHIVED,
    )


class Authenticator:
    """Checks keys and sessions. Those that were let in are remembered by hash; refused ones never are.

    When one was last used is noted behind the request, about once a minute: no request waits for it.
    """

    def __init__(self, database: Database, clock: Clock, times: SessionTimes) -> None:
        self._database = database
        self._clock = clock
        self._times = times
        self._known: dict[bytes, tuple[Caller, int]] = {}
        self._noted_ms: dict[str, int] = {}  # by id of key or session: when its use was noted
        self._notes: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly

    def remembered(self, key: str) -> Caller | None:
        """The caller, if this key was let in during the last seconds."""
        return self._recall(hash_key(key))

    def _recall(self, digest: bytes) -> Caller | None:
        known = self._known.get(digest)
        if known is None or self._clock.now_ms() >= known[1]:
            return None
        return known[0]

    async def authenticate(self, key: str | None) -> Caller:
        """Raises Unauthenticated for a key that is missing, unknown, expired or revoked."""
        if not key:
            raise Unauthenticated(f"no API key: {_HOW}")
        caller = self.remembered(key)
        if caller is not None:
            return caller
        digest = hash_key(key)
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as connection:
            row = await find_key(connection, digest)
        caller = self._admit(row, digest, now_ms)
        self._note_use(caller.key_id, now_ms)
        return caller

    async def authenticate_session(self, token: str) -> Caller:
        """Raises Unauthenticated for a session that is unknown or has ended, or whose key has."""
        digest = hash_token(token)
        caller = self._recall(digest)
        if caller is not None:
            return caller
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as connection:
            row = await find_session(connection, digest)
        caller = self._admit_session(row, digest, now_ms)
        self._note_use(caller.key_id, now_ms)
        self._note_session(caller.session_id, now_ms)
        return caller

    def forget_session(self, session_id: str) -> None:
        """Ask the database about this session again: it was ended."""
        self._known = {digest: known for digest, known in self._known.items() if known[0].session_id != session_id}

    def forget(self, key_id: str) -> None:
        """Ask the database about this key again, and about its sessions: it was revoked."""
        self._known = {digest: known for digest, known in self._known.items() if known[0].key_id != key_id}

    def forget_project(self, project_id: str) -> None:
        """Ask the database about every key of this project again: it was archived."""
        self._known = {digest: known for digest, known in self._known.items() if known[0].project_id != project_id}

    async def settled(self) -> None:
        """Return when every use so far is noted, as far as it can be."""
        while self._notes:
            await asyncio.gather(*self._notes)

    def _admit(self, row: KeyRow | None, digest: bytes, now_ms: int) -> Caller:
        if row is None or row.revoked_ms is not None:
            self._known.pop(digest, None)
            raise Unauthenticated(f"the API key is {'unknown' if row is None else 'revoked'}: {_HOW}")
        if row.expires_ms is not None and row.expires_ms <= now_ms:
            raise Unauthenticated(f"the API key has expired: {_HOW}")
        if row.archived_ms is not None:
            self._known.pop(digest, None)
            raise project_archived()
        return self._remember(digest, Caller(row.key_id, row.project_id, row.scopes), now_ms, row.expires_ms)

    def _admit_session(self, row: SessionRow | None, digest: bytes, now_ms: int) -> Caller:
        if row is None or row.key_revoked_ms is not None or row.expires_ms <= now_ms:
            self._known.pop(digest, None)
            raise session_over()
        if row.archived_ms is not None:
            self._known.pop(digest, None)
            raise project_archived()
        caller = Caller(row.key_id, row.project_id, row.scopes, row.session_id)
        return self._remember(digest, caller, now_ms, row.expires_ms)

    def _remember(self, digest: bytes, caller: Caller, now_ms: int, expires_ms: int | None) -> Caller:
        if len(self._known) >= _REMEMBERED_KEYS:
            self._known.clear()
        until_ms = now_ms + REMEMBERED_MS
        if expires_ms is not None:
            until_ms = min(until_ms, expires_ms)
        self._known[digest] = (caller, until_ms)
        return caller

    def _note_use(self, key_id: str, now_ms: int) -> None:
        async def write(connection: Connection) -> None:
            await set_used(connection, key_id, now_ms=now_ms, every_ms=USE_RECORDED_EVERY_MS)

        self._note(key_id, now_ms, write)

    def _note_session(self, session_id: str | None, now_ms: int) -> None:
        if session_id is None:
            return
        times, noted_id = self._times, session_id

        async def write(connection: Connection) -> None:
            await extend_session(
                connection,
                noted_id,
                now_ms=now_ms,
                idle_ms=times.idle_ms,
                longest_ms=times.longest_ms,
                every_ms=USE_RECORDED_EVERY_MS,
            )

        self._note(noted_id, now_ms, write)

    def _note(self, used_id: str, now_ms: int, write: Callable[[Connection], Awaitable[None]]) -> None:
        noted_ms = self._noted_ms.get(used_id)
        if noted_ms is not None and now_ms - noted_ms < USE_RECORDED_EVERY_MS:
            return
        if len(self._noted_ms) >= _REMEMBERED_KEYS:
            self._noted_ms.clear()
        self._noted_ms[used_id] = now_ms
        task = asyncio.create_task(self._record(used_id, write), name="key-use")
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _record(self, used_id: str, write: Callable[[Connection], Awaitable[None]]) -> None:
        try:
            async with self._database.transaction() as connection:
                await write(connection)
        except Unavailable as error:
            log.warning("the use of %s was not noted: %s", used_id, error.message)
            self._noted_ms.pop(used_id, None)
