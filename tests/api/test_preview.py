"""Looking into a file that a job has left."""

from __future__ import annotations

import hashlib

import pytest
from sqlalchemy import insert

from app.api.context import ApiContext
from app.db.tables import artifacts
from app.ports.objects import content_key
from app.services.reading.preview_file import MOST_BYTES, look_at
from tests.api.builders import add_ended_run, add_job
from tests.api.conftest import Tenant, error_of
from tests.seeds import T0_MS, new_id

PNG = b"\x89PNG\r\n\x1a\n\x00\x00"


async def leave(
    context: ApiContext, tenant: Tenant, job_id: str, path: str, data: bytes, *, stored: bool = True
) -> None:
    """A file of the job, as its run's report leaves it."""
    sha256 = hashlib.sha256(data).hexdigest()
    if stored:
        await context.objects.put(content_key(tenant.project_id, sha256), data, sha256=sha256)
    run_id = await add_ended_run(context, tenant, job_id, epoch=int(new_id("run")[-4:], 36) + hash(path) % 1000)
    row = {"job_id": job_id, "run_id": run_id, "path": path, "sha256": sha256, "size_bytes": len(data)}
    async with context.database.transaction() as connection:
        await connection.execute(insert(artifacts).values(**row, created_ms=T0_MS))


@pytest.mark.parametrize(
    ("data", "kind", "text", "truncated"),
    [
        (b"", "text", "", False),
        (
            b"# Notes\r\n<script>alert(1)</script>\x1b[31m",
            "text",
            "# Notes\r\n<script>alert(1)</script>\x1b[31m",
            False,
        ),
        ("é\N{PILE OF POO}".encode(), "text", "é\N{PILE OF POO}", False),
        (b"\xff\xfeh\x00", "binary", None, False),
        (b"caf\xe9", "binary", None, False),
        (b"ab\x00c", "binary", None, False),
        (PNG, "image", None, False),
        (b"\xff\xd8\xff\xe0", "image", None, False),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image", None, False),
        (b"a" * MOST_BYTES, "text", "a" * MOST_BYTES, False),
        (b"a" * (MOST_BYTES + 1), "text", "a" * MOST_BYTES, True),
        (b"a" * (MOST_BYTES - 1) + "é".encode() * 9, "text", "a" * (MOST_BYTES - 1), True),
        (PNG + b"\x00" * MOST_BYTES, "image", None, True),
    ],
)
async def test_a_file_is_shown_as_what_it_is(
    tenant: Tenant, context: ApiContext, data: bytes, kind: str, text: str | None, truncated: bool
) -> None:
    """Text where it is UTF-8, whole characters of it and never more than 64 KiB; else what it seems to be."""
    job_id = await add_job(context, tenant)
    await leave(context, tenant, job_id, "out/x.bin", data)
    answer = await tenant.http.get(f"/v1/jobs/{job_id}/artifacts/preview", params={"path": "out/x.bin"})
    assert answer.headers["content-type"] == "application/json"
    expected = {"path": "out/x.bin", "size_bytes": len(data), "kind": kind, "text": text, "truncated": truncated}
    assert answer.json() == expected


def test_a_character_that_is_cut_is_no_error_but_one_that_is_wrong_is() -> None:
    """At the end of what was read, and only where there is more."""
    cut = b"ok" + "é".encode()[:1]
    assert look_at(cut, truncated=True) == ("text", "ok")
    assert look_at(cut, truncated=False) == ("binary", None)
    assert look_at(b"\xffok", truncated=True) == ("binary", None)


@pytest.mark.parametrize(
    "path", ["a b/%2F?&#+.txt", "../../etc/passwd", "/etc/passwd", "<b>", "é/\N{PILE OF POO}", "."]
)
async def test_a_path_is_a_name_in_a_list(tenant: Tenant, context: ApiContext, path: str) -> None:
    """What is listed under it is shown, whatever it looks like; what is not is a 404."""
    job_id = await add_job(context, tenant)
    address = f"/v1/jobs/{job_id}/artifacts/preview"
    error = error_of(await tenant.http.get(address, params={"path": path}), 404, "not_found")
    assert "artifacts lists them" in error["message"]
    await leave(context, tenant, job_id, path, b"here")
    assert (await tenant.http.get(address, params={"path": path})).json()["text"] == "here"
    for other in (path + "/", path.upper() + "x"):
        error_of(await tenant.http.get(address, params={"path": other}), 404, "not_found")


async def test_files_of_others_do_not_exist(tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """Nor do those of jobs that do not, and a path has to be named."""
    job_id = await add_job(context, tenant)
    await leave(context, tenant, job_id, "a", b"secret")
    path = f"/v1/jobs/{job_id}/artifacts/preview"
    error_of(await stranger.http.get(path, params={"path": "a"}), 404, "not_found")
    for unknown in (new_id("job"), "job_x"):
        error_of(await tenant.http.get(f"/v1/jobs/{unknown}/artifacts/preview", params={"path": "a"}), 404, "not_found")
    for params in ({}, {"path": ""}, {"path": "x" * 1001}):
        assert error_of(await tenant.http.get(path, params=params), 422, "invalid_input")["param"] == "path"
    error_of(await tenant.http.get(f"{path}?path=a%00b"), 422, "invalid_input")


async def test_a_file_that_the_store_has_lost_is_told(tenant: Tenant, context: ApiContext) -> None:
    """As of every stored content: 404 with a code of its own."""
    job_id = await add_job(context, tenant)
    await leave(context, tenant, job_id, "a", b"gone", stored=False)
    error_of(await tenant.http.get(f"/v1/jobs/{job_id}/artifacts/preview", params={"path": "a"}), 404, "object_missing")
