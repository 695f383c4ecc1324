"""G1: submitting a job over HTTP, against a raw insert of the same row.

    python -m benchmarks.submit [--rounds 5] [--seconds 4]

Ours: POST /v1/jobs with a key, validation, an idempotency key, job and event rows, durable before the 201; one uvicorn
worker, 32 callers, 8 connections. Raw: one autocommit INSERT ... RETURNING of the same row per job through asyncpg, 32
callers on 8 connections. PostgreSQL runs with its default durability settings on /dev/shm. Both are measured in turn
in every round; the value is the median of the rounds' ratios. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg
import uvicorn
import uvloop

from allpass.wire.jobs import Job, JobRequest
from app.api.app import create_app
from app.api.parts import Parts
from app.api.views import submitted_job
from app.db.apps import AppContent, AppVersion, add_version, ensure_app
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.db.migrate import upgrade
from app.db.projects import ensure_project
from app.db.submissions import NewJob
from app.services.compose_job import Defaults, compose_job
from app.services.create_key import create_key
from app.settings import Settings
from app.stack.postgres import EmbeddedPostgres
from app.storage.directory import DirectoryStore
from app.system import RandomIds, SystemClock
from benchmarks.http_load import measure

GOAL = 0.50
CALLERS = 32
CONNECTIONS = 8
WARM_UP_S = 1.0
BODY = {
    "name": "llama-3-8b",
    "template": {
        "model": {"name": "meta-llama/Meta-Llama-3-8B", "parameters": 8_000_000_000},
        "training": {"steps": 3120, "batch_size": 16, "sequence_length": 2048, "method": "lora", "precision": "bf16"},
        "gpu": {"count": 1, "type": "A100"},
        "caps": {"max_cost_usd": 12},
        "labels": {"team": "research"},
    },
    "parameters": {"learning_rate": 2e-4, "seed": 17, "dataset": "alpaca"},
    "soft_deadline": "6hr",
}


def main() -> None:
    """Run all rounds, print a line for each, and the result last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--part", choices=["serve", "serve-empty", "serve-bare", "raw", "load"], help="internal")
    parser.add_argument("--world", default="{}", help="internal")
    options = parser.parse_args()
    world = json.loads(options.world)
    if options.part is None:
        _run_all(options.rounds, options.seconds)
    elif options.part == "raw":
        print(json.dumps(uvloop.run(_raw(world, options.seconds))))
    elif options.part == "load":
        print(json.dumps(uvloop.run(_load(world, options.seconds))))
    else:
        _serve(options.part, world)


def _run_all(rounds: int, seconds: float) -> None:
    on_tmpfs = os.access("/dev/shm", os.W_OK)
    with tempfile.TemporaryDirectory(prefix="allpass-submit-", dir="/dev/shm" if on_tmpfs else None) as folder:
        server = EmbeddedPostgres(Path(folder) / "postgres", settings=())
        server.start()
        try:
            upgrade(server.url())
            world = asyncio.run(_make_world(server.url(), folder))
            detail = _measure_rounds(world, rounds, seconds)
        finally:
            server.stop()
    detail |= {"storage": "/dev/shm (tmpfs)" if on_tmpfs else "temporary folder: /dev/shm cannot be written"}
    value = detail["ratio_median"]
    print(json.dumps({"name": "submit", "value": value, "goal": GOAL, "unit": "x raw insert", "detail": detail}))


def _measure_rounds(world: dict[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    kinds = ("serve", "serve-empty", "serve-bare")
    ports = dict(zip(kinds, itertools.count(world["port"]), strict=False))
    servers = {kind: _start_server(kind, world | {"port": ports[kind]}) for kind in kinds}
    rates: dict[str, list[float]] = {name: [] for name in ("raw", *kinds)}
    try:
        for number in range(rounds):
            names = list(rates) if number % 2 == 0 else list(reversed(rates))
            for name in names:
                part = "raw" if name == "raw" else "load"
                answer = _part(part, world | {"port": ports.get(name, 0)}, seconds)
                rates[name].append(answer["rate"])
            line = ", ".join(f"{name} {values[-1]:.0f}/s" for name, values in rates.items())
            print(f"round {number + 1}: {line}, ratio {rates['serve'][-1] / rates['raw'][-1]:.3f}", flush=True)
    finally:
        told = {kind: _stop_server(process) for kind, process in servers.items()}
    return _detail(rates, told["serve"])


def _detail(rates: dict[str, list[float]], told: dict[str, Any]) -> dict[str, Any]:
    def ratio(name: str) -> list[float]:
        return [ours / raw for ours, raw in zip(rates[name], rates["raw"], strict=True)]

    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "ratio_median": round(statistics.median(ratio("serve")), 4),
        "ratios": [round(one, 4) for one in ratio("serve")],
        "raw_per_s": round(medians["raw"]),
        "ours_per_s": round(medians["serve"]),
        "callers": CALLERS,
        "connections": CONNECTIONS,
        "cores": os.cpu_count(),
        "mean_batch": told["mean_batch"],
        "between_value_and_goal": {
            "fastapi_empty_route_ratio": round(statistics.median(ratio("serve-empty")), 4),
            "bare_asgi_ratio": round(statistics.median(ratio("serve-bare")), 4),
            "us_per_request_ours": round(1e6 / medians["serve"]),
            "us_per_request_fastapi_empty_route": round(1e6 / medians["serve-empty"]),
            "us_per_request_bare_asgi": round(1e6 / medians["serve-bare"]),
            "us_per_raw_insert": round(1e6 / medians["raw"]),
            "us_server_cpu_per_request": told["cpu_us_per_request"],
            **_pure_costs(),
        },
    }


def _pure_costs() -> dict[str, float]:
    """Microseconds of the parts of a request that touch neither socket nor database, one call at a time."""
    body = json.dumps(BODY | {"app_id": "app_00000000000000000000"}).encode()
    request = JobRequest.model_validate_json(body)
    job = _new_job(request)
    return {
        "us_validate": _time_us(lambda: JobRequest.model_validate_json(body)),
        "us_compose_row": _time_us(lambda: _new_job(request)),
        "us_write_answer": _time_us(lambda: submitted_job(job, "app", 1)),
    }


def _time_us(call: Any, repeats: int = 2000) -> float:
    best = min(_timed(call, repeats) for _ in range(5))
    return round(best / repeats * 1e6, 1)


def _timed(call: Any, repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - started


def _new_job(request: JobRequest, project_id: str = "proj", app_id: str = "app", version_id: str = "ver") -> NewJob:
    content = AppContent(None, (), "e" * 64, "b" * 64, 10, "train.py")
    app = AppVersion(app_id, "app", "ada", 1, version_id, content, 0)
    job_id = "job_" + secrets.token_hex(10).upper()
    return compose_job(
        job_id,
        project_id,
        app,
        request,
        request.parameters,
        now_ms=time.time_ns() // 1_000_000,
        defaults=Defaults(86_400_000, 300),
    )


async def _make_world(database_url: str, folder: str) -> dict[str, Any]:
    """A project with a key and an app: all that a submission needs."""
    clock = SystemClock()
    ids = RandomIds(clock)
    database = Database(make_engine(database_url, pool_size=1, timeout_s=30))
    async with database.transaction() as connection:
        project_id = await ensure_project(connection, "benchmark", clock=clock, ids=ids)
        key = await create_key(connection, project_id, "benchmark", ("submit",), clock=clock, ids=ids)
        app_id, _ = await ensure_app(connection, ids.new("app"), project_id, "app", "ada", now_ms=clock.now_ms())
        version_id = ids.new("ver")
        content = AppContent(None, (), "e" * 64, "b" * 64, 10, "train.py")
        await add_version(connection, app_id, version_id, 1, content, "ada", now_ms=clock.now_ms())
    await database.close()
    port = 20_000 + os.getpid() % 20_000
    return {
        "database_url": database_url,
        "folder": folder,
        "project_id": project_id,
        "key": key,
        "app_id": app_id,
        "version_id": version_id,
        "port": port,
    }


async def _raw(world: dict[str, Any], seconds: float) -> dict[str, float]:
    """One INSERT per job, each its own transaction; the strongest form: prepared, connections held."""
    request = JobRequest.model_validate(BODY | {"app_id": world["app_id"]})
    job = _new_job(request, world["project_id"], world["app_id"], world["version_id"])
    columns = ", ".join(f'"{name}"' for name in NewJob._fields)
    marks = ", ".join(f"${number}" for number in range(1, len(NewJob._fields) + 1))
    statement = f"INSERT INTO jobs ({columns}, state) VALUES ({marks}, 'queued') RETURNING id"
    connections = [await asyncpg.connect(world["database_url"]) for _ in range(CONNECTIONS)]
    idle: asyncio.Queue[Any] = asyncio.Queue()
    for connection in connections:
        idle.put_nowait(await connection.prepare(statement))
    done = 0
    ids = RandomIds(SystemClock())

    async def caller(until: float) -> None:
        nonlocal done
        while time.perf_counter() < until:
            prepared = await idle.get()
            await prepared.fetchval(ids.new("job"), *job[1:])
            idle.put_nowait(prepared)
            done += 1

    for duration_s in (WARM_UP_S, seconds):
        done = 0
        started = time.perf_counter()
        await asyncio.gather(*(caller(started + duration_s) for _ in range(CALLERS)))
        elapsed_s = time.perf_counter() - started
    for connection in connections:
        await connection.close()
    return {"rate": done / elapsed_s}


async def _load(world: dict[str, Any], seconds: float) -> dict[str, float]:
    body = json.dumps(BODY | {"app_id": world["app_id"]}).encode()
    head = (
        "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {world['key']}\r\nContent-Length: {len(body)}\r\nIdempotency-Key: "
    ).encode()
    prefix = secrets.token_hex(8)
    numbers = itertools.count()

    def request() -> bytes:
        return b"%b%b-%d\r\n\r\n%b" % (head, prefix.encode(), next(numbers), body)

    await measure(world["port"], request, callers=CALLERS, seconds=WARM_UP_S)
    return {"rate": await measure(world["port"], request, callers=CALLERS, seconds=seconds)}


def _serve(part: str, world: dict[str, Any]) -> None:
    """Serve until SIGTERM, then tell what was seen."""
    told: dict[str, Any] = {}
    app: Any = {"serve": _our_app, "serve-empty": _empty_app, "serve-bare": _bare_app}[part](world)
    uvicorn.run(app, host="127.0.0.1", port=world["port"], log_level="warning", access_log=False, loop="uvloop")
    if part == "serve":
        commits = app.state.submitter.commits
        told["mean_batch"] = round(commits.items / max(1, commits.writes), 1)
        told["cpu_us_per_request"] = round(1e6 * time.process_time() / max(1, commits.items))
    print(json.dumps(told), flush=True)


def _our_app(world: dict[str, Any]) -> Any:
    clock = SystemClock()
    settings = Settings(database_url=world["database_url"], objects_signing_key="benchmark" * 5)
    parts = Parts(
        database=Database(make_engine(world["database_url"], pool_size=CONNECTIONS, timeout_s=30)),
        listener=Listener(world["database_url"], timeout_s=30),
        objects=DirectoryStore(
            Path(world["folder"]) / "objects", "http://127.0.0.1:1", "benchmark" * 5, max_object_bytes=1, clock=clock
        ),
        settings=settings,
        clock=clock,
        ids=RandomIds(clock),
    )
    return create_app(parts)


def _empty_app(_world: dict[str, Any]) -> Any:
    """What FastAPI costs without a database: the same models in and out, and nothing in between."""
    from fastapi import FastAPI

    app = FastAPI()
    request = JobRequest.model_validate(BODY | {"app_id": "app_00000000000000000000"})
    answer = Job.model_validate_json(submitted_job(_new_job(request), "app", 1))

    @app.post("/v1/jobs", status_code=201)
    async def submit(body: JobRequest) -> Job:
        return answer

    return app


def _bare_app(_world: dict[str, Any]) -> Any:
    """What uvicorn and the load generator cost: an ASGI callable that answers a constant."""
    request = JobRequest.model_validate(BODY | {"app_id": "app_00000000000000000000"})
    content = submitted_job(_new_job(request), "app", 1)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await receive()
            await send({"type": "http.response.start", "status": 201, "headers": headers})
            await send({"type": "http.response.body", "body": content})

    return app


def _start_server(part: str, world: dict[str, Any]) -> subprocess.Popen[str]:
    process = subprocess.Popen(_command(part, world, 0), stdout=subprocess.PIPE, text=True)
    asyncio.run(_until_open(world["port"]))
    return process


async def _until_open(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


def _stop_server(process: subprocess.Popen[str]) -> dict[str, Any]:
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    told: dict[str, Any] = json.loads(output.strip().splitlines()[-1]) if output.strip() else {}
    return told


def _part(part: str, world: dict[str, Any], seconds: float) -> dict[str, float]:
    done = subprocess.run(_command(part, world, seconds), stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 90)
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _command(part: str, world: dict[str, Any], seconds: float) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.submit", "--part", part]
    return [*command, "--world", json.dumps(world), "--seconds", str(seconds)]


if __name__ == "__main__":
    main()
