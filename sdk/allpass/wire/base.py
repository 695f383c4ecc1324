"""What all wire models share: unknown fields are refused in requests of people, and tolerated in what agents say and in
responses."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticKnownError


def _number(value: Any) -> Any:
    if isinstance(value, (bool, str)):
        raise PydanticKnownError("int_type")
    return value


def _written_out(value: Any) -> Any:
    if not isinstance(value, datetime) and not (isinstance(value, str) and _DATE.match(value)):
        raise ValueError("expected an instant with its zone, e.g. 2026-12-01T18:00:00Z")
    return value


def _on_the_calendar(value: datetime) -> datetime:
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError("expected an instant that is within the years 1 to 9999 in UTC") from None


def _on_one_line(value: str) -> str:
    wrong = _NOT_ON_A_LINE.search(value)
    if wrong is not None:
        raise ValueError(
            f"leave {wrong[0]!r} out: no line breaks, no characters that steer a terminal or turn text round"
        )
    return value


_UNSHOWABLE = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_NOT_ON_A_LINE = re.compile(f"[{_UNSHOWABLE}]")
_ON_A_LINE = f"^[^{_UNSHOWABLE}]*$"
_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:")
LARGEST = 2**53  # what every reader of JSON can hold exactly
MOST_STEPS = 10**12
MOST_SEQUENCES = 2**20
LONGEST_SEQUENCE = 2**24
LONGEST_DURATION_S = 3650 * 86_400  # ten years, as the furthest deadline
MOST_USD = 1_000_000
MOST_RETRIES = 100

# What requests are made of. Nothing is guessed: "1" and true are no numbers, 0 is no answer to a question, and a number
# is no instant.
# Limits stand before `Unguessed`, or as a field's own: else they would be missing in the JSON schema. Everything has
# one: tests/sdk/test_wire_limits.py finds what has none.
Unguessed = BeforeValidator(_number)
Whole = Annotated[int, Unguessed]
Positive = Annotated[int, Field(ge=1, le=LARGEST), Unguessed]
Count = Annotated[int, Field(ge=0, le=LARGEST), Unguessed]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS), Unguessed]
Sequences = Annotated[int, Field(ge=1, le=MOST_SEQUENCES), Unguessed]
SequenceLength = Annotated[int, Field(ge=1, le=LONGEST_SEQUENCE), Unguessed]
Rank = Annotated[int, Field(ge=1, le=65_536), Unguessed]
Seconds = Annotated[int, Field(ge=1, le=LONGEST_DURATION_S), Unguessed]
Retries = Annotated[int, Field(ge=0, le=MOST_RETRIES), Unguessed]
Version = Annotated[int, Field(ge=1, lt=2**31), Unguessed]
Real = Annotated[float, Strict()]
Flag = StrictBool
Instant = Annotated[AwareDatetime, BeforeValidator(_written_out), AfterValidator(_on_the_calendar)]

Usd = Annotated[float, Strict(), Field(gt=0, le=MOST_USD, allow_inf_nan=False)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$", max_length=64)]
Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, strip_whitespace=True),
    AfterValidator(_on_one_line),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 200, "pattern": _ON_A_LINE}),
]
Label = Annotated[
    str,
    StringConstraints(max_length=200),
    AfterValidator(_on_one_line),
    WithJsonSchema({"type": "string", "maxLength": 200, "pattern": _ON_A_LINE}),
]
Reference = Annotated[str, StringConstraints(max_length=100)]  # an id, as the caller wrote it
Deadline = Annotated[str, StringConstraints(max_length=100)]
LibraryVersion = Annotated[str, StringConstraints(max_length=60)]
MicroUsd = Annotated[int, Field(ge=0, description="micro-dollars; 1 USD = 1,000,000")]

Item = TypeVar("Item")


class Request(BaseModel):
    """A body that we receive: a misspelt field is an error, never ignored."""

    model_config = ConfigDict(extra="forbid")


class Message(BaseModel):
    """A body that an agent sends, who may be of a newer release: what we do not know of it is ignored."""

    model_config = ConfigDict(extra="ignore")


class Response(BaseModel):
    """A body that we send: older clients ignore fields they do not know."""

    model_config = ConfigDict(extra="ignore")


class Page(Response, Generic[Item]):
    """One page of a list. `next_cursor` is None on the last one; pass it back as `cursor`."""

    data: list[Item]
    next_cursor: str | None = None


class ErrorDetail(Response):
    """`code` is from a closed, documented list; `param` names the offending field."""

    code: str
    message: str
    param: str | None = None
    request_id: str
    retryable: bool = False


class ErrorBody(Response):
    error: ErrorDetail
