"""What Lambda's answers mean: from code and status to our errors. Only `code` is stable; its words may change."""

from __future__ import annotations

from typing import Any

import httpx

from app.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)

MISSING = "global/object-does-not-exist"
_REFUSALS: dict[str, type[ProviderError]] = {
    "instance-operations/launch/insufficient-capacity": NoCapacity,
    "instance-operations/launch/file-system-in-wrong-region": InvalidRequest,
    "instance-operations/launch/file-systems-not-supported": InvalidRequest,
    "global/quota-exceeded": QuotaExceeded,
    "global/invalid-parameters": InvalidRequest,
    "global/duplicate": InvalidRequest,
    MISSING: InvalidRequest,
    "global/invalid-api-key": AuthFailed,
    "global/account-inactive": AuthFailed,
    "global/invalid-billing-address": AuthFailed,  # in Lambda's documents
    "global/invalid-address": AuthFailed,  # the same in its schema
    "global/internal-error": Transient,
    "global/unknown": Transient,
}
_LONGEST_TEXT = 300


def refusal(response: httpx.Response, *, pause_ms: int) -> ProviderError | None:
    """The error in this answer; None for a success. `pause_ms`: how long to stay away when the answer does not say.

    Transient is what nobody can tell the effect of: server errors, and codes that Lambda passes on from its own
    suppliers or has added since. The caller knows whether it may repeat the call.
    """
    if response.is_success:
        return None
    code, words = code_of(response), summary(response)
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return RateLimited(words, retry_after_ms=_retry_after_ms(response, pause_ms))
    if code in _REFUSALS:
        return _REFUSALS[code](words)
    if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        return AuthFailed(words)
    return Transient(words)


def code_of(response: httpx.Response) -> str:
    """The stable code of the error; empty when the answer holds none."""
    code = _error_body(response).get("code")
    return code if isinstance(code, str) else ""


def summary(response: httpx.Response) -> str:
    """What was answered, for people: Lambda's own words with its request id, or the beginning of the text."""
    error = _error_body(response)
    if not error:
        return f"lambda answered {response.status_code} {response.text[:_LONGEST_TEXT]!r}"
    said = [f"lambda: {error.get('message') or 'no message'} ({response.status_code} {error.get('code')})"]
    said += [str(error["suggestion"])] if error.get("suggestion") else []
    said += [f"request {error['request_id']}"] if error.get("request_id") else []
    return "; ".join(said)[:_LONGEST_TEXT]


def _error_body(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _retry_after_ms(response: httpx.Response, pause_ms: int) -> int:
    """The header is not documented; it is believed where it is sent."""
    try:
        wait_s = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return pause_ms
    return round(wait_s * 1000) if 0 <= wait_s <= 86_400 else pause_ms
