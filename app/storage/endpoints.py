"""What the store's server answers: PUT, GET and HEAD of `/objects/{key}` by signed URL, in bounded memory both ways."""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from app.core.model.ids import ENTROPY_BITS, make_id
from app.errors import AllpassError, InvalidInput, NotFound, ObjectCorrupt, TooLarge, UserError
from app.ports.clock import Clock
from app.storage.directory import DirectoryStore, OpenObject
from app.storage.http_connection import BODY_STALLED, HEAD_TOO_LARGE, FileSlice, Reply, Request
from app.storage.incoming import STORE_FULL
from app.storage.signing import URL_PATH, Grant, verify

_log = logging.getLogger(__name__)
_RANGE = re.compile(r"bytes=(?:(?P<first>[0-9]{1,18})-(?P<last>[0-9]{1,18})?|-(?P<suffix>[0-9]{1,18}))")
LENGTH_REQUIRED = "length_required"
LENGTH_WRONG = "length_wrong"
RANGE_UNSATISFIABLE = "range_unsatisfiable"
METHOD_NOT_ALLOWED = "method_not_allowed"
_STATUS_OF_CODE = {
    STORE_FULL: 507,
    ObjectCorrupt.code: 422,
    LENGTH_REQUIRED: 411,
    BODY_STALLED: 408,
    RANGE_UNSATISFIABLE: 416,
    METHOD_NOT_ALLOWED: 405,
    HEAD_TOO_LARGE: 431,
}


class ObjectEndpoints:
    """The routes over one store (`app.storage.http_connection.Answers`)."""

    def __init__(self, store: DirectoryStore, *, signing_key: bytes, clock: Clock) -> None:
        self._store = store
        self._signing_key = signing_key
        self._clock = clock

    def answer(self, request: Request) -> Reply:
        try:
            return self._answer(request)
        except AllpassError as error:
            return self.refuse(error)
        except Exception as error:
            _log.exception("the object store failed")
            return self._error(
                500, "internal_error", f"the object store failed: {type(error).__name__}", retryable=True
            )

    def refuse(self, error: AllpassError) -> Reply:
        return self._error(
            _STATUS_OF_CODE.get(error.error_code, error.http_status),
            error.error_code,
            error.message,
            param=error.param,
            retryable=error.retryable,
            headers=error.headers if isinstance(error, _Unsatisfiable | _WrongMethod) else None,
        )

    def _answer(self, request: Request) -> Reply:
        path, query = _path_and_query(request.target)
        if path == "/healthz":
            _check_method(request, ("GET", "HEAD"))
            return _json(200, {"status": "ok"})
        if not path.startswith(URL_PATH):
            raise NotFound(f"{request.method} {path} is not served here")
        _check_method(request, ("GET", "HEAD", "PUT"))
        key = path.removeprefix(URL_PATH)
        grant = verify(request.method, key, query, signing_key=self._signing_key, now_ms=self._clock.now_ms())
        return self._put(request, grant) if request.method == "PUT" else self._get(request, grant)

    def _put(self, request: Request, grant: Grant) -> Reply:
        """Store the body: 201, or 200 when the object is there already (the body is of no interest then)."""
        if grant.sha256 is None or grant.size_bytes is None:
            raise InvalidInput("a URL for PUT names sha256 and size")
        _check_length(request.body.length, grant.size_bytes)
        blocks = request.body.blocks()
        info, is_new = self._store.take(grant.key, blocks, sha256=grant.sha256, size_bytes=grant.size_bytes)
        answer = {"key": info.key, "sha256": info.sha256, "size_bytes": info.size_bytes}
        return _json(201 if is_new else 200, answer)

    def _get(self, request: Request, grant: Grant) -> Reply:
        """The object, or the one range of it that was asked for."""
        source = self._store.open(grant.key)
        try:
            return _object_reply(source, request.headers.get("range"))
        except BaseException:
            source.close()
            raise

    def _error(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        request_id = make_id("req", self._clock.now_ms(), secrets.randbits(ENTROPY_BITS))
        detail = {"code": code, "message": message, "param": param, "request_id": request_id, "retryable": retryable}
        return _json(status, {"error": detail}, headers=headers)


class _Unsatisfiable(UserError):
    code = RANGE_UNSATISFIABLE

    def __init__(self, asked: str, size_bytes: int) -> None:
        super().__init__(f"range {asked!r} is outside an object of {size_bytes} bytes", param="Range")
        self.headers = {"content-range": f"bytes */{size_bytes}"}


class _WrongMethod(UserError):
    code = METHOD_NOT_ALLOWED

    def __init__(self, request: Request, allowed: Iterable[str]) -> None:
        super().__init__(f"{request.method} is not served here")
        self.headers = {"allow": ", ".join(allowed)}


def _check_method(request: Request, allowed: tuple[str, ...]) -> None:
    if request.method not in allowed:
        raise _WrongMethod(request, allowed)


def _path_and_query(target: str) -> tuple[str, str]:
    """Of the path, or of the whole URL that clients send to what they take for a proxy. `//x` is a path, not a host."""
    if not target.startswith("/"):
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    return unquote(path), query


def _json(status: int, content: object, *, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, {"content-type": "application/json", **(headers or {})}, json.dumps(content).encode())


def _object_reply(source: OpenObject, range_header: str | None) -> Reply:
    info = source.info
    part = _part(range_header, info.size_bytes)
    start, end = part or (0, info.size_bytes)
    headers = {
        "content-type": "application/octet-stream",
        "accept-ranges": "bytes",
        "etag": f'"{info.sha256}"',
        "cache-control": "private, immutable",
    }
    if part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{info.size_bytes}"
    return Reply(206 if part else 200, headers, FileSlice(source.file, start, end - start))


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


def _check_length(length: int | None, size_bytes: int) -> None:
    if length is None:
        raise UserError("send a Content-Length: the URL is signed for an exact size", code=LENGTH_REQUIRED)
    if length > size_bytes:
        raise TooLarge(f"the URL is signed for {size_bytes} bytes, the body has {length}")
    if length < size_bytes:
        raise UserError(f"the URL is signed for {size_bytes} bytes, the body has {length}", code=LENGTH_WRONG)
