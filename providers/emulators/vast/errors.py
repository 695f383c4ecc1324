"""What the emulated Vast.ai says when it refuses: in JSON mostly, in plain text or HTML now and then."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from providers.emulators.faults import Fault
from providers.emulators.wire import ScriptedError

_SERVER_ERROR = 500
_TOO_MANY = 429


class RefusedAnswer(Exception):
    """An answer other than success. `more` goes into the body."""

    def __init__(self, status: int, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.more = more


class TooFast(Exception):
    """A 429 in one of its shapes."""

    def __init__(self, shape: str, message: str, *, retry_after_s: float | None = None, code: str = "") -> None:
        super().__init__(message)
        self.shape = shape
        self.retry_after_s = retry_after_s
        self.code = code


def no_such_ask(offer_id: str, status: int = 404) -> RefusedAnswer:
    """Somebody else has it, or it never was."""
    code = "invalid_args" if status == 404 else "no_such_ask"
    return RefusedAnswer(
        status, code, f"error {status}/3603: no_such_ask Instance type by id {offer_id} is not available."
    )


def no_such_instance(ref: str) -> RefusedAnswer:
    return RefusedAnswer(404, "no_such_instance", f"Instance {ref} not found.")


def too_fast(fault: Fault, shape: str) -> TooFast:
    """As a test asked for it."""
    wait_ms = fault.args.get("retry_after_ms")
    shape = str(fault.args.get("shape", shape))
    return TooFast(shape, "API requests too frequent", retry_after_s=None if wait_ms is None else wait_ms / 1000)


async def answer_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedAnswer)
    body = {"success": False, "error": error.code, "msg": str(error), **error.more}
    return JSONResponse(body, status_code=error.status)


async def answer_too_fast(_: Request, error: Exception) -> Response:
    assert isinstance(error, TooFast)
    headers = {} if error.retry_after_s is None else {"Retry-After": f"{error.retry_after_s:g}"}
    if error.code or error.shape == "json":
        body: dict[str, Any] = {"success": False, "error": error.code or "too_many_requests", "msg": str(error)}
        return JSONResponse(body, status_code=_TOO_MANY, headers=headers)
    if error.shape == "detail":
        return JSONResponse({"detail": str(error)}, status_code=_TOO_MANY, headers=headers)
    return PlainTextResponse(str(error), status_code=_TOO_MANY, headers=headers)


async def answer_scripted(_: Request, error: Exception) -> Response:
    """Server errors come from the gateway in front, which speaks HTML."""
    assert isinstance(error, ScriptedError)
    status = error.status or _SERVER_ERROR
    if status >= _SERVER_ERROR:
        return HTMLResponse(f"<html><body><h1>{status} {error}</h1></body></html>", status_code=status)
    body = {"success": False, "error": error.code or "invalid_request", "msg": str(error)}
    return JSONResponse(body, status_code=status)


async def answer_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"success": False, "msg": str(error.detail)}, status_code=error.status_code)
