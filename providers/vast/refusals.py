"""What Vast.ai's answers mean: from status, code and text to our errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from app.errors import (
    AuthFailed,
    InvalidRequest,
    OfferGone,
    PriceMoved,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)

SEARCH_QUOTA = "search_quota_exceeded"
_NO_OFFER = "no_such_ask"
_NOTHING_THERE = frozenset({"no_such_instance", "not_found", "invalid_id"})
_BAD_KEY = "invalid user key"
_NO_CREDIT = frozenset({"missing_billing", "insufficient_credit", "no_credit"})
_LONGEST_TEXT = 200
_LONGEST_PAUSE_S = 86_400


def refusal(response: httpx.Response, *, pause_ms: int, now_ms: int) -> ProviderError | None:
    """What this answer refuses; None for a success. `pause_ms`: how long to stay away when the answer does not say.

    Server errors, and what nobody can read, are Transient: it is the caller who knows what was under way.
    """
    body = body_of(response)
    code, words = _code(body), f"vast: {summary(response)}"
    if response.is_success and body.get("success") is not False:
        return None
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return RateLimited(words, retry_after_ms=_retry_after_ms(response, code, pause_ms, now_ms))
    return _kind(response, code, str(body.get("msg") or ""))(words)


def is_nothing_there(response: httpx.Response, ref: str) -> bool:
    """Whether Vast.ai itself says that there is no such contract: another 404 comes from somebody else."""
    body = body_of(response)
    code = _code(body)
    if code in _NOTHING_THERE:
        return True
    return code == "invalid_args" and not ref.isdecimal()  # a ref that no contract can have


def body_of(response: httpx.Response) -> Mapping[str, Any]:
    """The JSON object of the answer; empty when it holds none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def summary(response: httpx.Response) -> str:
    """Status and the beginning of the text, for people."""
    return f"{response.status_code} {response.text[:_LONGEST_TEXT]!r}"


def _kind(response: httpx.Response, code: str, message: str) -> type[ProviderError]:
    said = f"{code} {message}".lower()
    refused_key = response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN} or code == "auth_error"
    if refused_key or _BAD_KEY in said or _BAD_KEY in response.text[:_LONGEST_TEXT].lower():
        return AuthFailed
    if _NO_OFFER in said:
        return OfferGone
    if code == "invalid_price":
        return PriceMoved
    if code in _NO_CREDIT or response.status_code == httpx.codes.PAYMENT_REQUIRED:
        return QuotaExceeded
    return InvalidRequest if response.is_client_error else Transient


def _code(body: Mapping[str, Any]) -> str:
    code = body.get("error")
    return code.strip() if isinstance(code, str) else ""


def _retry_after_ms(response: httpx.Response, code: str, pause_ms: int, now_ms: int) -> int:
    """The search quota is given anew at midnight UTC. Otherwise the header counts, which is not documented but sent."""
    if code == SEARCH_QUOTA:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC)
        return max(1, round((midnight - now).total_seconds() * 1000))
    try:
        wait_s = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return pause_ms
    return round(wait_s * 1000) if 0 <= wait_s <= _LONGEST_PAUSE_S else pause_ms
