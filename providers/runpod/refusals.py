"""What RunPod's answers mean: from status and problem document (RFC 9457) to our errors."""

from __future__ import annotations

from typing import Any

import httpx

from app.errors import AuthFailed, InvalidRequest, NoCapacity, ProviderError, QuotaExceeded, RateLimited, Transient

_LONGEST_TEXT = 300
_REFUSALS: dict[int, type[ProviderError]] = {
    400: InvalidRequest,
    401: AuthFailed,
    402: QuotaExceeded,  # the balance does not last for it
    403: AuthFailed,
    404: InvalidRequest,
    405: InvalidRequest,
    422: InvalidRequest,
}


def refusal(response: httpx.Response, *, pause_ms: int) -> ProviderError | None:
    """The error in this answer; None for a success. `pause_ms`: how long to stay away when the answer does not say.

    Transient is what nobody can tell the effect of; the caller knows whether it may repeat the call.
    """
    if response.is_success:
        return None
    words = summary(response)
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return RateLimited(words, retry_after_ms=_retry_after_ms(response, pause_ms))
    return _REFUSALS.get(response.status_code, Transient)(words)


def creating_refused(response: httpx.Response, *, pause_ms: int) -> ProviderError | None:
    """The same, of a create call. A 400 that names no field says that there is no room for the pod: the catalog's stock
    is no reservation, and the words for that have changed more than once."""
    names_fields = bool(_problem(response).get("errors"))
    if response.status_code == httpx.codes.BAD_REQUEST and _problem(response) and not names_fields:
        return NoCapacity(summary(response))
    return refusal(response, pause_ms=pause_ms)


def is_missing(response: httpx.Response) -> bool:
    """Whether RunPod itself says that there is no such thing; a 404 of whatever stands between us says nothing."""
    return response.status_code == httpx.codes.NOT_FOUND and _problem(response).get("status") == httpx.codes.NOT_FOUND


def summary(response: httpx.Response) -> str:
    """What was answered, for people."""
    problem = _problem(response)
    if not problem:
        return f"runpod answered {response.status_code} {response.text[:_LONGEST_TEXT]!r}"
    said = str(problem.get("detail") or problem.get("title") or "no reason")
    errors = problem.get("errors")
    more = f"; {errors}" if isinstance(errors, list) and errors else ""
    return f"runpod: {said} ({response.status_code}){more}"[:_LONGEST_TEXT]


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) and "title" in body else {}


def _retry_after_ms(response: httpx.Response, pause_ms: int) -> int:
    try:
        wait_s = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return pause_ms
    return round(wait_s * 1000) if 0 <= wait_s <= 86_400 else pause_ms
