"""Success and failure in Lambda's format: {"data": ...}, {"error": {"code", "message", "suggestion"}}."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.responses import JSONResponse, Response

# Of the documented codes: the status that comes with it, and Lambda's words.
_CODES = {
    "instance-operations/launch/insufficient-capacity": (400, "Not enough capacity to fulfill launch request."),
    "instance-operations/launch/file-system-in-wrong-region": (400, "The file system is in another region."),
    "global/invalid-parameters": (400, "Invalid request data."),
    "global/quota-exceeded": (400, "Quota exceeded."),
    "global/object-does-not-exist": (404, "Specified object does not exist."),
    "global/invalid-api-key": (401, "API key was invalid, expired, or deleted."),
    "global/account-inactive": (403, "Your account is inactive."),
    "global/invalid-billing-address": (403, "Your billing address is invalid."),
    "global/invalid-address": (403, "Your billing address is invalid."),
    "global/duplicate": (400, "That already exists."),
    "firewall-rulesets/firewall-ruleset-in-use": (400, "Firewall ruleset is in use by one or more instances."),
    "global/internal-error": (500, "An internal error occurred."),
    "global/unknown": (400, "An unknown error occurred."),
    "global/too-many-requests": (429, "Too many requests."),
}


# Its clients expect one with most codes; the words change, and nobody may go by them.
_SUGGESTION = "Check the request and the account, or try again later."


class LambdaError(Exception):
    """An answer other than success. Status and words follow from the code where they are not given."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        status: int | None = None,
        suggestion: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        usual_status, usual_message = _CODES.get(code, (400, "The provider could not fulfill the request."))
        super().__init__(message or usual_message)
        self.code = code
        self.status = status or usual_status
        self.suggestion = suggestion
        self.retry_after_s = retry_after_s


def success(data: Any) -> Response:
    return JSONResponse({"data": data})


def failure(error: LambdaError) -> Response:
    body = {
        "code": error.code,
        "message": str(error),
        "suggestion": error.suggestion or _SUGGESTION,
        "request_id": secrets.token_hex(8),
    }
    headers = {} if error.retry_after_s is None else {"Retry-After": f"{error.retry_after_s:g}"}
    return JSONResponse({"error": body}, status_code=error.status, headers=headers)


def invalid(message: str) -> LambdaError:
    """A request that is wrong in itself."""
    return LambdaError("global/invalid-parameters", message)


def missing(what: str) -> LambdaError:
    """Something named in the request does not exist."""
    return LambdaError("global/object-does-not-exist", f"Specified {what} does not exist.")
