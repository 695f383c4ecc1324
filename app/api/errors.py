"""Every failure as one body: `{"error": {"code", "message", "param", "request_id", "retryable"}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from allpass.templates import strange_field
from allpass.wire.base import ErrorBody, ErrorDetail
from app.api.openai.errors import PREFIX as DOOR
from app.api.openai.errors import door_error, no_route
from app.errors import AllpassError, InvalidInput, NotFound, TooManyRequests

RETRY_AFTER_S = "1"
NO_REQUEST_ID = "none"
OWN_METHODS = "allpass.own_methods"  # in the scope of a path that is one route's own
_SHOWN_CHARS = 80
_MOST_LOOKED_AT = 100  # of the problems of one request: a body may have one for every few bytes
_NEVER_SHOWN = frozenset({"value", "api_key"})  # a secret, and what opens everything

log = logging.getLogger(__name__)


class ErrorCode(StrEnum):
    """The closed list of error codes. Programs may branch on them; messages are for people and may change."""

    INVALID_REQUEST = "invalid_request"  # 400
    UNAUTHENTICATED = "unauthenticated"  # 401: no key, or one that is unknown, expired or revoked
    FORBIDDEN = "forbidden"  # 403: the key lacks the scope
    PROJECT_ARCHIVED = "project_archived"  # 403: keys of the project open nothing until it is restored
    NOT_FOUND = "not_found"  # 404: also for what belongs to another project
    METHOD_NOT_ALLOWED = "method_not_allowed"  # 405
    CONFLICT = "conflict"  # 409: the thing is not in a state that allows this
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"  # 409: the key was used for another request
    NOT_ELASTIC = "not_elastic"  # 409: the job's training keeps the GPUs that it began with
    NOT_RESERVABLE = "not_reservable"  # 409: so many GPUs are not there, or are promised to others in that window
    NOT_LENDABLE = "not_lendable"  # 409: its GPUs cannot be lent; the message says what would have to change
    NO_ROOM = "no_room"  # 409: its machine has not so many GPUs that are free
    STEPS_WOULD_BE_LOST = "steps_would_be_lost"  # 409: the job's checkpoints are not kept; `lose_steps` goes on
    PRICE_FAR_OFF = "price_far_off"  # 409: far from the price in use; `confirm` goes on
    FENCED = "fenced"  # 409: an agent that no longer holds the job's epoch
    TOO_LARGE = "too_large"  # 413
    URL_TOO_LONG = "url_too_long"  # 414
    HEADERS_TOO_LARGE = "headers_too_large"  # 431
    INVALID_INPUT = "invalid_input"  # 422: `param` names the field
    RATE_LIMITED = "rate_limited"  # 429: too much at once with this key, or of this node; wait for Retry-After seconds
    INTERNAL_ERROR = "internal_error"  # 500: quote the request id
    UNAVAILABLE = "unavailable"  # 503: a part we need does not answer; retry
    DATABASE_FULL = "database_full"  # 503: there is no room left on the database's disk; retry once there is
    STORE_UNAVAILABLE = "store_unavailable"  # 503: the object store does not answer; retry
    STORE_FULL = "store_full"  # 503: there is no room left in the object store; retry once there is
    STORE_MISCONFIGURED = "store_misconfigured"  # 503: whoever runs the service must set its object store right
    STORE_ERROR = "store_error"  # 502
    OBJECT_MISSING = "object_missing"  # 404: the object store does not hold it
    OBJECT_CORRUPT = "object_corrupt"  # 502: the stored bytes are not what their hash says
    PROVIDER_ERROR = "provider_error"  # 502


_CODES = frozenset(code.value for code in ErrorCode)
_DOCUMENTED: Mapping[int, str] = {
    400: "The request cannot be understood",
    401: "No API key or session, or one that is unknown, expired or revoked",
    403: "The API key lacks the scope, its project is archived, or a session's request has no `X-CSRF-Token`",
    404: "There is no such thing in this project",
    405: "The path exists, the method does not",
    409: "Not in a state that allows this, or the Idempotency-Key was used for another request",
    413: "The body, or what it asks for, is too large",
    414: "The URL is too long",
    422: "A field is wrong: `param` names it",
    429: "Too much at once with this API key, or of this node: ask again after `Retry-After` seconds",
    500: "Our fault: quote the request id",
    502: "A part behind the service failed",
    503: "A part that is needed does not answer: retry after `Retry-After` seconds",
}
_BY_STATUS: Mapping[int, tuple[ErrorCode, ...]] = {
    400: (ErrorCode.INVALID_REQUEST,),
    401: (ErrorCode.UNAUTHENTICATED,),
    403: (ErrorCode.FORBIDDEN, ErrorCode.PROJECT_ARCHIVED),
    404: (ErrorCode.NOT_FOUND,),
    405: (ErrorCode.METHOD_NOT_ALLOWED,),
    409: (
        ErrorCode.CONFLICT,
        ErrorCode.IDEMPOTENCY_CONFLICT,
        ErrorCode.STEPS_WOULD_BE_LOST,
        ErrorCode.NOT_ELASTIC,
        ErrorCode.NOT_RESERVABLE,
        ErrorCode.NOT_LENDABLE,
        ErrorCode.NO_ROOM,
        ErrorCode.PRICE_FAR_OFF,
        ErrorCode.FENCED,
    ),
    413: (ErrorCode.TOO_LARGE,),
    414: (ErrorCode.URL_TOO_LONG,),
    422: (ErrorCode.INVALID_INPUT,),
    429: (ErrorCode.RATE_LIMITED,),
    431: (ErrorCode.HEADERS_TOO_LARGE,),
    500: (ErrorCode.INTERNAL_ERROR,),
    502: (ErrorCode.STORE_ERROR, ErrorCode.OBJECT_CORRUPT, ErrorCode.PROVIDER_ERROR),
    503: (
        ErrorCode.UNAVAILABLE,
        ErrorCode.DATABASE_FULL,
        ErrorCode.STORE_UNAVAILABLE,
        ErrorCode.STORE_FULL,
        ErrorCode.STORE_MISCONFIGURED,
    ),
}


def codes_of(status: int) -> tuple[ErrorCode, ...]:
    """The codes that errors of this status may have."""
    return _BY_STATUS[status]


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the errors of a route. Those that any route may answer are added; `app.api.openapi` says
    which codes they may have."""
    any_route = {429, 500} if 403 in statuses else {500}  # the rate is counted by API key
    return {
        status: {"model": ErrorBody, "description": _DOCUMENTED[status]} for status in sorted({*statuses, *any_route})
    }


def install(app: FastAPI) -> None:
    """Answer every exception of the app in our form."""
    app.add_exception_handler(AllpassError, _on_allpass_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_bug)


def error_response(error: BaseException, request_id: str, path: str = "") -> Response:
    """What the client is told of an error, in the form of the API that `path` belongs to. What is not meant for it is
    logged instead, with the request id."""
    return door_error(error, request_id) if path.startswith(DOOR) else _our_response(error, request_id)


def _our_response(error: BaseException, request_id: str) -> Response:
    if not isinstance(error, AllpassError):
        log.error("request %s failed", request_id, exc_info=error)
        return _body(500, ErrorCode.INTERNAL_ERROR, _internal(request_id), request_id)
    if error.http_status == HTTPStatus.INTERNAL_SERVER_ERROR or error.error_code not in _CODES:
        log.error("request %s failed: %s", request_id, error.message, exc_info=error)
        return _body(500, ErrorCode.INTERNAL_ERROR, _internal(request_id), request_id)
    if error.http_status > HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request %s: %s", request_id, error.message)
    response = _body(
        error.http_status, error.error_code, error.message, request_id, param=error.param, retryable=error.retryable
    )
    if isinstance(error, TooManyRequests):
        response.headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))  # whole seconds, rounded up
    return response


def unreadable_request(status: int, message: str) -> bytes:
    """The body for what is no request that could be served, so that nothing of it is known: 400, 414 or 431."""
    detail = ErrorDetail(code=codes_of(status)[0], message=message, request_id=NO_REQUEST_ID)
    return ErrorBody(error=detail).model_dump_json().encode()


def invalid_input(error: ValidationError | RequestValidationError) -> InvalidInput:
    """The first wrong field of a request, in words: where, the value, and what would be accepted."""
    problems: Sequence[Any] = error.errors()
    problem = _deepest(problems[:_MOST_LOOKED_AT])
    path = _path(problem["loc"])
    shown = "what was sent" if path in _NEVER_SHOWN else _shown(problem.get("input"))
    kind = problem["type"]
    if kind == "missing":
        message = "a value is required"
    elif kind == "extra_forbidden":
        message = _strange(problem) or "there is no such field; see the API reference for those that exist"
    elif kind == "json_invalid":
        reason = problem.get("ctx", {}).get("error", "not JSON")
        return InvalidInput(f"body: not valid JSON: {reason}", param="body")
    elif path == "body" and kind in ("model_attributes_type", "model_type", "dict_type"):
        message = "expected a JSON object, sent as Content-Type: application/json"
    else:
        text = str(problem["msg"]).removeprefix("Value error, ")
        message = f"{shown}: {text[:1].lower()}{text[1:]}"
    return InvalidInput(f"{path}: {message}", param=path)


def _strange(problem: Any) -> str | None:
    """Of a field that a template does not have: what was meant."""
    where = [part for part in problem["loc"] if part != "body"]
    if len(where) < 2 or where[0] != "template":
        return None
    try:
        meant = strange_field(tuple(where[1:]), problem.get("input"))
    except (KeyError, StopIteration):  # below a field of the caller's own
        return None
    return f"{meant.message}; try {meant.hint}"


def _deepest(problems: Sequence[Any]) -> Any:
    """The first problem; of a value that matched no member of a union, the complaint that goes furthest into it."""
    first = _path(problems[0]["loc"])
    same = [problem for problem in problems if _path(problem["loc"]).startswith(first)]
    return max(same, key=lambda problem: len(problem["loc"]))


def _path(loc: Sequence[int | str]) -> str:
    parts = list(loc)
    if len(parts) > 1 and parts[0] in ("body", "query", "path", "header"):
        parts = parts[1:]
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif "[" not in part:  # a member of a union, e.g. dict[str,any], is no field
            name = _name(part)
            path += f".{name}" if path else name
    return path or "body"


def _name(part: str) -> str:
    """Of a field; one of the caller's own (a label) may be anything."""
    short = part if len(part) <= _SHOWN_CHARS else part[: _SHOWN_CHARS - 1] + "…"
    return short if short.isprintable() else ascii(short)[1:-1]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _internal(request_id: str) -> str:
    return f"the service failed; it is our fault. Quote request id {request_id} when you report it"


def _body(
    status: int, code: str, message: str, request_id: str, *, param: str | None = None, retryable: bool = False
) -> Response:
    detail = ErrorDetail(code=str(code), message=message, param=param, request_id=request_id, retryable=retryable)
    headers = {"Retry-After": RETRY_AFTER_S} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    content = ErrorBody(error=detail).model_dump_json()
    return Response(content, status, headers, media_type="application/json")


async def _on_allpass_error(request: Request, error: Exception) -> Response:
    return error_response(error, _request_id(request), request.url.path)


async def _on_bug(request: Request, error: Exception) -> Response:
    """Starlette raises the error again behind this answer: `app.api.edge` ends it."""
    return error_response(error, _request_id(request), request.url.path)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(invalid_input(error), _request_id(request), request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    request_id = _request_id(request)
    if request.url.path.startswith(DOOR):
        return no_route(request.method, request.url.path)
    if error.status_code == HTTPStatus.NOT_FOUND:
        return error_response(NotFound(f"there is no {request.url.path} here; see /docs"), request_id)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{request.method} is not possible on {request.url.path}"
        response = _body(405, ErrorCode.METHOD_NOT_ALLOWED, message, request_id)
        response.headers["Allow"] = ", ".join(_allowed(request))
        return response
    return _body(error.status_code, ErrorCode.INVALID_REQUEST, str(error.detail), request_id)


def _allowed(request: Request) -> list[str]:
    """Every method of this path: Starlette names those of the first route alone. A route whose path is its own has left
    its methods in the scope."""
    known = ("GET", "POST", "PUT", "PATCH", "DELETE")
    scope = request.scope
    own = scope.get(OWN_METHODS)
    if own is not None:
        return [method for method in known if method in own]
    return [
        method
        for method in known
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in request.app.router.routes)
    ]


def _request_id(request: Request) -> str:
    return str(request.scope.get("allpass.request_id", NO_REQUEST_ID))
