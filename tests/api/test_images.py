"""Builds of images over REST: asked for by administrators, seen by those whose images they are."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from allpass.wire.providers import ImageBuild, ImageBuilds, Providers
from app.api.context import ApiContext
from app.core import codec
from app.core.model.job import Resources
from app.db.offers import image_builds as rows
from app.db.offers import provider_states as states
from tests.api.conftest import Tenant, make_tenant
from tests.seeds import seed_app, seed_job

OWN = "lab/train:7"


@pytest.fixture(autouse=True)
async def _modal_builds(context: ApiContext) -> None:
    async with context.database.transaction() as connection:
        await states.set_configured(connection, ["modal", "vast"])
        await rows.set_builders(connection, ["modal"])


async def _ask(tenant: Tenant, image: str = OWN, **more: str) -> list[ImageBuild]:
    response = await tenant.http.post("/v1/providers/images", json={"image": image, **more})
    assert response.status_code == 200, response.text
    return ImageBuilds.model_validate(response.json()).images


async def _fail(context: ApiContext, image: str, log: str = "last words") -> None:
    now_ms = context.clock.now_ms()
    failure = rows.BuildFailure("image_refused", "no such tag; compare it", log, 1, now_ms + 300_000)
    async with context.database.transaction() as connection:
        await rows.want_image(connection, "modal", image, now_ms=now_ms)
        await rows.fail(connection, "modal", image, failure, now_ms=now_ms)


async def test_an_image_is_asked_for_where_images_are_built(api: FastAPI, context: ApiContext) -> None:
    """Once, however often it is asked; only providers that build answer."""
    async with make_tenant(api, context, ("admin",)) as admin:
        for more in ({}, {}, {"provider": "modal"}):
            (one,) = await _ask(admin, **more)
            assert (one.provider, one.image, one.state) == ("modal", OWN, "wanted")
        listed = ImageBuilds.model_validate((await admin.http.get("/v1/providers/images")).json())
        assert [one.image for one in listed.images] == [OWN]
        other = await admin.http.get("/v1/providers/images", params={"image": "another"})
        assert other.json() == {"images": []}


async def test_one_that_failed_is_tried_again_and_tells_why_until_then(api: FastAPI, context: ApiContext) -> None:
    """With the builder's last lines and the next try."""
    await _fail(context, OWN)
    async with make_tenant(api, context, ("admin",)) as admin:
        (before,) = (await admin.http.get("/v1/providers/images", params={"image": OWN})).json()["images"]
        assert (before["state"], before["why"], before["log"]) == ("failed", "no such tag; compare it", "last words")
        assert before["again_at"] is not None
        (after,) = await _ask(admin)
    assert (after.state, after.failures, after.again_at) == ("wanted", 0, None)


async def test_one_that_is_ready_stays_ready(api: FastAPI, context: ApiContext) -> None:
    """Asking for it costs nothing, and takes nothing away from jobs that could start."""
    async with context.database.transaction() as connection:
        await rows.want_image(connection, "modal", OWN, now_ms=5)
        await rows.succeed(connection, "modal", OWN, now_ms=9)
    async with make_tenant(api, context, ("admin",)) as admin:
        (one,) = await _ask(admin)
    assert (one.state, one.took_ms) == ("ready", 4)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"image": OWN, "provider": "vast"}, "provider"),
        ({"image": ""}, "image"),
        ({"image": "two words"}, "image"),
        ({"image": "-o"}, "image"),
        ({"image": "x\n"}, "image"),
        ({"image": "x" * 501}, "image"),
        ({}, "image"),
    ],
)
async def test_what_is_no_image_or_no_builder_is_refused(
    api: FastAPI, context: ApiContext, body: dict[str, Any], param: str
) -> None:
    """Naming the field; nothing is written."""
    async with make_tenant(api, context, ("admin",)) as admin:
        response = await admin.http.post("/v1/providers/images", json=body)
        assert response.status_code == 422
        assert param in response.text
        assert (await admin.http.get("/v1/providers/images")).json() == {"images": []}


async def test_only_administrators_ask(api: FastAPI, context: ApiContext) -> None:
    """A build is work in the account of all."""
    async with make_tenant(api, context, ("read", "submit")) as user:
        assert (await user.http.post("/v1/providers/images", json={"image": OWN})).status_code == 403
        assert (await user.http.get("/v1/providers/images")).status_code == 403


async def test_without_a_builder_there_is_nothing_to_prepare(api: FastAPI, context: ApiContext) -> None:
    """Machines elsewhere fetch an image when they start."""
    async with context.database.transaction() as connection:
        await rows.set_builders(connection, [])
    async with make_tenant(api, context, ("admin",)) as admin:
        assert await _ask(admin) == []


async def test_a_project_sees_the_usual_image_and_its_own(api: FastAPI, context: ApiContext) -> None:
    """An image of another project is a secret of that project, and so is what its builder writes."""
    async with make_tenant(api, context, ("read",)) as one, make_tenant(api, context, ("read",)) as other:
        async with context.database.transaction() as connection:
            await seed_app(connection, one.project_id, base_image="lab/app:1")
            named = codec.encode(Resources(base_image="lab/job:1"))
            await seed_job(connection, other.project_id, resources=named)
        for image in (context.settings.node_image, "lab/app:1", "lab/job:1", "lab/nobody:1"):
            await _fail(context, image)
        seen = {}
        for tenant in (one, other):
            listed = Providers.model_validate((await tenant.http.get("/v1/providers")).json()).providers
            seen[tenant.project_id] = {provider.name: [b.image for b in provider.images] for provider in listed}
    usual = context.settings.node_image
    assert seen[one.project_id] == {"modal": sorted([usual, "lab/app:1"]), "vast": []}
    assert seen[other.project_id] == {"modal": sorted([usual, "lab/job:1"]), "vast": []}
