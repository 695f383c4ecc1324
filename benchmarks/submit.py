"""G1: submitting a job over HTTP, against a raw insert of the same row.

    python -m benchmarks.submit [--rounds 5] [--seconds 4]

Ours: POST /v1/jobs with a key, validation, an idempotency key, job and event rows, durable before the 201; one uvicorn
worker, 32 callers, 8 connections. Raw: one autocommit INSERT ... RETURNING of the same row per job through asyncpg, 32
callers on 8 connections. PostgreSQL runs with its default durability settings on /dev/shm. Both are measured in turn
in every round; the value is the median of the rounds' ratios. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

from allpass.wire.jobs import JobRequest
from app.api.views import submitted_job
from benchmarks.submit_server import new_job
from benchmarks.world import BODY, CONNECTIONS, fresh_world, medians, ratios, storage

GOAL = 0.50
CALLERS = 32
SERVERS = ("ours", "empty", "bare")


def main() -> None:
    """Run all rounds, print a line for each, and the result last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    _run_all(options.rounds, options.seconds)


def _run_all(rounds: int, seconds: float) -> None:
    with fresh_world() as world:
        detail = _measure_rounds(world, rounds, seconds) | {"storage": storage()}
    value = detail["ratio_median"]
    print(json.dumps({"name": "submit", "value": value, "goal": GOAL, "unit": "x raw insert", "detail": detail}))


def _measure_rounds(world: dict[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    servers = {kind: _start_server(kind, world) for kind in SERVERS}
    rates: dict[str, list[float]] = {name: [] for name in ("raw", *SERVERS)}
    try:
        for number in range(rounds):
            for name in list(rates) if number % 2 == 0 else list(reversed(rates)):
                rate = _raw(world, seconds) if name == "raw" else _load(world, servers[name][1], seconds)
                rates[name].append(rate)
            line = ", ".join(f"{name} {values[-1]:.0f}/s" for name, values in rates.items())
            print(f"round {number + 1}: {line}, ratio {rates['ours'][-1] / rates['raw'][-1]:.3f}", flush=True)
    finally:
        told = {kind: _stop_server(process) for kind, (process, _) in servers.items()}
    return _detail(rates, told["ours"])


def _detail(rates: dict[str, list[float]], told: dict[str, Any]) -> dict[str, Any]:
    def ratio(name: str) -> list[float]:
        return ratios(rates, name, "raw")

    middle = medians(rates)
    return {
        "ratio_median": round(statistics.median(ratio("ours")), 4),
        "ratios": [round(one, 4) for one in ratio("ours")],
        "raw_per_s": round(middle["raw"]),
        "ours_per_s": round(middle["ours"]),
        "callers": CALLERS,
        "connections": CONNECTIONS,
        "cores": os.cpu_count(),
        "mean_batch": told["mean_batch"],
        "between_value_and_goal": {
            "fastapi_empty_route_ratio": round(statistics.median(ratio("empty")), 4),
            "bare_asgi_ratio": round(statistics.median(ratio("bare")), 4),
            "us_per_request_ours": round(1e6 / middle["ours"]),
            "us_per_request_fastapi_empty_route": round(1e6 / middle["empty"]),
            "us_per_request_bare_asgi": round(1e6 / middle["bare"]),
            "us_per_raw_insert": round(1e6 / middle["raw"]),
            "us_server_cpu_per_request": told["cpu_us_per_request"],
            **_pure_costs(),
        },
    }


def _pure_costs() -> dict[str, float]:
    """Microseconds of the parts of a request that touch neither socket nor database, one call at a time."""
    body = json.dumps(BODY | {"app_id": "app_00000000000000000000"}).encode()
    request = JobRequest.model_validate_json(body)
    job = new_job(request, "proj", "app", "ver")
    return {
        "us_validate": _time_us(lambda: JobRequest.model_validate_json(body)),
        "us_compose_row": _time_us(lambda: new_job(request, "proj", "app", "ver")),
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


def _start_server(kind: str, world: dict[str, Any]) -> tuple[subprocess.Popen[str], int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.submit_server", kind, json.dumps(world | {"port": port})]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, port
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server {kind!r} did not start (exit code {process.poll()})")
        time.sleep(0.1)


def _stop_server(process: subprocess.Popen[str]) -> dict[str, Any]:
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    told: dict[str, Any] = json.loads(output.strip().splitlines()[-1]) if output.strip() else {}
    return told


def _raw(world: dict[str, Any], seconds: float) -> float:
    given = {"database_url": world["database_url"], "row": world["row"]}
    given |= {"callers": CALLERS, "connections": CONNECTIONS, "seconds": seconds}
    return _rate("benchmarks.raw_insert", given, seconds)


def _load(world: dict[str, Any], port: int, seconds: float) -> float:
    body = json.dumps(world["body"])
    head = (
        "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {world['key']}\r\nContent-Length: {len(body)}\r\nIdempotency-Key: "
    )
    given = {"port": port, "head": head, "body": body, "callers": CALLERS, "seconds": seconds}
    return _rate("benchmarks.http_load", given, seconds)


def _rate(module: str, given: dict[str, Any], seconds: float) -> float:
    command = [sys.executable, "-m", module, json.dumps(given)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 90)
    rate: float = json.loads(done.stdout.strip().splitlines()[-1])["rate"]
    return rate


if __name__ == "__main__":
    main()
