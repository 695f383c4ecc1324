"""Success and failure in RunPod's format: plain objects, and problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse, Response

_PROBLEM = "application/problem+json"


class RunpodError(Exception):
    """An answer other than success. `errors`: what is wrong with which field."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[dict[str, str]] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.errors = list(errors)
        self.retry_after_s = retry_after_s


def failure(error: RunpodError) -> Response:
    """The problem document."""
    body: dict[str, Any] = {"title": _title(error.status), "status": error.status, "detail": str(error)}
    if error.errors:
        body["errors"] = error.errors
    headers = {} if error.retry_after_s is None else {"Retry-After": f"{error.retry_after_s:g}"}
    return JSONResponse(body, status_code=error.status, headers=headers, media_type=_PROBLEM)


def invalid(field: str, message: str) -> RunpodError:
    """A body that does not fit the schema."""
    error = {"location": f"body.{field}", "message": message}
    return RunpodError(422, "Request validation failed.", errors=[error])


def conflicting(message: str) -> RunpodError:
    """Fields that do not go together, or a state that does not allow this."""
    return RunpodError(400, message)


def missing(what: str) -> RunpodError:
    return RunpodError(404, f"{what} not found")


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
