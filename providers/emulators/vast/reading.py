"""Bodies and parameters of calls to the emulated Vast.ai. Each raises Refused for what is no JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from providers.emulators.vast.errors import RefusedAnswer


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that was sent; empty when nothing was."""
    if not await request.body():
        return {}
    try:
        body = await request.json()
    except ValueError as error:
        raise RefusedAnswer(400, "invalid_request", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RefusedAnswer(400, "invalid_request", "the body must be a JSON object")
    return body


def json_of(text: str) -> Any:
    """What a parameter of the path holds."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise RefusedAnswer(400, "invalid_request", f"{text!r} is not JSON") from error


def object_of(text: str) -> Mapping[str, Any]:
    """The same, where it has to be an object."""
    read = json_of(text)
    if not isinstance(read, dict):
        raise RefusedAnswer(400, "invalid_request", f"{text!r} is not a JSON object")
    return read
