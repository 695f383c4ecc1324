"""Prices with a date, over REST: who reads, sets and takes back, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi import FastAPI

from app.api.context import ApiContext
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.price_list import ListedPrice, PriceList
from app.db.offers.listed import replace_offers
from app.db.offers.price_lists import DatabaseOwnPrices, publish_price_list
from app.db.offers.provider_states import set_configured
from tests.api.conftest import Tenant, error_of, make_tenant
from tests.conftest import ManualClock
from tests.control.fake_provider import make_offer

PRICES = "/v1/providers/modal/prices"
DAY_S = 86_400


@pytest.fixture
async def owner(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("owner", "read", "admin")) as made:
        yield made


@pytest.fixture(autouse=True)
async def listed(context: ApiContext, clock: ManualClock) -> None:
    """Modal has a list of today; Vast.ai tells its prices."""
    async with context.database.transaction() as connection:
        await set_configured(connection, ["modal", "vast"])
        prices = (
            ListedPrice("A100", Money(2_500_000), "A100"),
            ListedPrice("H100", Money(4_000_000), "H100", setting=Money(3_900_000)),
            ListedPrice("cpu", Money(140_000)),
        )
        await publish_price_list(connection, "modal", PriceList(today(clock), prices))


def today(clock: ManualClock, days: int = 0) -> str:
    return datetime.fromtimestamp(clock.now_ms() / 1000 + days * DAY_S, UTC).date().isoformat()


async def prices_of(tenant: Tenant) -> dict[str, dict[str, Any]]:
    answer = await tenant.http.get(PRICES)
    assert answer.status_code == 200, answer.text
    return {one["name"]: one for one in answer.json()["prices"]}


async def test_each_price_says_whose_it_is_and_since_when(owner: Tenant, clock: ManualClock) -> None:
    """As published, as in the settings, as an owner set it; what is not named stays; the audit log tells."""
    before = await prices_of(owner)
    assert [(one["used"], one["source"]) for one in before.values()] == [
        (2_500_000, "list"),
        (3_900_000, "setting"),
        (140_000, "list"),
    ]
    body = {"prices": {"H100": 3.65, "cpu": 0.1415}, "as_of": today(clock, -3)}
    assert (await owner.http.put(PRICES, json=body)).status_code == 200
    assert (await owner.http.put(PRICES, json={"prices": {"cpu": 0.15}})).status_code == 200
    after = await prices_of(owner)
    h100 = after["H100"]
    assert (h100["published"], h100["setting"], h100["own"], h100["used"]) == (
        4_000_000, 3_900_000, 3_650_000, 3_650_000,
    )  # fmt: skip
    assert (h100["source"], h100["as_of"]) == ("owner", today(clock, -3))
    assert h100["set_by"].startswith("key_")
    assert (after["cpu"]["used"], after["cpu"]["as_of"]) == (150_000, today(clock))
    assert after["A100"] == before["A100"]
    noted = (await owner.http.get("/v1/audit")).json()["data"]
    assert [(one["action"], one["object_id"]) for one in noted] == [
        ("PUT /v1/providers/{provider}/prices", "modal")
    ] * 2


async def test_what_was_set_is_taken_back_by_name_or_all_at_once(owner: Tenant) -> None:
    """The settings and the list count again; a name that has no price is told."""
    await owner.http.put(PRICES, json={"prices": {"H100": 3.65, "cpu": 0.2, "A100": 2.4}})
    left = (await owner.http.delete(PRICES, params={"names": "H100, cpu"})).json()
    assert [one["source"] for one in left["prices"]] == ["owner", "setting", "list"]
    error = error_of(await owner.http.delete(PRICES, params={"names": "H900"}), 422, "invalid_input")
    assert "no price of H900; it has: A100, H100, cpu" in error["message"]
    assert [one["own"] for one in (await owner.http.delete(PRICES)).json()["prices"]] == [None, None, None]


async def test_what_is_set_is_what_every_process_lists_by(owner: Tenant, context: ApiContext) -> None:
    """Dollars become micro-dollars once, and to the last one."""
    await owner.http.put(PRICES, json={"prices": {"cpu": 0.123456}})
    assert await DatabaseOwnPrices(context.database, "modal").known() == {"cpu": Money(123_456)}


@pytest.mark.parametrize("wrong", [0, -1, 1e-7, 10_001, 1e308, "3.95", True, None])
async def test_what_is_no_price_is_refused(owner: Tenant, wrong: object) -> None:
    """Nothing, less than nothing, less than a micro-dollar, more than any GPU: the field is named, nothing is kept."""
    body = {"prices": {"A100": 2.4, "H100": wrong}, "confirm": True}
    error = error_of(await owner.http.put(PRICES, json=body), 422, "invalid_input")
    assert error["param"] == "prices.H100"
    assert all(one["own"] is None for one in (await prices_of(owner)).values())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_none_are_refused(owner: Tenant, number: str) -> None:
    """As JSON of some programs has them."""
    content = f'{{"prices": {{"H100": {number}}}, "confirm": true}}'
    answer = await owner.http.put(PRICES, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert (await prices_of(owner))["H100"]["own"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prices": {}}, "prices"),
        ({"prices": {f"gpu-{number}": 1.0 for number in range(20_000)}}, "prices"),
        ({"prices": {"H100": 3.9}, "as_of": "yesterday"}, "as_of"),
        ({"prices": {"H100": 3.9}, "as_of": "2026-02-30"}, "as_of"),
        ({"prices": {"H100": 3.9}, "as_of": "1999-12-31"}, "as_of"),
        ({"prices": {"H100": 3.9}, "as_of": "9999-12-31"}, "as_of"),
        ({"prices": {"H100": 3.9}, "sure": True}, "sure"),
    ],
    ids=["none", "twenty thousand", "no day", "no such day", "too early", "to come", "misspelt"],
)
async def test_what_no_price_list_is_is_refused(owner: Tenant, body: dict[str, Any], param: str) -> None:
    """By its size before anything is looked at, and by the field that is wrong."""
    assert error_of(await owner.http.put(PRICES, json=body), 422, "invalid_input")["param"] == param


async def test_an_unknown_name_is_told_with_those_there_are(owner: Tenant) -> None:
    """And nothing of the request is kept, however right the rest of it is."""
    body = {"prices": {"H100": 3.9, "H900": 3.9}}
    error = error_of(await owner.http.put(PRICES, json=body), 422, "invalid_input")
    assert error["param"] == "prices"
    assert "modal has no price of H900; it has: A100, H100, cpu" in error["message"]
    assert (await prices_of(owner))["H100"]["own"] is None
    many = {"prices": {"x" * 190 + str(number): 1.0 for number in range(50)}}
    error = error_of(await owner.http.put(PRICES, json=many), 422, "invalid_input")
    assert len(error["message"]) < 1_000
    error = error_of(await owner.http.put(PRICES.replace("modal", "m" * 5_000), json=body), 404, "not_found")
    assert len(error["message"]) < 1_000


async def test_a_price_far_from_the_one_in_use_is_asked_about_again(owner: Tenant) -> None:
    """39.00 for 3.90 is a slip of the hand; with `confirm` it holds, and is what the next one is compared with."""
    body: dict[str, Any] = {"prices": {"H100": 39.0, "cpu": 0.15}}
    error = error_of(await owner.http.put(PRICES, json=body), 409, "price_far_off")
    assert "H100: $39.00/h, where $3.90/h is used now" in error["message"]
    assert "cpu" not in error["message"]
    assert (await prices_of(owner))["cpu"]["own"] is None
    assert (await owner.http.put(PRICES, json={**body, "confirm": True})).status_code == 200
    error_of(await owner.http.put(PRICES, json={"prices": {"H100": 3.9}}), 409, "price_far_off")
    assert (await owner.http.put(PRICES, json={"prices": {"H100": 30.0}})).status_code == 200


async def test_a_provider_without_a_list_is_told_apart(owner: Tenant) -> None:
    """One that tells its prices, and one that is not there at all, can be read and set by nobody."""
    for provider in ("vast", "nobody", "x" * 300):
        place = f"/v1/providers/{provider}/prices"
        error_of(await owner.http.get(place), 404, "not_found")
        error_of(await owner.http.put(place, json={"prices": {"H100": 1.0}}), 404, "not_found")
        error_of(await owner.http.delete(place), 404, "not_found")


async def test_prices_are_dated_wherever_they_are_shown(owner: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """Offers, plans and providers tell the day of the parts that a price is made of, and whether it is long ago."""

    async def relist() -> None:
        async with context.database.transaction() as connection:
            for name, tier in (("modal", Tier.SERVERLESS), ("vast", Tier.MARKETPLACE)):
                offer = make_offer(name, "1", tier, "2.50", startup_ms=1)
                await replace_offers(connection, name, [offer], now_ms=clock.now_ms())

    async def shown() -> list[tuple[Any, ...]]:
        await relist()
        offers = {one["provider"]: one for one in (await owner.http.get("/v1/offers")).json()["data"]}
        asked = {"model": "llama-3-8b", "batch": 16, "sequence": 512}
        plan = (await owner.http.post("/v1/jobs/plan", json=asked)).json()
        planned = {one["provider"]: one for option in plan["options"] for one in option["offers"]}
        assert all(
            (one["price_as_of"], one["price_is_old"]) == (None, False) for one in (offers["vast"], planned["vast"])
        )
        states = {one["name"]: one["price_list"] for one in (await owner.http.get("/v1/providers")).json()["providers"]}
        assert states["vast"] is None
        found = [(one["modal"]["price_as_of"], one["modal"]["price_is_old"]) for one in (offers, planned)]
        return [*found, (states["modal"]["oldest"], states["modal"]["is_old"])]

    first = today(clock)
    assert await shown() == [(first, False)] * 3
    clock.advance(s=180 * DAY_S)
    assert await shown() == [(first, False)] * 3
    clock.advance(s=DAY_S)
    assert await shown() == [(first, True)] * 3
    await owner.http.put(PRICES, json={"prices": {"cpu": 0.15}})
    assert await shown() == [(first, True)] * 3
    await owner.http.put(PRICES, json={"prices": {"A100": 2.5}})
    assert await shown() == [(today(clock), False)] * 3


async def test_administrators_read_and_do_not_set(api: FastAPI, context: ApiContext) -> None:
    """The account is everybody's: who owns the installation says what it costs."""
    async with make_tenant(api, context, ("admin", "read", "submit")) as admin:
        assert (await admin.http.get(PRICES)).status_code == 200
        error_of(await admin.http.put(PRICES, json={"prices": {"H100": 1.0}}), 403, "forbidden")
        error_of(await admin.http.delete(PRICES), 403, "forbidden")
