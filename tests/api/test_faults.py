"""What surrounds the service fails, or a request is out of all proportion: a clear answer, and no harm done."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select

from app.api.app import create_app
from app.api.context import ApiContext
from app.db.tables import apps, jobs
from app.errors import StoreUnavailable
from app.ports.objects import content_key
from app.storage.incoming import STORE_FULL
from app.storage.s3 import S3Store
from app.storage.s3_errors import MISCONFIGURED
from app.storage.s3_place import s3_place
from tests.api.builders import add_chunk, add_job, add_run
from tests.api.conftest import Tenant, client, error_of
from tests.conftest import ManualClock

SHA256 = hashlib.sha256(b"bundle").hexdigest()


@pytest.fixture
async def store_down(clock: ManualClock) -> AsyncIterator[S3Store]:
    """A store at an address where nothing answers, and nothing will: we hold the port without listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        place = s3_place(
            endpoint=f"http://127.0.0.1:{held.getsockname()[1]}",
            public_endpoint=None,
            region="us-east-1",
            bucket="bucket",
            prefix="",
            addressing="path",
            access_key="access",
            secret_key="secret",
        )
        store = S3Store(place, max_object_bytes=2**30, clock=clock, timeout_s=5, attempts=1, connections=4)
        yield store
        await store.close()


async def count_jobs(context: ApiContext) -> int:
    async with context.database.transaction() as connection:
        return int((await connection.execute(select(func.count()).select_from(jobs))).scalar_one())


async def test_without_its_store_the_service_names_it_and_goes_on(
    tenant: Tenant, context: ApiContext, store_down: S3Store
) -> None:
    """503 `store_unavailable` with address, setting and Retry-After where the store is needed; running jobs and
    submissions do not notice."""
    job_id = await add_job(context, tenant, state="running", epoch=1)
    run_id, _ = await add_run(context, tenant, job_id)
    await add_chunk(context, tenant, job_id, run_id, 1, 0, "a line\n")
    app = create_app(replace(context, objects=store_down))
    async with client(app, tenant.key) as http:
        body = {"sha256": SHA256, "size_bytes": 6}
        runtime = {"name": "x", "user_name": "ada", "bundle_sha256": SHA256, "entrypoint": "train.py"}
        for answer in (
            await http.post("/v1/bundles", json=body),
            await http.post("/v1/apps", json=runtime),
            await http.get(f"/v1/jobs/{job_id}/logs"),
        ):
            error = error_of(answer, 503, "store_unavailable")
            assert f"nothing answers at {store_down.place.endpoint} (ALLPASS_S3_ENDPOINT)" in error["message"]
            assert (error["retryable"], answer.headers["retry-after"]) == (True, "1")
        assert (await http.post("/v1/jobs", json={"app_id": tenant.app_id})).status_code == 201
        assert (await http.get(f"/v1/jobs/{job_id}")).json()["status"] == "running"
        await app.state.authenticator.settled()


async def test_what_a_full_disk_refused_is_not_taken_for_stored(
    tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app whose bundle did not fit is refused, naming the bundle; nothing of it is registered."""
    key = content_key(tenant.project_id, SHA256)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StoreUnavailable, match="no room left"):
            await context.objects.put(key, b"bundle", sha256=SHA256)
    request = {"name": "x", "user_name": "ada", "bundle_sha256": SHA256, "entrypoint": "train.py"}
    assert error_of(await tenant.http.post("/v1/apps", json=request), 422, "invalid_input")["param"] == "bundle_sha256"
    async with context.database.transaction() as connection:
        assert (await connection.execute(select(apps.c.name).where(apps.c.name == "x"))).all() == []


@pytest.mark.parametrize("code", [STORE_FULL, MISCONFIGURED])
async def test_a_store_that_somebody_has_to_mend_is_told_by_its_own_code(
    tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """503 with what to do, as documented; not a bare 500 that hides it."""

    async def refuse(*_: object) -> None:
        raise StoreUnavailable("there is no bucket 'runs': create it", code=code)

    monkeypatch.setattr(type(context.objects), "head", refuse)
    answer = await tenant.http.post("/v1/bundles", json={"sha256": SHA256, "size_bytes": 6})
    error = error_of(answer, 503, code)
    assert (error["message"], error["retryable"]) == ("there is no bucket 'runs': create it", True)


async def test_a_sweep_of_the_documented_size_is_taken_and_one_more_is_not(tenant: Tenant, context: ApiContext) -> None:
    """10,000 jobs in one request are committed together; 10,001 are refused with the limit, and nothing is written."""
    content: dict[str, Any] = {"app_id": tenant.app_id, "parameters": [{} for _ in range(10_001)]}
    error = error_of(await tenant.http.post("/v1/sweeps", json=content), 422, "invalid_input")
    assert error["param"] == "parameters"
    assert "10000" in error["message"]
    assert len(error["message"]) < 500
    assert await count_jobs(context) == 0
    content["parameters"].pop()
    answer = await tenant.http.post("/v1/sweeps", json=content)
    assert answer.status_code == 201
    assert len(answer.json()["jobs"]) == await count_jobs(context) == 10_000


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({f"label-{number}": "x" for number in range(65)}, "64"),
        ({"x" * 201: "x"}, "200"),
        ({"x": "y" * 201}, "200"),
    ],
)
async def test_labels_beyond_their_bounds_are_refused_with_the_bound(
    tenant: Tenant, context: ApiContext, labels: dict[str, str], words: str
) -> None:
    """On submitting as on changing: 422, short, naming the field."""
    answer = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": {"labels": labels}})
    error = error_of(answer, 422, "invalid_input")
    assert error["param"].startswith("template.labels")
    assert words in error["message"]
    assert await count_jobs(context) == 0
    job_id = await add_job(context, tenant)
    error = error_of(await tenant.http.patch(f"/v1/jobs/{job_id}", json={"labels": labels}), 422, "invalid_input")
    assert error["param"].startswith("labels")
    assert words in error["message"]


async def test_the_most_labels_are_kept(tenant: Tenant) -> None:
    """64 of 200 characters each, told back as they were given."""
    labels = {f"{number:0200}": "ä" * 200 for number in range(64)}
    answer = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id, "template": {"labels": labels}})
    assert answer.status_code == 201, answer.text
    assert (await tenant.http.get(f"/v1/jobs/{answer.json()['id']}")).json()["labels"] == labels


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"app_version": "1"}, "app_version"),
        ({"app_version": True}, "app_version"),
        ({"template": {"training": {"steps": "100"}}}, "template.training.steps"),
        ({"template": {"gpu": {"count": True}}}, "template.gpu.count"),
        ({"template": {"memory_gb": "32"}}, "template.memory_gb"),
        ({"template": {"elastic": "true"}}, "template.elastic"),
        ({"template": {"elastic": 1}}, "template.elastic"),
        ({"template": {"labels": {"a": 1}}}, "template.labels.a"),
        ({"soft_deadline": 3600}, "soft_deadline"),
        ({"name": 7}, "name"),
    ],
)
async def test_types_are_taken_literally(tenant: Tenant, change: dict[str, Any], param: str) -> None:
    """No text becomes a number, no number a boolean or a text: what looks like a slip is told as one."""
    answer = await tenant.http.post("/v1/jobs", json={"app_id": tenant.app_id} | change)
    assert error_of(answer, 422, "invalid_input")["param"] == param


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/jobs", "GET, POST"),
        ("PUT", "/v1/jobs/job_1", "GET, PATCH"),
        ("GET", "/v1/secrets/HF_TOKEN", "PUT, DELETE"),
        ("GET", "/v1/agent/sync", "POST"),
        ("POST", "/healthz", "GET"),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_told_with_those_it_has(
    tenant: Tenant, method: str, path: str, allowed: str
) -> None:
    """405 with every method of the path in `Allow`."""
    answer = await tenant.http.request(method, path)
    error_of(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/v1/agent/sync", "/v1/agent/metrics", "/v1/agent/checkpoints/ckpt_1/commit"])
async def test_agents_are_told_what_is_wrong_with_their_bodies_too(tenant: Tenant, path: str) -> None:
    """Bytes that are no UTF-8 are 422 with their place; before that, nobody's token is looked at."""
    answer = await tenant.http.post(path, content=b'{"a": "\xff"}', headers={"Content-Type": "application/json"})
    assert error_of(answer, 422, "invalid_input")["message"] == "body: byte 7 is not UTF-8; send the text as UTF-8"
