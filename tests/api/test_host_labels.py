"""An owner says where hosts are, when they join and afterwards; what would fit within one switch follows it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI

from app.api.context import ApiContext
from app.db import tables as t
from app.db.pools.switches import racks_and_switches
from tests.api.conftest import Tenant, error_of
from tests.api.test_pools import HostCaller, host, owner, token_of

__all__ = ["host", "owner"]


async def labels_of(tenant: Tenant) -> dict[str, dict[str, str]]:
    shown = (await tenant.http.get("/v1/pools/lab")).json()["hosts"]
    return {one["name"]: one["labels"] for one in shown}


async def test_a_host_joins_with_its_labels_and_keeps_what_its_owner_said_since(
    api: FastAPI, owner: Tenant, tenant: Tenant
) -> None:
    """A join that is repeated, as its answer was lost, is the same host: what was said meanwhile stands."""
    await owner.http.post("/v1/pools", json={"name": "lab"})
    caller, token = HostCaller(api), await token_of(owner)
    assert (await caller.join(token, labels={"switch": "leaf-1"})).status_code == 200
    assert await labels_of(tenant) == {"box": {"switch": "leaf-1"}}
    await owner.http.patch(f"/v1/pools/lab/hosts/{caller.host_id}", json={"labels": {"switch": "leaf-2"}})
    assert (await caller.join(token, labels={"switch": "leaf-1"})).status_code == 200
    assert await labels_of(tenant) == {"box": {"switch": "leaf-2"}}
    await caller.http.aclose()


async def test_labels_are_set_and_taken_away_and_the_rest_stays(
    owner: Tenant, tenant: Tenant, host: HostCaller
) -> None:
    url = "/v1/pools/lab/hosts/box"
    await owner.http.patch(url, json={"labels": {"switch": "leaf-3", "rack": "r1"}})
    changed = await owner.http.patch(url, json={"labels": {"rack": None, "row": "7"}})
    assert (changed.status_code, changed.json()["labels"]) == (200, {"row": "7", "switch": "leaf-3"})
    assert changed.json()["id"] == host.host_id
    assert changed.json() == (await tenant.http.get("/v1/pools/lab")).json()["hosts"][0]
    noted = (await owner.http.get("/v1/audit")).json()["data"][0]
    assert (noted["action"], noted["object_id"]) == ("PATCH /v1/pools/{pool}/hosts/{host}", "box")
    error_of(await tenant.http.patch(url, json={"labels": {"row": "8"}}), 403, "forbidden")


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"switch": ""},
        {"switch": "a\nb"},
        {"switch": "x" * 201},
        {"switch": 3},
        {"": "a"},
        {"two words": "a"},
        {"switch\u0000": "a"},
        {"x" * 64: "a"},
        {f"key{number}": "a" for number in range(33)},
        ["switch"],
    ],
)
async def test_what_is_no_label_is_refused_naming_it(
    api: FastAPI, owner: Tenant, tenant: Tenant, host: HostCaller, labels: Any
) -> None:
    """Afterwards and at joining alike; nothing of it is kept."""
    refused = await owner.http.patch("/v1/pools/lab/hosts/box", json={"labels": labels})
    assert "labels" in (error_of(refused, 422, "invalid_input")["param"] or "")
    other = HostCaller(api)
    if labels:
        said = await other.join(await token_of(owner), nonce="b" * 64, name="other", labels=labels)
        error_of(said, 422, "invalid_input")
    assert await labels_of(tenant) == {"box": {}}
    await other.http.aclose()


async def test_a_host_has_so_many_labels_and_no_more(owner: Tenant, tenant: Tenant, host: HostCaller) -> None:
    url = "/v1/pools/lab/hosts/box"
    full = {f"key{number}": "a" for number in range(32)}
    assert (await owner.http.patch(url, json={"labels": full})).status_code == 200
    told = error_of(await owner.http.patch(url, json={"labels": {"one-more": "b"}}), 422, "invalid_input")
    assert (told["param"], "33" in told["message"], "32" in told["message"]) == ("labels", True, True)
    swapped = await owner.http.patch(url, json={"labels": {"key0": None, "one-more": "b"}})
    assert (swapped.status_code, len(swapped.json()["labels"])) == (200, 32)


async def test_a_host_that_is_not_there_and_a_name_that_two_have(api: FastAPI, owner: Tenant, host: HostCaller) -> None:
    body = {"labels": {"switch": "leaf-1"}}
    error_of(await owner.http.patch("/v1/pools/lab/hosts/nobody", json=body), 404, "not_found")
    error_of(await owner.http.patch("/v1/pools/none/hosts/box", json=body), 404, "not_found")
    twin = HostCaller(api)
    await twin.join(await token_of(owner), nonce="b" * 64)
    told = error_of(await owner.http.patch("/v1/pools/lab/hosts/box", json=body), 409, "conflict")
    assert twin.host_id in told["message"]
    await twin.http.aclose()


async def test_two_who_label_a_host_at_once_both_have_what_they_said(
    owner: Tenant, tenant: Tenant, host: HostCaller
) -> None:
    url = "/v1/pools/lab/hosts/box"
    keys = [f"key{number}" for number in range(8)]
    await asyncio.gather(*(owner.http.patch(url, json={"labels": {key: "a"}}) for key in keys))
    assert await labels_of(tenant) == {"box": dict.fromkeys(keys, "a")}


async def test_a_switch_is_of_the_host_else_of_its_pool_and_odd_rows_say_nothing(
    context: ApiContext, owner: Tenant, host: HostCaller
) -> None:
    async def found() -> dict[str, str]:
        async with context.database.transaction() as connection:
            said = await racks_and_switches(connection)
        return {host_id: switch for host_id, (_, switch) in said.items() if switch}

    assert await found() == {}
    await owner.http.patch("/v1/pools/lab", json={"labels": {"switch": "spine"}})
    assert await found() == {host.host_id: "spine"}
    await owner.http.patch("/v1/pools/lab/hosts/box", json={"labels": {"switch": "leaf-1"}})
    assert await found() == {host.host_id: "leaf-1"}
    assert (await owner.http.get("/v1/fragmentation")).json()["switches"] == 1
    async with context.database.transaction() as connection:
        await connection.execute(t.hosts.update().values(labels=["switch"]))
    assert await found() == {host.host_id: "spine"}
