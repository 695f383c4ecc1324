"""What all wire models share: unknown fields are refused in requests and tolerated in responses."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

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
