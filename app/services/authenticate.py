"""Who is calling: an API key, looked up by its hash and remembered for a few seconds."""

from __future__ import annotations

from dataclasses import dataclass

from app.db.engine import Database
from app.db.keys import KeyRow, find_key
from app.errors import Forbidden, Unauthenticated
from app.ports.clock import Clock
from app.services.create_key import hash_key

REMEMBERED_MS = 5_000  # so long may a revoked key still be let in
_REMEMBERED_KEYS = 10_000
_HOW = "send Authorization: Bearer ak_..., with a key of this service"


@dataclass(frozen=True, slots=True)
class Caller:
    """A key that was let in."""

    key_id: str
    project_id: str
    scopes: frozenset[str]

    def require(self, scope: str) -> None:
        """Raises Forbidden unless the key has the scope; `admin` includes all others."""
        if scope not in self.scopes and "admin" not in self.scopes:
            have = ", ".join(sorted(self.scopes))
            raise Forbidden(f"this needs a key with scope {scope!r}; the key that was sent has: {have}")


class Authenticator:
    """Checks keys. Keys that were let in are remembered by hash; refused ones never are."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[bytes, tuple[Caller, int]] = {}

    def remembered(self, key: str) -> Caller | None:
        """The caller, if this key was let in during the last seconds."""
        known = self._known.get(hash_key(key))
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
            row = await find_key(connection, digest, now_ms=now_ms)
        return self._admit(row, digest, now_ms)

    def _admit(self, row: KeyRow | None, digest: bytes, now_ms: int) -> Caller:
        if row is None or row.revoked_ms is not None:
            self._known.pop(digest, None)
            raise Unauthenticated(f"the API key is {'unknown' if row is None else 'revoked'}: {_HOW}")
        if row.expires_ms is not None and row.expires_ms <= now_ms:
            raise Unauthenticated(f"the API key has expired: {_HOW}")
        caller = Caller(row.key_id, row.project_id, row.scopes)
        if len(self._known) >= _REMEMBERED_KEYS:
            self._known.clear()
        until_ms = now_ms + REMEMBERED_MS
        if row.expires_ms is not None:
            until_ms = min(until_ms, row.expires_ms)
        self._known[digest] = (caller, until_ms)
        return caller
