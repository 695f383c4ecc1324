"""Errors as OpenAI's client expects them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus

from fastapi import Response

from app.errors import AllpassError, TooManyRequests

PREFIX = "/openai/"
log = logging.getLogger(__name__)
_OUR_WORDS = frozenset({"invalid_input", "invalid_request", "not_found", "conflict", "forbidden", "too_large"})
_CODES = {"unauthenticated": "invalid_api_key", "rate_limited": "rate_limit_exceeded"}


def door_error(error: BaseException, request_id: str) -> Response:
    """What a client of this door is told of an error. What is not meant for it is logged, with the request id."""
    if not isinstance(error, AllpassError) or error.http_status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request %s failed", request_id, exc_info=error)
        message = f"The server had an error while processing your request. Quote request id {request_id}."
        return door_body(500, message, "server_error")
    status = 400 if error.http_status == HTTPStatus.UNPROCESSABLE_ENTITY else error.http_status
    if status > HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request %s: %s", request_id, error.message)
    code = _CODES.get(error.error_code, error.error_code)
    response = door_body(
        status, error.message, _kind(status), param=error.param, code=None if code in _OUR_WORDS else code
    )
    if isinstance(error, TooManyRequests):
        response.headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
        response.headers["Retry-After-Ms"] = str(error.retry_after_ms)
    return response


def door_body(
    status: int, message: str, kind: str = "invalid_request_error", *, param: str | None = None, code: str | None = None
) -> Response:
    """An error in the one form."""
    told = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return Response(json.dumps(told, ensure_ascii=False), status, media_type="application/json")


def no_route(method: str, path: str) -> Response:
    """For what OpenAI has and this door has not, or what nobody has."""
    message = (
        f"Invalid URL ({method} {path[:200]}). This server has files, uploads, fine_tuning/jobs, models, "
        "chat/completions and completions"
    )
    return door_body(404, message, code="unknown_url")


def _kind(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "requests"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "server_error"
    return "insufficient_permissions" if status == HTTPStatus.FORBIDDEN else "invalid_request_error"
