"""G2: submitting jobs in-process, against a raw insert of the same row.

    python -m benchmarks.enqueue [--rounds 5] [--seconds 3]

Ours: `JobSubmitter.submit_job`, which is what the submit route calls, by 64 callers that each wait until their job is
durable: request composed to a row, job and event rows, wake-up of the control loop. `keyed` is the same with an
idempotency key for every job. Raw: one autocommit INSERT ... RETURNING of the same row per job through asyncpg, 64
callers on 8 connections. Each is a process of its own, measured in turn in every round; the value is the median of
the rounds' ratios. PostgreSQL runs with its default durability settings on /dev/shm. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from typing import Any

import uvloop

from allpass.wire.jobs import JobRequest
from app.collector import settle_collector
from app.db.access.idempotency import RequestKey
from app.db.engine import Database, make_engine
from app.services.jobs.submit_jobs import JobSubmitter
from app.settings import Settings
from app.system import RandomIds, SystemClock
from benchmarks.world import fresh_world, medians, ratios, storage

GOAL = 6.0
CALLERS = 64
ROUTE = "POST /v1/jobs"


def main() -> None:
    """Run all rounds, print a line for each, and the result last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with fresh_world() as world:
        detail = _measure_rounds(world, options.rounds, options.seconds)
    value = detail["ratio_median"]
    print(json.dumps({"name": "enqueue", "value": value, "goal": GOAL, "unit": "x raw insert", "detail": detail}))


def _measure_rounds(world: dict[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"raw": [], "ours": [], "keyed": []}
    told: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        for name in list(rates) if number % 2 == 0 else list(reversed(rates)):
            told[name] = _measure_apart(name, world, seconds)
            rates[name].append(told[name]["rate"])
        line = ", ".join(f"{name} {values[-1]:.0f}/s" for name, values in rates.items())
        print(f"round {number + 1}: {line}, ratio {rates['ours'][-1] / rates['raw'][-1]:.2f}", flush=True)
    middle = medians(rates)
    return {
        "ratio_median": round(statistics.median(ratios(rates, "ours", "raw")), 3),
        "ratios": [round(one, 3) for one in ratios(rates, "ours", "raw")],
        "keyed_ratio_median": round(statistics.median(ratios(rates, "keyed", "raw")), 3),
        **{f"{name}_per_s": round(value) for name, value in middle.items()},
        "mean_batch": told["ours"]["mean_batch"],
        "us_cpu_per_job": told["ours"]["us_cpu_per_job"],
        "callers": CALLERS,
        "connections": world["connections"],
        "cores": os.cpu_count(),
        "storage": storage(),
    }


def _measure_apart(name: str, world: dict[str, Any], seconds: float) -> dict[str, Any]:
    module = "benchmarks.enqueue"
    given: dict[str, Any] = {"part": name, "world": world, "seconds": seconds}
    if name == "raw":
        module = "benchmarks.raw_insert"
        given = {"database_url": world["database_url"], "row": world["row"], "seconds": seconds}
        given |= {"callers": CALLERS, "connections": world["connections"]}
    command = [sys.executable, "-m", module, json.dumps(given)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 90)
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


async def measure(world: dict[str, Any], seconds: float, *, keyed: bool) -> dict[str, Any]:
    """Jobs per second that the callers get written, after a short run that warms up."""
    clock = SystemClock()
    database = Database(make_engine(world["database_url"], pool_size=world["connections"], timeout_s=30))
    settings = Settings(
        database_url=world["database_url"], objects_signing_key="benchmark" * 5, secret_key="benchmark" * 5
    )
    submitter = JobSubmitter(database, settings, clock, RandomIds(clock))
    body = json.dumps(world["body"]).encode()
    request = JobRequest.model_validate_json(body)
    digest = hashlib.sha256(body).digest()
    prefix = secrets.token_hex(8)
    numbers = itertools.count()

    async def caller(until: float) -> int:
        done = 0
        while time.perf_counter() < until:
            key = RequestKey(f"{prefix}-{next(numbers)}", ROUTE, digest) if keyed else None
            await submitter.submit_job(world["project_id"], request, key)
            done += 1
        return done

    async def run(for_s: float) -> float:
        started = time.perf_counter()
        done = await asyncio.gather(*(caller(started + for_s) for _ in range(CALLERS)))
        return sum(done) / (time.perf_counter() - started)

    await run(min(1.0, seconds))
    settle_collector()
    writes, items, cpu_s = submitter.commits.writes, submitter.commits.items, time.process_time()
    rate = await run(seconds)
    written = submitter.commits.items - items
    cpu_us = 1e6 * (time.process_time() - cpu_s) / written
    mean_batch = written / (submitter.commits.writes - writes)
    await database.close()
    return {"rate": rate, "mean_batch": round(mean_batch, 1), "us_cpu_per_job": round(cpu_us, 1)}


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        given = json.loads(sys.argv[1])
        print(json.dumps(uvloop.run(measure(given["world"], given["seconds"], keyed=given["part"] == "keyed"))))
    else:
        main()
