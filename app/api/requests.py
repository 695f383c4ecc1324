"""What requests share beside their body: ids in paths, idempotency keys, page sizes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import Header, Path, Query
from starlette.types import Scope

from app.api.example_ids import example_id
from app.core.model.ids import Prefix, is_id
from app.db.access.idempotency import RequestKey
from app.errors import InvalidInput, NotFound

IDEMPOTENCY_KEY = "Idempotency-Key"
_LONGEST_KEY = 200
_SHOWN_CHARS = 80
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

_LONGEST_CURSOR = 4096  # a path of 512 characters, written in base 64

Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many items", examples=[100])]
Cursor = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=_LONGEST_CURSOR,
        description="`next_cursor` of the page before, as it is; left out: the first page",
    ),
]
WaitS = Annotated[float, Query(ge=0, le=30, description="Wait so many seconds for something new", examples=[20])]
IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_KEY,
        description="Your name for this request, e.g. a UUID: within a day, it gets its first answer again",
        examples=["8e03978e-40d5-43e8-bc93-6894a57f9324"],
        json_schema_extra={"minLength": 1, "maxLength": _LONGEST_KEY, "pattern": "^[ -~]+$"},
    ),
]


def _id_in_path(prefix: Prefix, noun: str) -> Any:
    """What an id looks like is told, and not checked here: what cannot be one names nothing, which is a 404."""
    return Path(
        description=f"Id of {noun}",
        examples=[example_id(prefix)],
        json_schema_extra={"pattern": f"^{prefix}_[0-9A-HJKMNP-TV-Z]{{20}}$"},
    )


JobId = Annotated[str, _id_in_path("job", "the job")]
SweepId = Annotated[str, _id_in_path("swp", "the sweep")]
AppId = Annotated[str, _id_in_path("app", "the app")]
KeyId = Annotated[str, _id_in_path("key", "the key (not the key itself)")]
ProjectId = Annotated[str, _id_in_path("proj", "the project")]
CheckpointId = Annotated[str, _id_in_path("ckpt", "the checkpoint")]
ReservationId = Annotated[str, _id_in_path("resv", "the reservation")]
WindowId = Annotated[str, _id_in_path("stbw", "the window")]
BudgetId = Annotated[str, _id_in_path("bud", "the budget")]
CalibrationId = Annotated[str, _id_in_path("cal", "the calibration")]
DefragmentationId = Annotated[str, _id_in_path("dfrg", "the defragmentation")]


def request_key(scope: Scope, route: str) -> RequestKey | None:
    """The request's idempotency key, if it has one. Raises InvalidInput for one that cannot be used."""
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            return _make_key(value, route, scope["allpass.body"])
    return None


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


def at_most_shown(text: str) -> str:
    """As it is quoted in a message."""
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")


def at_ms(moment: datetime) -> int:
    """An instant as milliseconds since the epoch, rounded up: nothing that was before it is at or after the result."""
    return -((_EPOCH - moment) // _MS)
