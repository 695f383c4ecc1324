"""The rule of idempotency keys: the same request is answered the same, another one under its key is refused."""

from __future__ import annotations

from app.db.idempotency import RequestKey, StoredAnswer
from app.errors import Conflict


def check_same_request(key: RequestKey, stored: StoredAnswer) -> None:
    """Raises Conflict (code `idempotency_conflict`) when the key was used for something else."""
    if stored.route != key.route:
        raise Conflict(
            f"Idempotency-Key {key.key!r} was used for {stored.route}; send a new key",
            param="Idempotency-Key",
            code="idempotency_conflict",
        )
    if stored.body_sha256 != key.body_sha256:
        raise Conflict(
            f"Idempotency-Key {key.key!r} was used with another body; send a new key, or the body it was used with",
            param="Idempotency-Key",
            code="idempotency_conflict",
        )
