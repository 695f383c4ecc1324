"""What Vast.ai's answers mean."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

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
from providers.vast.refusals import is_nothing_there, refusal
from tests.providers.vast.clocks import StillClock

NOW_MS = StillClock().now_ms()  # 09:06:40 UTC


def judged(status: int, *, json: Any = None, text: str | None = None, **headers: str) -> ProviderError | None:
    response = httpx.Response(status, json=json, headers=headers) if text is None else httpx.Response(status, text=text)
    return refusal(response, pause_ms=4_000, now_ms=NOW_MS)


def body(code: str, message: str = "") -> dict[str, Any]:
    return {"success": False, "error": code, "msg": message}


@pytest.mark.parametrize(
    ("status", "said", "meaning"),
    [
        (401, body("auth_error"), AuthFailed),
        (403, {"msg": "no"}, AuthFailed),
        (404, body("invalid_key", "Invalid user key"), AuthFailed),
        (404, body("invalid_args", "error 404/3603: no_such_ask Instance type by id 5 is not available."), OfferGone),
        (410, body("no_such_ask"), OfferGone),
        (200, body("invalid_args", "no_such_ask"), OfferGone),
        (400, body("invalid_price"), PriceMoved),
        (400, body("missing_billing"), QuotaExceeded),
        (402, {}, QuotaExceeded),
        (400, body("invalid_args", "image is required"), InvalidRequest),
        (404, {"msg": "no such path"}, InvalidRequest),
        (422, {}, InvalidRequest),
        (200, body("internal"), Transient),
        (500, body("internal"), Transient),
        (302, {}, Transient),
    ],
)
def test_codes_have_meanings(status: int, said: dict[str, Any], meaning: type[ProviderError]) -> None:
    """Status, code and text together say what is to be done."""
    assert type(judged(status, json=said)) is meaning


def test_a_success_refuses_nothing() -> None:
    """Neither with `success`, nor without."""
    assert judged(200, json={"success": True}) is None
    assert judged(200, json={"offers": []}) is None


def test_html_from_a_gateway_is_nobodys_word() -> None:
    """A 504 in HTML says that the answer is missing; a 404 in plain text may still be about the key."""
    assert type(judged(504, text="<html><body><h1>504 Gateway Time-out</h1></body></html>")) is Transient
    assert type(judged(404, text="Invalid user key")) is AuthFailed


@pytest.mark.parametrize(
    "said",
    [
        {"text": "API requests too frequent"},
        {"json": {"detail": "API requests too frequent: endpoint threshold=4.5"}},
        {"json": {"success": False, "error": "too_many_requests"}},
    ],
    ids=["text", "detail", "json"],
)
def test_too_fast_has_three_shapes(said: dict[str, Any]) -> None:
    """Without a word about how long, the pause of the endpoint counts."""
    error = judged(429, **said)
    assert isinstance(error, RateLimited)
    assert error.retry_after_ms == 4_000


@pytest.mark.parametrize(("header", "wait_ms"), [("7", 7_000), ("1.5", 1_500), ("soon", 4_000), ("-1", 4_000)])
def test_a_header_that_says_how_long_is_believed(header: str, wait_ms: int) -> None:
    """It is not documented, and sent all the same."""
    error = judged(429, json={}, **{"Retry-After": header})
    assert isinstance(error, RateLimited)
    assert error.retry_after_ms == wait_ms


def test_the_search_quota_comes_back_at_midnight() -> None:
    """The quota of the day is given anew at midnight UTC, and no earlier."""
    error = judged(429, json=body("search_quota_exceeded"), **{"Retry-After": "1"})
    assert isinstance(error, RateLimited)
    assert error.retry_after_ms == ((14 * 60 + 53) * 60 + 20) * 1000


def test_only_the_company_says_that_nothing_is_there() -> None:
    """Another 404 comes from somebody else at this address; a ref that no contract can have is none."""
    gone = httpx.Response(404, json=body("no_such_instance"))
    assert is_nothing_there(gone, "5")
    assert not is_nothing_there(httpx.Response(404, text="nginx"), "5")
    wrong = httpx.Response(400, json=body("invalid_args"))
    assert is_nothing_there(wrong, "no-such-machine")
    assert not is_nothing_there(wrong, "5")
