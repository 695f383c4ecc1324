"""Limits of the installation, as its owners read and change them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from app.api.context import ApiContext
from tests.api.conftest import Tenant, error_of, make_tenant


@pytest.fixture
async def owner(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("owner",)) as made:
        yield made


async def test_they_begin_with_those_of_a_first_time_and_are_changed_one_by_one(owner: Tenant) -> None:
    """What is not named stays; null takes one away; the audit log tells."""
    told = (await owner.http.get("/v1/limits")).json()
    assert (told["machines"], told["per_day"], told["providers"]) == (2, 10_000_000, [])
    assert (await owner.http.patch("/v1/limits", json={"machines": 0})).json()["machines"] == 0
    changed = (await owner.http.patch("/v1/limits", json={"per_day_usd": 0.5})).json()
    assert (changed["machines"], changed["per_day"]) == (0, 500_000)
    both = {"machines": None, "per_day_usd": None}
    assert (await owner.http.patch("/v1/limits", json=both)).status_code == 200
    last = (await owner.http.get("/v1/limits")).json()
    assert (last["machines"], last["per_day"]) == (None, None)
    noted = (await owner.http.get("/v1/audit")).json()["data"]
    assert [one["action"] for one in noted] == ["PATCH /v1/limits"] * 3


@pytest.mark.parametrize(
    "body", [{"machines": -1}, {"machines": 1.5}, {"per_day_usd": 0}, {"per_day_usd": "1"}, {"per_day": 1}]
)
async def test_what_is_no_limit_is_refused(owner: Tenant, body: dict[str, object]) -> None:
    error_of(await owner.http.patch("/v1/limits", json=body), 422, "invalid_input")
