"""How often a key may call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from app.api.app import create_app
from app.api.context import ApiContext
from app.db.tables import audit_log
from app.errors import TooManyRequests
from app.services.kit.rate_limit import RateLimiter
from tests.api.conftest import client, error_of, make_tenant
from tests.conftest import ManualClock


@pytest.fixture
def context(context: ApiContext) -> ApiContext:
    """Two requests a second, three at once."""
    slow = context.settings.model_copy(update={"rate_limit_per_s": 2.0, "rate_limit_burst": 3})
    return replace(context, settings=slow)


async def test_a_key_that_calls_too_often_is_told_when_to_go_on(
    api: FastAPI, context: ApiContext, clock: ManualClock
) -> None:
    """429 with Retry-After, on the submit path and on all others; after that wait it is let in again."""
    async with make_tenant(api, context, ("admin",)) as tenant, make_tenant(api, context) as other:
        for _ in range(3):
            assert (await tenant.http.get("/v1/jobs")).status_code == 200
        for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("PUT", "/v1/secrets/HF_TOKEN")):
            refused = await tenant.http.request(method, path, json={} if method != "GET" else None)
            error = error_of(refused, 429, "rate_limited")
            assert error["retryable"]
            assert "500 ms" in error["message"]
            assert refused.headers["retry-after"] == "1"
        assert (await other.http.get("/v1/jobs")).status_code == 200, "each key has its own"
        clock.advance(ms=499)
        assert (await tenant.http.get("/v1/jobs")).status_code == 429
        clock.advance(ms=1)
        assert (await tenant.http.get("/v1/jobs")).status_code == 200
    async with context.database.transaction() as connection:
        noted = (await connection.execute(select(func.count()).select_from(audit_log))).scalar_one()
    assert noted == 0, "noting what was refused for its rate would be a load of its own"


async def test_health_and_agents_are_not_limited(api: FastAPI) -> None:
    """They have no API key."""
    async with client(api) as http:
        for _ in range(10):
            assert (await http.get("/healthz")).status_code == 200


async def test_zero_switches_the_limit_off(context: ApiContext) -> None:
    """However many come at once."""
    off = replace(context, settings=context.settings.model_copy(update={"rate_limit_per_s": 0.0}))
    api = create_app(off)
    async with make_tenant(api, off) as tenant:
        for _ in range(10):
            assert (await tenant.http.get("/v1/jobs")).status_code == 200
    await api.state.authenticator.settled()


def test_the_limit_is_documented(api: FastAPI) -> None:
    """Every route that takes a key names 429 and its header."""
    for path, methods in api.openapi()["paths"].items():
        for method, told in methods.items():
            if path.startswith("/v1/") and not path.startswith("/v1/agent"):
                assert "Retry-After" in told["responses"]["429"]["headers"], (method, path)


@given(
    st.lists(st.tuples(st.integers(-500, 3000), st.sampled_from("ab")), max_size=60),
    st.integers(1, 20),
    st.integers(1, 10),
)
def test_no_key_ever_gets_more_than_its_share(steps: list[tuple[int, str]], per_s: int, burst: int) -> None:
    """In any stretch of time: at most the burst, and the rate times the stretch. Set-back clocks give nothing extra."""
    clock = ManualClock()
    limiter = RateLimiter(per_s, burst, clock)
    admitted: dict[str, list[int]] = {"a": [], "b": []}
    elapsed_ms = 0
    for step_ms, key in steps:
        clock.advance(ms=step_ms)
        elapsed_ms += max(0, step_ms)
        try:
            limiter.take(key)
        except TooManyRequests as error:
            assert error.retry_after_ms >= 1
        else:
            admitted[key].append(elapsed_ms)
    for times in admitted.values():
        for first in range(len(times)):
            for last in range(first, len(times)):
                assert last - first + 1 <= burst + (times[last] - times[first]) * per_s / 1000 + 1e-6


@given(st.integers(1, 50), st.integers(1, 10))
def test_who_waits_as_long_as_was_said_is_let_in(per_s: int, burst: int) -> None:
    """And not a millisecond is said too many: one less is too early."""
    clock = ManualClock()
    limiter = RateLimiter(per_s, burst, clock)
    for _ in range(burst):
        limiter.take("a")
    with pytest.raises(TooManyRequests) as refused:
        limiter.take("a")
    clock.advance(ms=refused.value.retry_after_ms - 1)
    with pytest.raises(TooManyRequests):
        limiter.take("a")
    clock.advance(ms=1)
    limiter.take("a")
