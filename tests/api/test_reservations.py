"""Reservations over REST: asked for, listed, shown, ended; by whom, and by whom not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.api.context import ApiContext
from tests.api.builders import add_reservable
from tests.api.conftest import Tenant, error_of

PATH = "/v1/reservations"


async def test_it_is_asked_for_listed_shown_and_ended(context: ApiContext, tenant: Tenant) -> None:
    asked = await add_reservable(context)
    answer = await tenant.http.post(PATH, json=asked)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert {name: made[name] for name in ("pool", "gpu_type", "gpus", "state", "kept_gpus", "why")} == {
        **{"pool": asked["pool"], "gpu_type": "A100", "gpus": 1},
        **{"state": "planned", "kept_gpus": 0, "why": None},
    }
    second = (await tenant.http.post(PATH, json=asked | {"begins_at": None})).json()
    assert second["state"] == "open"
    page = (await tenant.http.get(PATH, params={"limit": 1})).json()
    rest = (await tenant.http.get(PATH, params={"cursor": page["next_cursor"]})).json()
    assert [one["id"] for one in (*page["data"], *rest["data"])] == [second["id"], made["id"]]
    assert (await tenant.http.get(f"{PATH}/{made['id']}")).json() == made
    for _ in range(2):
        ended = (await tenant.http.delete(f"{PATH}/{made['id']}")).json()
        assert (ended["state"], ended["why"]) == ("over", "it was ended before its time")


async def test_more_than_there_is_names_the_field_and_what_is_left(context: ApiContext, tenant: Tenant) -> None:
    asked = await add_reservable(context)
    assert (await tenant.http.post(PATH, json=asked)).status_code == 201
    error = error_of(await tenant.http.post(PATH, json=asked | {"gpus": 2}), 409, "not_reservable")
    assert error["param"] == "gpus"
    assert "1 are left. Reserve so many, or another window" in error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"gpus": 0}, "gpus"),
        ({"gpus": 2**62}, "gpus"),
        ({"gpus": "2"}, "gpus"),
        ({"gpu_type": "A100\n"}, "gpu_type"),
        ({"gpu_type": "A" * 201}, "gpu_type"),
        ({"pool": "../lab"}, "pool"),
        ({"ends_at": "2026-12-01T08:00:00"}, "ends_at"),
        ({"ends_at": "9999-12-31T23:59:59Z"}, "ends_at"),
        ({"begins_at": "2020-01-01T00:00:00Z"}, "begins_at"),
        ({"begins_at": "0001-01-01T00:00:00+01:00"}, "begins_at"),
    ],
)
async def test_hostile_values(context: ApiContext, tenant: Tenant, change: dict[str, Any], param: str) -> None:
    asked = await add_reservable(context)
    error = error_of(await tenant.http.post(PATH, json=asked | change), 422, "invalid_input")
    assert error["param"] == param


async def test_other_projects_neither_see_nor_end_it(context: ApiContext, tenant: Tenant, stranger: Tenant) -> None:
    asked = await add_reservable(context)
    made = (await tenant.http.post(PATH, json=asked)).json()
    error_of(await stranger.http.get(f"{PATH}/{made['id']}"), 404, "not_found")
    error_of(await stranger.http.delete(f"{PATH}/{made['id']}"), 404, "not_found")
    assert (await stranger.http.get(PATH)).json()["data"] == []
    error = error_of(await stranger.http.post(PATH, json=asked | {"gpus": 2}), 409, "not_reservable")
    assert made["id"] not in error["message"]


async def test_instants_are_read_with_their_zone(context: ApiContext, tenant: Tenant) -> None:
    asked = await add_reservable(context)
    ends = datetime.fromisoformat(asked["ends_at"]).astimezone(UTC)
    east = (ends + timedelta(hours=5, minutes=45)).replace(tzinfo=None).isoformat() + "+05:45"
    made = (await tenant.http.post(PATH, json=asked | {"ends_at": east})).json()
    assert datetime.fromisoformat(made["ends_at"]) == ends
