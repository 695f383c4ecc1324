"""Bundles and apps: content-addressed, versioned, registered once."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from urllib.parse import urlparse

import pytest
from sqlalchemy import select

from allpass.archive import tar_gz
from allpass.recipe.packing import SCRIPT_NAME
from allpass.wire.apps import App
from app.api.context import ApiContext
from app.db.tables import app_versions, objects
from app.ports.objects import content_key
from tests.api.conftest import Tenant, error_of
from tests.bundles import BAD, code
from tests.seeds import new_id

CODE = code()
OTHER = tar_gz([("train.py", b"print('other')"), ("src/main.py", b"")])
SHA256 = hashlib.sha256(CODE).hexdigest()


async def store(context: ApiContext, tenant: Tenant, code: bytes = CODE) -> str:
    """Put a bundle where its signed URL would."""
    sha256 = hashlib.sha256(code).hexdigest()
    await context.objects.put(content_key(tenant.project_id, sha256), code, sha256=sha256)
    return sha256


def request(**fields: Any) -> dict[str, Any]:
    return {"name": "sft", "user_name": "ada", "bundle_sha256": SHA256, "entrypoint": "train.py"} | fields


async def test_a_bundle_is_asked_for_until_it_is_there(tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """A signed URL inside the project's own namespace; null once stored; another project has to send its own."""
    body = {"sha256": SHA256, "size_bytes": len(CODE)}
    offered = (await tenant.http.post("/v1/bundles", json=body)).json()
    assert offered["sha256"] == SHA256
    assert content_key(tenant.project_id, SHA256) in urlparse(offered["upload_url"]).path
    await store(context, tenant)
    assert (await tenant.http.post("/v1/bundles", json=body)).json()["upload_url"] is None
    assert (await stranger.http.post("/v1/bundles", json=body)).json()["upload_url"] is not None


async def test_a_bundle_with_a_wrong_or_too_large_size_is_refused(tenant: Tenant, context: ApiContext) -> None:
    """413 above the limit; 422 when the content that is stored has another size."""
    await store(context, tenant)
    large = {"sha256": SHA256, "size_bytes": context.settings.max_bundle_bytes + 1}
    assert error_of(await tenant.http.post("/v1/bundles", json=large), 413, "too_large")["param"] == "size_bytes"
    wrong = {"sha256": SHA256, "size_bytes": len(CODE) + 1}
    assert error_of(await tenant.http.post("/v1/bundles", json=wrong), 422, "invalid_input")["param"] == "size_bytes"


async def test_an_app_needs_its_bundle(tenant: Tenant) -> None:
    """A version whose code is nowhere could never run."""
    error = error_of(await tenant.http.post("/v1/apps", json=request()), 422, "invalid_input")
    assert error["param"] == "bundle_sha256"
    assert "/v1/bundles" in error["message"]


async def test_the_same_content_is_the_same_version_and_a_change_the_next(tenant: Tenant, context: ApiContext) -> None:
    """201 for a new version, 200 for the newest one again; going back to old content is a change too."""
    await store(context, tenant)
    other = await store(context, tenant, OTHER)
    story = [
        (request(), 201, 1),
        (request(), 200, 1),
        (request(bundle_sha256=other), 201, 2),
        (request(bundle_sha256=other, runtime={"pip": ["peft==0.21.2"]}), 201, 3),
        (request(bundle_sha256=other, runtime={"pip": ["peft==0.21.2"], "base_image": "nvcr.io/x"}), 201, 4),
        (request(bundle_sha256=other, runtime={"pip": ["peft==0.21.2"], "base_image": "nvcr.io/x"}), 200, 4),
        (request(), 201, 5),
        (request(bundle_sha256=other, entrypoint="src/main.py"), 201, 6),
    ]
    ids = set()
    for body, status, version in story:
        response = await tenant.http.post("/v1/apps", json=body)
        assert (response.status_code, response.json()["version"]) == (status, version), response.text
        ids.add(response.json()["id"])
    assert len(ids) == 1
    async with context.database.transaction() as connection:
        recorded = (await connection.execute(select(objects.c.sha256, objects.c.size_bytes))).all()
    assert {tuple(row) for row in recorded} == {(SHA256, len(CODE)), (other, len(OTHER))}


async def test_a_new_version_is_what_a_job_runs_from_then_on(tenant: Tenant, context: ApiContext) -> None:
    """Registering and submitting in turn never meets an old version."""
    for number in range(1, 4):
        bundle = await store(context, tenant, code(f"version = {number}"))
        app = (await tenant.http.post("/v1/apps", json=request(bundle_sha256=bundle))).json()
        job = (await tenant.http.post("/v1/jobs", json={"app_id": app["id"]})).json()
        assert (app["version"], job["app_version"], job["app_name"]) == (number, number, "sft")


async def test_concurrent_registrations_of_one_app_make_one_version(tenant: Tenant, context: ApiContext) -> None:
    """Twenty of the same content: one 201, the others 200, one row."""
    await store(context, tenant)
    answers = await asyncio.gather(*(tenant.http.post("/v1/apps", json=request()) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["version_id"] for answer in answers}) == 1


async def test_registering_under_a_key_is_answered_the_same(tenant: Tenant, context: ApiContext) -> None:
    """The first answer, with its status, even when a newer version exists; another body is refused."""
    await store(context, tenant)
    other = await store(context, tenant, OTHER)
    headers = {"Idempotency-Key": "a"}
    first = await tenant.http.post("/v1/apps", json=request(), headers=headers)
    await tenant.http.post("/v1/apps", json=request(bundle_sha256=other, user_name="bob"))
    again = await tenant.http.post("/v1/apps", json=request(), headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    changed = await tenant.http.post("/v1/apps", json=request(entrypoint="b.py"), headers=headers)
    error_of(changed, 409, "idempotency_conflict")
    burst = await asyncio.gather(
        *(tenant.http.post("/v1/apps", json=request(), headers={"Idempotency-Key": "b"}) for _ in range(10))
    )
    assert {(answer.status_code, answer.json()["version"]) for answer in burst} == {(201, 3)}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"entrypoint": "/etc/passwd"}, "entrypoint"),
        ({"entrypoint": "a/../../b.py"}, "entrypoint"),
        ({"entrypoint": "a\\b.py"}, "entrypoint"),
        ({"entrypoint": "a//b.py"}, "entrypoint"),
        ({"runtime": {"pip": ["peft", "--index-url=https://example.org"]}}, "runtime.pip[1]"),
        ({"runtime": {"pip": [" "]}}, "runtime.pip[0]"),
        ({"runtime": {"pip": ["peft\n--index-url=x"]}}, "runtime.pip[0]"),
        ({"runtime": {"pips": []}}, "runtime.pips"),
        ({"bundle_sha256": "ABC"}, "bundle_sha256"),
        ({"name": "  "}, "name"),
        ({"name": "a\x00"}, "name"),
    ],
)
async def test_what_could_never_run_is_refused(
    tenant: Tenant, context: ApiContext, change: dict[str, Any], param: str
) -> None:
    """Paths outside the bundle, pip options, misspelt fields: 422 naming the field."""
    await store(context, tenant)
    error = error_of(await tenant.http.post("/v1/apps", json=request(**change)), 422, "invalid_input")
    assert error["param"] == param


@pytest.mark.parametrize("name", ["a file and a folder", "a long name", "two dots", "a cut gzip", "text"])
async def test_a_bundle_that_no_machine_can_unpack_is_refused(tenant: Tenant, context: ApiContext, name: str) -> None:
    """Its owner hears so at once: no version is written, so that no machine is ever rented for it."""
    bundle, says, _ = BAD[name]
    sent = await tenant.http.post("/v1/apps", json=request(bundle_sha256=await store(context, tenant, bundle)))
    error = error_of(sent, 422, "invalid_input")
    assert error["param"] == "bundle_sha256"
    assert says in error["message"]
    missing = await tenant.http.post(
        "/v1/apps", json=request(bundle_sha256=await store(context, tenant), entrypoint="no.py")
    )
    assert error_of(missing, 422, "invalid_input")["param"] == "entrypoint"


async def test_apps_are_read_within_their_project(tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """Listed newest first by pages, with their newest version; another project's app is not found."""
    await store(context, tenant)
    for name in ("a", "b", "c"):
        await tenant.http.post("/v1/apps", json=request(name=name))
    first = (await tenant.http.get("/v1/apps", params={"limit": 2})).json()
    rest = (await tenant.http.get("/v1/apps", params={"limit": 5, "cursor": first["next_cursor"]})).json()
    names = [one["name"] for one in first["data"] + rest["data"]]
    assert {"a", "b", "c"} < set(names)
    assert [one["id"] for one in first["data"] + rest["data"]] == sorted(
        (one["id"] for one in first["data"] + rest["data"]), reverse=True
    )
    assert rest["next_cursor"] is None
    app = App.model_validate((await tenant.http.get(f"/v1/apps/{tenant.app_id}")).json())
    assert (app.id, app.version, app.runtime.pip) == (tenant.app_id, 1, [])
    for http, app_id in ((stranger.http, tenant.app_id), (tenant.http, new_id("app")), (tenant.http, "x")):
        error_of(await http.get(f"/v1/apps/{app_id}"), 404, "not_found")
    async with context.database.transaction() as connection:
        assert (await connection.execute(select(app_versions.c.environment_sha256))).first() is not None


async def test_code_without_a_script_needs_a_command(tenant: Tenant, context: ApiContext) -> None:
    """It is registered; a job of it without a command is refused with an example, one with a command is accepted."""
    await store(context, tenant)
    body = {name: value for name, value in request().items() if name != "entrypoint"}
    app = (await tenant.http.post("/v1/apps", json=body)).json()
    assert app["entrypoint"] == ""
    error = error_of(await tenant.http.post("/v1/jobs", json={"app_id": app["id"]}), 422, "invalid_input")
    assert error["param"] == "template.command"
    assert '["python", "train.py"]' in error["message"]
    template = {"command": ["axolotl", "train", "cfg.yml"]}
    accepted = await tenant.http.post("/v1/jobs", json={"app_id": app["id"], "template": template})
    assert accepted.status_code == 201


async def test_the_recipe_takes_no_command(tenant: Tenant, context: ApiContext) -> None:
    """An app of the built-in fine-tuning runs nothing else: its jobs are looked at and merged by what it does."""
    recipe = await store(context, tenant, tar_gz([(SCRIPT_NAME, b"pass")]))
    app = (await tenant.http.post("/v1/apps", json=request(bundle_sha256=recipe, entrypoint=SCRIPT_NAME))).json()
    job = {"app_id": app["id"], "template": {"command": ["bash"]}}
    error = error_of(await tenant.http.post("/v1/jobs", json=job), 422, "invalid_input")
    assert "built-in recipe" in error["message"]
