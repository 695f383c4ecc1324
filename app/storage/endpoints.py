"""The store over HTTP: PUT, GET and HEAD of `/objects/{key}` by signed URL, in bounded memory both ways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.core.model.ids import ENTROPY_BITS, make_id
from app.errors import AllpassError, InvalidInput, ObjectCorrupt, TooLarge, UserError
from app.ports.clock import Clock
from app.storage.directory import DirectoryStore, OpenObject
from app.storage.incoming import STORE_FULL
from app.storage.signing import URL_PATH, Grant, verify

_log = logging.getLogger(__name__)
_RANGE = re.compile(r"bytes=(?:(?P<first>[0-9]{1,18})-(?P<last>[0-9]{1,18})?|-(?P<suffix>[0-9]{1,18}))")
LENGTH_REQUIRED = "length_required"
LENGTH_WRONG = "length_wrong"
BODY_INCOMPLETE = "body_incomplete"
BODY_STALLED = "body_stalled"
RANGE_UNSATISFIABLE = "range_unsatisfiable"
_STATUS_OF_CODE = {
    STORE_FULL: 507,
    ObjectCorrupt.code: 422,
    LENGTH_REQUIRED: 411,
    BODY_STALLED: 408,
    RANGE_UNSATISFIABLE: 416,
}


class ObjectEndpoints:
    """The routes over one store. `idle_timeout_ms`: how long a peer may stay silent in the middle of a transfer."""

    def __init__(self, store: DirectoryStore, *, signing_key: bytes, clock: Clock, idle_timeout_ms: int) -> None:
        self._store = store
        self._signing_key = signing_key
        self._clock = clock
        self._idle_timeout_s = idle_timeout_ms / 1000

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route(URL_PATH + "{key:path}", self.put, methods=["PUT"]),
                Route(URL_PATH + "{key:path}", self.get, methods=["GET", "HEAD"]),
                Route("/healthz", self.healthz, methods=["GET"]),
            ],
            exception_handlers={AllpassError: self._refused, HTTPException: self._no_route, Exception: self._broken},
        )

    async def healthz(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def put(self, request: Request) -> Response:
        """Store the body: 201, or 200 when the object is there already (the body is then not read)."""
        grant = self._grant(request)
        if grant.sha256 is None or grant.size_bytes is None:
            raise InvalidInput("a URL for PUT names sha256 and size")
        _check_length(request.headers.get("content-length"), grant.size_bytes)
        info, is_new = await self._store.put_stream(
            grant.key, self._body(request), sha256=grant.sha256, size_bytes=grant.size_bytes
        )
        answer = {"key": info.key, "sha256": info.sha256, "size_bytes": info.size_bytes}
        return JSONResponse(answer, status_code=201 if is_new else 200)

    async def get(self, request: Request) -> Response:
        """The object, or the one range of it that was asked for."""
        grant = self._grant(request)
        source = await self._store.open(grant.key)
        try:
            return ObjectResponse(source, request.headers.get("range"), idle_timeout_s=self._idle_timeout_s)
        except BaseException:
            source.close()
            raise

    def _grant(self, request: Request) -> Grant:
        return verify(
            request.method,
            request.path_params["key"],
            request.url.query,
            signing_key=self._signing_key,
            now_ms=self._clock.now_ms(),
        )

    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The request's body; one that ends early or stalls is an error, so that nothing of it is kept."""
        stream = request.stream()
        while True:
            try:
                async with asyncio.timeout(self._idle_timeout_s):
                    chunk = await anext(stream, None)
            except ClientDisconnect:
                raise UserError("the connection ended before the body did", code=BODY_INCOMPLETE) from None
            except TimeoutError:
                message = f"no byte of the body came for {self._idle_timeout_s:g} s: upload again"
                raise UserError(message, code=BODY_STALLED) from None
            if chunk is None:
                return
            yield chunk

    async def _refused(self, _request: Request, error: Exception) -> Response:
        if not isinstance(error, AllpassError):
            raise error
        return self._error(
            _STATUS_OF_CODE.get(error.error_code, error.http_status),
            error.error_code,
            error.message,
            param=error.param,
            retryable=error.retryable,
            headers=error.headers if isinstance(error, _Unsatisfiable) else None,
        )

    async def _no_route(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        return self._error(
            error.status_code, code, f"{request.method} {request.url.path} is not served here", headers=error.headers
        )

    async def _broken(self, _request: Request, error: Exception) -> Response:
        return self._error(500, "internal_error", f"the object store failed: {type(error).__name__}", retryable=True)

    def _error(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        request_id = make_id("req", self._clock.now_ms(), secrets.randbits(ENTROPY_BITS))
        detail = {
            "code": code,
            "message": message,
            "param": param,
            "request_id": request_id,
            "retryable": retryable,
        }
        return JSONResponse({"error": detail}, status_code=status, headers=headers)


class ObjectResponse(Response):
    """200 with the whole object or 206 with one range, sent piece by piece; a reader that stalls is let go."""

    def __init__(self, source: OpenObject, range_header: str | None, *, idle_timeout_s: float) -> None:
        info = source.info
        self._source = source
        self._idle_timeout_s = idle_timeout_s
        part = _part(range_header, info.size_bytes)
        self._start, self._end = part or (0, info.size_bytes)
        headers = {
            "content-length": str(self._end - self._start),
            "content-type": "application/octet-stream",
            "accept-ranges": "bytes",
            "etag": f'"{info.sha256}"',
            "cache-control": "private, immutable",
        }
        if part:
            headers["content-range"] = f"bytes {self._start}-{self._end - 1}/{info.size_bytes}"
        super().__init__(status_code=206 if part else 200, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A reader that stalls gets an unfinished body: the server then closes the connection."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                async with contextlib.aclosing(self._source.stream(self._start, self._end)) as pieces:
                    async for piece in pieces:
                        async with asyncio.timeout(self._idle_timeout_s):
                            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            _log.warning("gave up on a reader of %s after %g s of silence", self._source.info.key, self._idle_timeout_s)
        finally:
            self._source.close()


class _Unsatisfiable(UserError):
    code = RANGE_UNSATISFIABLE

    def __init__(self, asked: str, size_bytes: int) -> None:
        super().__init__(f"range {asked!r} is outside an object of {size_bytes} bytes", param="Range")
        self.headers = {"content-range": f"bytes */{size_bytes}"}


def _part(range_header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """First byte and the one after the last; None for the whole. A header that is not one range of bytes is ignored,
    as HTTP asks; a range outside the object is refused."""
    found = _RANGE.fullmatch(range_header.strip()) if range_header else None
    if range_header is None or found is None:
        return None
    if found["suffix"] is not None:
        start, end = max(0, size_bytes - int(found["suffix"])), size_bytes
    else:
        start, end = int(found["first"]), size_bytes
        if found["last"] is not None:
            if int(found["last"]) < start:
                return None
            end = min(size_bytes, int(found["last"]) + 1)
    if start >= end:
        raise _Unsatisfiable(range_header, size_bytes)
    return start, end


def _check_length(content_length: str | None, size_bytes: int) -> None:
    if content_length is None or not content_length.isascii() or not content_length.isdigit():
        raise UserError("send a Content-Length: the URL is signed for an exact size", code=LENGTH_REQUIRED)
    if int(content_length) > size_bytes:
        raise TooLarge(f"the URL is signed for {size_bytes} bytes, the body has {content_length}")
    if int(content_length) < size_bytes:
        raise UserError(f"the URL is signed for {size_bytes} bytes, the body has {content_length}", code=LENGTH_WRONG)
