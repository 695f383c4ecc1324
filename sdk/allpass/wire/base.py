"""What all wire models share: unknown fields are refused in requests and tolerated in responses."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, Strict, StrictBool, StringConstraints
from pydantic_core import PydanticKnownError


def _number(value: Any) -> Any:
    if isinstance(value, (bool, str)):
        raise PydanticKnownError("int_type")
    return value


def _written_out(value: Any) -> Any:
    if not isinstance(value, datetime) and not (isinstance(value, str) and _DATE.match(value)):
        raise ValueError("expected an instant with its zone, e.g. 2026-12-01T18:00:00Z")
    return value


_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:")

# What requests are made of. Nothing is guessed: "1" and true are no numbers, 0 is no answer to a question, and a number
# is no instant.
# Limits stand before `Unguessed`, or as a field's own: else they would be missing in the JSON schema.
Unguessed = BeforeValidator(_number)
Whole = Annotated[int, Unguessed]
Positive = Annotated[int, Field(ge=1), Unguessed]
Real = Annotated[float, Strict()]
Flag = StrictBool
Instant = Annotated[AwareDatetime, BeforeValidator(_written_out)]

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]
Label = Annotated[str, StringConstraints(max_length=200)]
MicroUsd = Annotated[int, Field(ge=0, description="micro-dollars; 1 USD = 1,000,000")]

Item = TypeVar("Item")


class Request(BaseModel):
    """A body that we receive: a misspelt field is an error, never ignored."""

    model_config = ConfigDict(extra="forbid")


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
