"""Names of models: known from the start, changed by owners of the installation, heeded where OpenAI's client asks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from app.api.context import ApiContext
from app.services.doors import name_models
from app.services.doors.models import KNOWN
from tests.api.conftest import Tenant, error_of, make_tenant

OWN = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
async def owner(api: FastAPI, context: ApiContext) -> AsyncIterator[Tenant]:
    async with make_tenant(api, context, ("owner",)) as made:
        yield made


async def known_at_the_door(tenant: Tenant) -> list[str]:
    return [one["id"] for one in (await tenant.http.get("/openai/v1/models")).json()["data"]]


async def test_names_are_changed_removed_and_reset(owner: Tenant, tenant: Tenant) -> None:
    """Each answer says what the name means now; the OpenAI-compatible API goes by it at once; the audit log tells."""
    listed = (await tenant.http.get("/v1/model-names")).json()["data"]
    assert {one["name"]: one["model"] for one in listed} == dict(KNOWN)
    assert {one["source"] for one in listed} == {"start"}

    told = (await owner.http.put("/v1/model-names/gpt-4o", json={"model": OWN})).json()
    assert told == {"name": "gpt-4o", "model": OWN, "source": "owner", "from_start": KNOWN["gpt-4o"]}
    told = (await owner.http.put("/v1/model-names/our-model", json={"model": OWN})).json()
    assert told == {"name": "our-model", "model": OWN, "source": "owner", "from_start": None}
    told = (await owner.http.put("/v1/model-names/davinci-002", json={"model": None})).json()
    assert (told["model"], told["source"]) == (None, "owner")
    names = await known_at_the_door(tenant)
    assert "our-model" in names
    assert "davinci-002" not in names
    removed = [one for one in (await tenant.http.get("/v1/model-names")).json()["data"] if one["model"] is None]
    assert [one["name"] for one in removed] == ["davinci-002"]

    told = (await owner.http.delete("/v1/model-names/davinci-002")).json()
    assert (told["model"], told["source"]) == (KNOWN["davinci-002"], "start")
    assert (await owner.http.delete("/v1/model-names/our-model")).json()["model"] is None
    error_of(await owner.http.delete("/v1/model-names/our-model"), 404, "not_found")
    assert (await owner.http.delete("/v1/model-names/gpt-4o")).status_code == 200
    assert (await owner.http.delete("/v1/model-names/gpt-4o")).status_code == 200, "it means that already"
    assert {name: KNOWN[name] for name in await known_at_the_door(tenant)} == dict(KNOWN)
    noted = (await owner.http.get("/v1/audit")).json()["data"]
    assert {one["action"] for one in noted} == {"PUT /v1/model-names/{name}", "DELETE /v1/model-names/{name}"}
    assert {one["object_id"] for one in noted} == {"gpt-4o", "our-model", "davinci-002"}


async def test_a_tuning_takes_what_the_name_means_when_it_is_created(
    api: FastAPI, owner: Tenant, tenant: Tenant
) -> None:
    from tests.api.openai.conftest import openai, sent

    await owner.http.put("/v1/model-names/gpt-4o-mini", json={"model": OWN})
    async with openai(api, tenant.key) as door:
        file_id = await sent(door)
        job = await door.fine_tuning.jobs.create(model="gpt-4o-mini", training_file=file_id)
        await owner.http.delete("/v1/model-names/gpt-4o-mini")
        await api.state.doors.settled()
        events = [one.message async for one in door.fine_tuning.jobs.list_events(job.id)]
    assert any(f"gpt-4o-mini means {OWN}" in one for one in events)


@pytest.mark.parametrize("name", ["ft:gpt-4o:x", "-a", "a b", "a%0a", "é", "a" * 101])
async def test_what_cannot_be_a_name_is_refused(owner: Tenant, name: str) -> None:
    for response in (
        await owner.http.put(f"/v1/model-names/{name}", json={"model": OWN}),
        await owner.http.delete(f"/v1/model-names/{name}"),
    ):
        error = error_of(response, 422, "invalid_input")
        assert error["param"] == "name"
        assert "e.g. gpt-4o-mini" in error["message"]


@pytest.mark.parametrize("model", ["gpt-4o", "a/b/c", "", "/", "/a\nb", "a/b\n", "x" * 500, 1, "../x", "~/x"])
async def test_what_is_no_open_model_is_refused(owner: Tenant, model: object) -> None:
    error = error_of(await owner.http.put("/v1/model-names/m", json={"model": model}), 422, "invalid_input")
    assert error["param"] == "model"
    assert (await owner.http.get("/v1/model-names?limit=1000")).json()["data"][-1]["name"] != "m"


async def test_what_means_nothing_cannot_be_removed(owner: Tenant) -> None:
    error = error_of(await owner.http.put("/v1/model-names/nothing", json={"model": None}), 404, "not_found")
    assert "GET /v1/model-names" in error["message"]
    error_of(await owner.http.put("/v1/model-names/nothing", json={}), 422, "invalid_input")


async def test_there_are_not_too_many_names(owner: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_models, "MOST_NAMES", 1)
    assert (await owner.http.put("/v1/model-names/a", json={"model": OWN})).status_code == 200
    error = error_of(await owner.http.put("/v1/model-names/b", json={"model": OWN}), 409, "conflict")
    assert "reset one" in error["message"]
    assert (await owner.http.put("/v1/model-names/a", json={"model": "a/b"})).status_code == 200
