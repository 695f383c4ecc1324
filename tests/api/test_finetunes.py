"""A fine-tuning submitted over HTTP: rows are checked as they come, and make the job that `allpass finetune` makes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import func, select

from allpass.recipe.packing import pack
from app.api import uploads
from app.api.context import ApiContext
from app.db.tables import apps, jobs
from app.errors import TooManyRequests
from app.services.jobs.submit_finetune import Finetunes
from app.services.kit.apart import Desk
from tests.api.conftest import Tenant, client, error_of, make_tenant
from tests.e2e.test_finetune import unpacked

pytestmark = pytest.mark.timeout(300)  # rows are packed by a process that gives way to all others
ROWS = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(24)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
MODEL = "HuggingFaceTB/SmolLM2-135M"


async def sent(tenant: Tenant, content: bytes, name: str = "sums.jsonl") -> Any:
    answer = await tenant.http.put("/v1/finetunes/data", params={"name": name}, content=content)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def asked(tenant: Tenant, **changes: Any) -> dict[str, Any]:
    report = await sent(tenant, LINES)
    return {"data": {"sha256": report["sha256"], "name": "sums.jsonl"}, "model": MODEL, **changes}


async def count(context: ApiContext, table: Any) -> int:
    async with context.database.transaction() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


async def test_rows_make_the_job_of_the_command(tenant: Tenant, context: ApiContext, tmp_path: Path) -> None:
    """The same bundle, template and parameters, byte for byte, and the same app."""
    told = await sent(tenant, LINES)
    assert (told["rows"], told["problems"], told["size_bytes"]) == (24, [], len(LINES))
    assert told["characters"] == sum(len(row["prompt"]) + len(row["completion"]) for row in ROWS)
    settings = {"epochs": 2, "batch_size": 8, "sequence_length": 64, "seed": 3}
    body = await asked(
        tenant, settings=settings, template={"caps": {"max_cost_usd": 5}}, name="sums", soft_deadline="6hr"
    )
    answer = await tenant.http.post("/v1/finetunes", json=body)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    (tmp_path / "sums.jsonl").write_bytes(LINES)
    packed = pack({"model": MODEL, "method": "lora", **settings}, tmp_path / "sums.jsonl")
    assert (job["name"], job["app_name"], job["status"]) == ("sums", "SmolLM2-135M-sums", "queued")
    assert job["parameters"] == json.loads(json.dumps(packed.parameters))
    assert job["total_steps"] == packed.total_steps
    app = (await tenant.http.get(f"/v1/apps/{job['app_id']}")).json()
    assert (app["bundle_sha256"], app["entrypoint"], app["user_name"]) == (packed.bundle.sha256, "finetune.py", "test")
    assert app["runtime"]["pip"] == packed.pip
    key = f"projects/{tenant.project_id}/sha256/{packed.bundle.sha256[:2]}/{packed.bundle.sha256}"
    assert unpacked(await context.objects.get(key), tmp_path / "bundle").joinpath("train.jsonl").is_file()


async def test_wrong_rows_are_named_by_line_and_nothing_is_kept(tenant: Tenant, context: ApiContext) -> None:
    lines = [b'{"prompt": "a", "completion": "b"}', b"", b'{"prompt": "a"}', b'{"prompt": 3, "completion": "b"}']
    told = await sent(tenant, b"\n".join(lines))
    assert told["sha256"] is None
    assert [one["where"] for one in told["problems"]] == [
        'row 2 (line 3), field "completion"', 'row 3 (line 4), field "prompt"',
    ]  # fmt: skip
    assert all(one["message"] for one in told["problems"])
    many = await sent(tenant, b'{"prompt": "a", "completion": "b"}\n' + b'{"prompt": "a"}\n' * 50)
    assert (len(many["problems"]), many["problem_count"]) == (10, 50)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sums.jsonl", bytes(range(256)) * 10, "UTF-8"),
        ("sums.csv", b"\x00\x01,\xff", "UTF-8"),
        ("sums.parquet", b"PAR1" + bytes(1000), "is not Parquet"),
        ("sums.jsonl", b"\n", "there are no rows"),
        ("sums.exe", b"MZ", "'.exe' is none of"),
        ("sums.json", b"[" * 100_000, "is not JSON"),
        ("../../etc/sums.txt", b"x", "'.txt' is none of"),
        ("<img src=x onerror=alert(1)>.jsonl", b"<script>", "is not JSON"),
    ],
)
async def test_what_is_no_file_of_rows_is_said_so(tenant: Tenant, name: str, content: bytes, message: str) -> None:
    told = await sent(tenant, content, name)
    assert told["sha256"] is None
    assert message in told["problems"][0]["message"]


async def test_an_empty_body_is_no_file(tenant: Tenant) -> None:
    answer = await tenant.http.put("/v1/finetunes/data", params={"name": "a.jsonl"}, content=b"")
    assert error_of(answer, 422, "invalid_input")["param"] == "body"


async def test_a_file_that_is_too_large_is_refused_before_and_while_it_comes(
    tenant: Tenant, context: ApiContext
) -> None:
    most = context.settings.max_data_bytes
    whole = await tenant.http.put("/v1/finetunes/data", params={"name": "a.jsonl"}, content=bytes(most + 1))
    assert "allpass finetune" in error_of(whole, 413, "too_large")["message"]

    async def pieces() -> Any:
        for _ in range(most // 2**20 + 1):
            yield bytes(2**20)

    piecewise = await tenant.http.put("/v1/finetunes/data", params={"name": "a.jsonl"}, content=pieces())
    error_of(piecewise, 413, "too_large")


async def test_a_file_that_comes_too_slowly_gives_its_place_back(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_LONGEST_S", 0.05)

    async def slow() -> Any:
        yield b"{}"
        await asyncio.sleep(30)

    late = await tenant.http.put("/v1/finetunes/data", params={"name": "a.jsonl"}, content=slow())
    assert error_of(late, 422, "invalid_input")["param"] == "body"
    await sent(tenant, LINES)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": "no-such-name"}, "model"),
        ({"model": "mistralai/Mixtral-8x7B-v0.1"}, "model"),
        ({"settings": {"batch_size": 0}}, "settings.batch_size"),
        ({"settings": {"batchsize": 4}}, "settings.batchsize"),
        ({"settings": {"model": "a/b"}}, "settings.model"),
        ({"settings": {"adapter": "/etc"}}, "settings.adapter"),
        ({"settings": {"push_to": "a/b"}}, "settings.push_to"),
        ({"settings": {"seed": "x"}}, "settings.seed"),
        ({"method": "full", "settings": {"precision": "bf16"}}, "settings.precision"),
        ({"template": {"training": {"steps": 3}}}, "template.training.steps"),
        ({"template": {"gpu": {"count": 9}}}, "template.gpu.count"),
        ({"soft_deadline": "yesterday"}, "soft_deadline"),
        ({"held_out": 1}, "held_out"),
        ({"data": {"sha256": "0" * 64, "name": "a.jsonl"}}, "data.sha256"),
        ({"data": {"sha256": "0" * 64, "name": ".."}}, "data.name"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_written(
    tenant: Tenant, context: ApiContext, changes: dict[str, Any], param: str
) -> None:
    before = await count(context, apps), await count(context, jobs)
    answer = await tenant.http.post("/v1/finetunes", json=await asked(tenant) | changes)
    assert error_of(answer, 422, "invalid_input")["param"] == param
    assert (await count(context, apps), await count(context, jobs)) == before


async def test_the_same_key_submits_once(tenant: Tenant, context: ApiContext) -> None:
    body, headers = await asked(tenant), {"Idempotency-Key": "once"}
    first = await tenant.http.post("/v1/finetunes", json=body, headers=headers)
    again = await tenant.http.post("/v1/finetunes", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["Idempotent-Replayed"] == "true"
    other = await tenant.http.post("/v1/finetunes", json=body | {"name": "other"}, headers=headers)
    error_of(other, 409, "idempotency_conflict")
    assert await count(context, jobs) == 1


async def test_rows_of_another_project_are_not_there(tenant: Tenant, stranger: Tenant) -> None:
    answer = await stranger.http.post("/v1/finetunes", json=await asked(tenant))
    assert error_of(answer, 422, "invalid_input")["param"] == "data.sha256"


async def test_a_key_that_may_only_read_sends_and_submits_nothing(
    api: FastAPI, tenant: Tenant, context: ApiContext
) -> None:
    body = await asked(tenant)
    async with make_tenant(api, context, ("read",)) as reader:
        error_of(
            await reader.http.put("/v1/finetunes/data", params={"name": "a.jsonl"}, content=LINES), 403, "forbidden"
        )
        error_of(await reader.http.post("/v1/finetunes", json=body), 403, "forbidden")
    async with client(api) as nobody:
        missing = await nobody.put("/v1/finetunes/data", params={"name": "a.jsonl"}, content=LINES)
        error_of(missing, 401, "unauthenticated")


async def test_one_file_of_a_project_at_a_time(api: FastAPI, tenant: Tenant, stranger: Tenant) -> None:
    """Another one is told to come again; other projects are not kept waiting by it."""
    finetunes: Finetunes = api.state.finetunes
    async with finetunes.desk.place(tenant.project_id):
        busy = await tenant.http.put("/v1/finetunes/data", params={"name": "a.jsonl"}, content=LINES)
        error_of(busy, 429, "rate_limited")
        assert busy.headers["Retry-After"]
        await sent(stranger, LINES)
    await sent(tenant, LINES)


async def test_a_desk_gives_places_back_whatever_happens() -> None:
    desk = Desk("thing", 1)
    with pytest.raises(ZeroDivisionError):
        async with desk.place("p"):
            with pytest.raises(TooManyRequests):
                async with desk.place("p"):
                    pass
            raise ZeroDivisionError
    async with desk.place("p"):
        pass
