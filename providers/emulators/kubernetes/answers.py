"""Failures in the words of Kubernetes: a `Status` object with a reason that clients go by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class KubeError(Exception):
    """An answer other than success."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or _REASONS.get(status, "Unknown")
        self.details = dict(details or {})
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The `Status` object."""
        details = dict(self.details)
        if self.retry_after_s is not None:
            details["retryAfterSeconds"] = max(1, round(self.retry_after_s))
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            **({"details": details} if details else {}),
            "code": self.status,
        }


def failure(error: KubeError) -> Response:
    headers = {} if error.retry_after_s is None else {"Retry-After": f"{error.retry_after_s:g}"}
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


def missing(plural: str, name: str) -> KubeError:
    return KubeError(404, f'{plural} "{name}" not found', details={"name": name, "kind": plural})


def taken(plural: str, name: str) -> KubeError:
    message = f'{plural} "{name}" already exists'
    return KubeError(409, message, reason="AlreadyExists", details={"name": name, "kind": plural})


def invalid(kind: str, name: str, field: str, message: str) -> KubeError:
    """What the API's validation refuses."""
    cause = {"reason": "FieldValueInvalid", "message": message, "field": field}
    details = {"name": name, "kind": kind, "causes": [cause]}
    return KubeError(422, f'{kind} "{name}" is invalid: {field}: {message}', details=details)


def forbidden(plural: str, name: str, why: str) -> KubeError:
    return KubeError(403, f'{plural} "{name}" is forbidden: {why}', details={"name": name, "kind": plural})


def expired() -> KubeError:
    return KubeError(410, "The resourceVersion for the provided list or watch is too old.")
