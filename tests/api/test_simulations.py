"""Simulations over HTTP: the figures of `allpass simulate`, within limits that are named."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import replace as replaced
from typing import Any

import pytest
from fastapi import FastAPI

from app.api import simulations
from app.api.context import ApiContext
from app.simulator.asked import WITH_MOVES
from app.simulator.running import simulate
from app.simulator.traces.generating import generate
from app.simulator.traces.reading import text_of
from tests.api.conftest import Tenant, error_of, make_tenant

pytestmark = pytest.mark.timeout(120)
SMALL = {"generated": {"like": "seren", "jobs": 40, "seed": 1}, "policies": ["allpass", "modal-only"]}
CSV = b"job_id,submit_time_s,duration_s,num_gpus\na,0,600,1\nb,30,60,2\nc,60,,1\n"


async def played(tenant: Tenant, **changes: Any) -> Any:
    answer = await tenant.http.post("/v1/simulations", json=SMALL | changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def sent(tenant: Tenant, content: bytes, **params: str) -> Any:
    answer = await tenant.http.put("/v1/simulations/trace", params={"name": "jobs.csv"} | params, content=content)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_figures_are_those_of_the_command(tenant: Tenant) -> None:
    told = await played(tenant)
    expected = simulate(generate("seren", 40, 1), ["allpass", "modal-only"], WITH_MOVES)["policies"]
    assert [one["name"] for one in told["policies"]] == ["allpass", "modal-only"]
    for one in told["policies"]:
        own = expected[one["name"]]
        assert one["figures"]["cost_usd"] == pytest.approx(own["cost_usd"])
        assert one["figures"]["deadline_misses"] == own["deadline_misses"]
        assert one["cost_by_provider_usd"] == pytest.approx(own["cost_by_provider_usd"])
        assert one["stayed"] + one["moved"] + one["rented"] == 40
        assert one["completion"][-1][1] == 1.0
        assert [at for at, _ in one["completion"]] == sorted(at for at, _ in one["completion"])
        course = one["course"]
        assert {len(values) for values in course.values()} == {len(course["times_s"])}
    assert told["options"]["knowledge"] == "after:60:0.2"


async def test_worlds_settings_and_seeds_are_heeded(tenant: Tenant) -> None:
    told = await played(tenant, world="harsh", settings={"move_gain": 1.5}, seeds=2, move_seconds=12.5, deadlines="6h")
    assert told["seeds"] == 2
    asked = {"world": "harsh", "rules.move_gain": "1.5", "move-seconds": "12.5", "deadlines": "6h"}
    assert {name: told["options"][name] for name in asked} == asked


async def test_machines_of_ones_own_are_filled_first(tenant: Tenant) -> None:
    """As with `--pool`: what they take need not be rented, and when they were in use is told."""
    rented = (await played(tenant, policies=["allpass"]))["policies"][0]
    told = await played(tenant, policies=["allpass"], pools=["lab:2x8xA100@0.10", "8xA100"])
    assert told["options"]["pool"] == "lab:2x8xA100@0.10+8xA100"
    assert told["policies"][0]["figures"]["cost_usd"] < rented["figures"]["cost_usd"]
    assert max(told["policies"][0]["course"]["own"]) > 0 == max(rented["course"]["own"])


async def test_a_trace_is_read_kept_and_played(tenant: Tenant, stranger: Tenant) -> None:
    """Packed or not; its jobs without an end are counted. Another project does not have it."""
    for content in (CSV, gzip.compress(CSV)):
        told = await sent(tenant, content)
        assert (told["jobs"], told["left_out"], told["span_s"]) == (2, 1, 30)
    body = {"trace": {"sha256": told["sha256"], "name": told["name"]}, "generated": None, "policies": ["clairvoyant"]}
    found = await played(tenant, **body)
    assert (found["jobs"], found["policies"][0]["course"]) == (2, None)
    assert (await played(tenant, **body | {"trace": body["trace"] | {"most_jobs": 1}}))["jobs"] == 1
    error_of(await stranger.http.post("/v1/simulations", json=SMALL | body), 422, "invalid_input")


async def test_published_logs_are_read(tenant: Tenant) -> None:
    own = text_of(generate("seren", 5, 0)).encode()
    wrong = await tenant.http.put("/v1/simulations/trace", params={"name": "log.csv", "format": "acme"}, content=own)
    assert "log.csv" in error_of(wrong, 422, "invalid_input")["message"]
    acme = (
        b"job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
        b"end_time,fail_time,stop_time,duration,queue,gpu_time\n"
    )
    times = ",".join(f"2023-03-01 {hour}:00+08:00" for hour in ("00:00", "00:01", "01:01"))
    lines = acme + f"j1,u,1,8,64,100,0,Pretrain,COMPLETED,{times},,,3600,60,28800\n".encode()
    found = await sent(tenant, lines, format="acme")
    assert (found["name"], found["jobs"], found["gpu_hours"]) == ("acme", 1, 8.0)


@pytest.mark.parametrize(
    "content", [b"\x00\x01\x02", b"\xff\xfe", b"job_id\n1\n", CSV + b"<script>,x,y,z\n", b"\x1f\x8b\x08junk"]
)
async def test_what_is_no_trace_is_told_by_its_line(tenant: Tenant, content: bytes) -> None:
    """By the file's name; where it lay on the server is nobody's business."""
    answer = await tenant.http.put("/v1/simulations/trace", params={"name": "../jobs.csv"}, content=content)
    error = error_of(answer, 422, "invalid_input")
    assert error["message"].startswith("jobs.csv")
    assert "allpass-trace" not in error["message"]
    assert error["param"] == "trace"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"policies": ["allpas"]}, "policies"),
        ({"pools": ["eight"]}, "pools"),
        ({"pools": ["lab:8xA100", "lab:8xH100"]}, "pools"),
        ({"knowledge": "/etc/passwd"}, "knowledge"),
        ({"deadlines": "soon"}, "deadlines"),
        ({"settings": {"market": 1}}, "market"),
        ({"settings": {"move_gain": -1}}, "rules.move_gain"),
        ({"market": "/etc/passwd"}, "market"),
        ({"world": "kind"}, "world"),
        ({"trace": {"sha256": "0" * 64, "name": "a"}}, "trace"),
    ],
)
async def test_a_wrong_field_is_named(tenant: Tenant, changes: dict[str, Any], param: str) -> None:
    error = error_of(await tenant.http.post("/v1/simulations", json=SMALL | changes), 422, "invalid_input")
    assert error["param"] == param, error
    assert not error["message"].startswith("--")


async def test_what_is_too_large_is_refused_with_the_limits(tenant: Tenant, context: ApiContext, api: FastAPI) -> None:
    large = SMALL | {"generated": {"like": "seren", "jobs": 6000, "seed": 0}}
    error = error_of(await tenant.http.post("/v1/simulations", json=large), 413, "too_large")
    assert "12,000 jobs to play, and 10,000 is the most" in error["message"]
    rows = b"".join(b"%d,%d,60,1\n" % (number, number) for number in range(6000))
    trace = await sent(tenant, CSV.splitlines()[0] + b"\n" + rows)
    body = {"policies": SMALL["policies"], "trace": {"sha256": trace["sha256"], "name": trace["name"]}}
    error_of(await tenant.http.post("/v1/simulations", json=body), 413, "too_large")
    bomb = gzip.compress(bytes(2**20) * 64)
    assert len(bomb) < 2**20
    refused = await tenant.http.put("/v1/simulations/trace", params={"name": "bomb.csv"}, content=bomb)
    assert refused.status_code in (413, 422)


async def test_one_that_takes_too_long_is_ended(tenant: Tenant, api: FastAPI, context: ApiContext) -> None:
    api.state.context = replaced(context, settings=context.settings.model_copy(update={"simulation_s": 0.2}))
    error = error_of(await tenant.http.post("/v1/simulations", json=SMALL), 413, "too_large")
    assert "0.2 seconds" in error["message"]


async def test_one_that_nobody_waits_for_is_ended(
    api: FastAPI, tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leaves gives the place back, without the minute that it might have taken."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(*_: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    monkeypatch.setattr(simulations, "work_apart", endless)
    leave = asyncio.Event()
    body = [{"type": "http.request", "body": json.dumps(SMALL).encode()}]

    async def receive() -> Any:
        if body:
            return body.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    headers = [(b"authorization", f"Bearer {tenant.key}".encode()), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/simulations",
        "raw_path": b"/v1/simulations",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "http_version": "1.1",
        "scheme": "http",
        "server": ("a", 80),
    }
    asking = asyncio.create_task(api(scope, receive, send))
    async with asyncio.timeout(20):
        await begun.wait()
        leave.set()
        await ended.wait()
        await asking
    async with api.state.simulating.place(tenant.project_id):
        pass


async def test_one_at_a_time_for_each_project(api: FastAPI, tenant: Tenant) -> None:
    async with api.state.simulating.place(tenant.project_id):
        error_of(await tenant.http.post("/v1/simulations", json=SMALL), 429, "rate_limited")
    both = await asyncio.gather(*(tenant.http.post("/v1/simulations", json=SMALL) for _ in range(2)))
    assert sorted(one.status_code for one in both) == [200, 429]


async def test_who_may_read_may_simulate_and_sends_nothing(api: FastAPI, context: ApiContext) -> None:
    async with make_tenant(api, context, ("read",)) as reader:
        await played(reader)
        answer = await reader.http.put("/v1/simulations/trace", params={"name": "a.csv"}, content=CSV)
        error_of(answer, 403, "forbidden")
