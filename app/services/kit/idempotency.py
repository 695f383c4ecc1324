"""The rule of idempotency keys: the same request is answered the same, another one under its key is refused.

An answer is kept in the transaction of what it tells of, so one cannot be there without the other; a request that
fails leaves its key unused. Answers hold signed URLs and new API keys: they are sealed like the values of secrets.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass

from app.db.access.idempotency import RequestKey, StoredAnswer, add_answer, claim, find_answer
from app.db.connection import Connection
from app.errors import Conflict, InvariantBroken
from app.services.kit.seal import Sealer, Unsealable

_CONFLICT = "idempotency_conflict"
_PARAM = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """What the first request under a key was answered, byte for byte."""

    status: int
    body: bytes


class AnswerBook:
    """The answers of one project's requests."""

    def __init__(self, sealer: Sealer, project_id: str) -> None:
        self._sealer = sealer
        self._project_id = project_id

    async def find(self, connection: Connection, key: RequestKey, *, now_ms: int) -> FirstAnswer | None:
        """The answer, if this request has one. Raises Conflict when the key was used for something else."""
        stored = await find_answer(connection, self._project_id, key.key)
        if stored is None:
            return None
        check_same_request(key, stored)
        until_ms = stored.response.get("until_ms")
        return None if until_ms is not None and until_ms <= now_ms else self._open(key, stored)

    async def take(self, connection: Connection, key: RequestKey, *, now_ms: int) -> FirstAnswer | None:
        """None: the key is this request's, which must `keep` its answer in this transaction. Else the first answer.

        Waits while another request holds the key. Raises Conflict when it was used for something else.
        """
        if await claim(connection, self._project_id, key, now_ms=now_ms):
            return None
        first = await self.find(connection, key, now_ms=now_ms)
        if first is None:
            raise InvariantBroken(f"the key {key.key!r} is taken, yet no answer is stored under it")
        return first

    async def keep(
        self, connection: Connection, key: RequestKey, answer: FirstAnswer, *, until_ms: int | None = None
    ) -> None:
        """Store the answer to a key that was taken. From `until_ms` on it is worth nothing, and is made anew."""
        sealed = self._sealer.seal(self._project_id, _name(key), answer.body.decode())
        stored = {"sealed": b64encode(sealed).decode(), "seal": self._sealer.key_id, "until_ms": until_ms}
        await add_answer(connection, self._project_id, key.key, answer.status, stored)

    def _open(self, key: RequestKey, stored: StoredAnswer) -> FirstAnswer:
        try:
            sealed, seal = b64decode(str(stored.response["sealed"])), str(stored.response["seal"])
            body = self._sealer.open(self._project_id, _name(key), sealed, seal)
        except (KeyError, Unsealable):  # or it was kept by an older version of the service
            raise Conflict(
                f"Idempotency-Key {key.key!r}: this request was carried out, but its answer cannot be opened any more "
                "(the service was upgraded or ALLPASS_SECRET_KEY changed since); read what it did, and send a new key "
                "for a new request",
                param=_PARAM,
                code=_CONFLICT,
            ) from None
        return FirstAnswer(stored.status, body.encode())


def check_same_request(key: RequestKey, stored: StoredAnswer) -> None:
    """Raises Conflict (code `idempotency_conflict`) when the key was used for something else."""
    if stored.route != key.route:
        raise Conflict(
            f"Idempotency-Key {key.key!r} was used for {stored.route}; send a new key", param=_PARAM, code=_CONFLICT
        )
    if stored.body_sha256 != key.body_sha256:
        raise Conflict(
            f"Idempotency-Key {key.key!r} was used with another body; send a new key, or the body it was used with",
            param=_PARAM,
            code=_CONFLICT,
        )


def _name(key: RequestKey) -> str:
    """What the seal is bound to. No secret has such a name: theirs hold no space."""
    return f"answer to {key.route} under {key.key}"
