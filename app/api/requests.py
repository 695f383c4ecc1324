"""What requests share beside their body: idempotency keys, cursors, page sizes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Header, Query
from starlette.types import Scope

from app.core.model.ids import Prefix, is_id
from app.db.idempotency import RequestKey
from app.errors import InvalidInput, NotFound

IDEMPOTENCY_KEY = "Idempotency-Key"
_LONGEST_KEY = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

Limit = Annotated[int, Query(ge=1, le=1000, description="at most so many items")]
Cursor = Annotated[str | None, Query(max_length=600, description="`next_cursor` of the page before")]
WaitS = Annotated[float, Query(ge=0, le=30, description="wait so long for something new")]
IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_KEY,
        description="Your name for this request: sent again with the same body it gets the first answer",
    ),
]


def request_key(scope: Scope, route: str) -> RequestKey | None:
    """The request's idempotency key, if it has one. Raises InvalidInput for one that cannot be used."""
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            return _make_key(value, route, scope["allpass.body"])
    return None


def id_cursor(cursor: str | None, prefix: Prefix) -> str | None:
    """A cursor that is the last id of the page before. Raises InvalidInput."""
    if cursor is not None and not is_id(cursor, prefix):
        raise InvalidInput(f"cursor: {cursor!r} is not a next_cursor of this list", param="cursor")
    return cursor


def known_id(text: str, prefix: Prefix, noun: str) -> str:
    """Raises NotFound for what cannot be an id of this kind."""
    if not is_id(text, prefix):
        raise NotFound(f"there is no {noun} {text!r} in this project (an id looks like {prefix}_...)")
    return text


def _make_key(value: bytes, route: str, body: bytes) -> RequestKey:
    text = value.decode("latin-1")
    if not text or len(text) > _LONGEST_KEY or not (text.isascii() and text.isprintable()):
        raise InvalidInput(
            f"{IDEMPOTENCY_KEY}: 1 to {_LONGEST_KEY} printable ASCII characters, e.g. a UUID", param=IDEMPOTENCY_KEY
        )
    return RequestKey(text, route, hashlib.sha256(body).digest())


def at_ms(moment: datetime) -> int:
    """An instant as milliseconds since the epoch, rounded up: nothing that was before it is at or after the result."""
    return -((_EPOCH - moment) // _MS)
