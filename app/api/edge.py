"""The outermost frame of every request: its id, a bounded and checked body, and no exception that escapes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.bodies import check_body, check_text
from app.api.errors import error_response
from app.errors import AllpassError, InvalidInput, TooLarge

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024
MAX_AGENT_BODY_BYTES = 8 * 1024 * 1024  # a manifest names up to 10,000 files
_AGENT_PATHS = "/v1/agent/"
_REQUEST_ID = re.compile(rb"^[A-Za-z0-9._:-]{1,100}$")
_WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Read by their routes, once the caller was let in.
_STREAMED = re.compile(r"/v1/finetunes/data\Z|/v1/simulations/trace\Z")
_STREAMED_FORM = re.compile(r"/openai/v1/(files|uploads/[^/]{1,100}/parts)\Z")


class Edge:
    """Pure ASGI. Leaves `allpass.request_id` and, for methods with a body, `allpass.body` in the scope: empty where a
    route reads it piece by piece."""

    def __init__(self, app: ASGIApp, new_request_id: Callable[[], str]) -> None:
        self._app = app
        self._new_request_id = new_request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._request_id(scope)
        scope["allpass.request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            _check_url(scope)
            if _is_streamed(scope):
                scope["allpass.body"] = b""
            elif scope["method"] in _WITH_BODY:
                receive = await _with_body(scope, receive)
            await self._app(scope, receive, send_with_id)
        except AllpassError as error:
            await error_response(error, request_id, scope["path"])(scope, receive, send_with_id)
        except Exception as error:
            if not started:
                await error_response(error, request_id, scope["path"])(scope, receive, send_with_id)
            else:
                log.debug("request %s: its answer had begun when it failed", request_id, exc_info=error)

    def _request_id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id" and _REQUEST_ID.match(value):
                return str(value.decode())
        return self._new_request_id()


def _is_streamed(scope: Scope) -> bool:
    path = scope["path"]
    return bool(_STREAMED.match(path) or (scope["method"] == "POST" and _STREAMED_FORM.match(path)))


def _check_url(scope: Scope) -> None:
    if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
        raise InvalidInput("the URL holds a NUL character (%00); remove it", param="url")


async def _with_body(scope: Scope, receive: Receive) -> Receive:
    """Read the whole body within its limit; a `receive` that hands it out once, then goes on as before."""
    from_agent = scope["path"].startswith(_AGENT_PATHS)
    limit = MAX_AGENT_BODY_BYTES if from_agent else MAX_BODY_BYTES
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    while message["type"] == "http.request" and message.get("more_body", False) and len(body) <= limit:
        message = await receive()
        body += message.get("body", b"")
    if len(body) > limit:
        raise _too_large(limit)
    check_text(body)
    if not from_agent:  # its reports carry what user code wrote: what cannot be stored is mended there, not refused
        check_body(body)
    scope["allpass.body"] = body
    held: list[Message] = [message if message["type"] != "http.request" else {"type": "http.request", "body": body}]

    async def hand_out() -> Message:
        return held.pop() if held else await receive()

    return hand_out


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes; bulk data goes to the object store by signed URL")
