"""G3: claiming and completing provider operations, against one row at a time.

    python -m benchmarks.claim [--rounds 5] [--operations 6000]

Ours: what the operation workers call. `claim` takes as many due operations as workers are free, with a lease and a
fencing token; each is completed by `ControlContext.settle`, which counts only while the token is still the row's own,
and answers each worker for itself; 32 workers. Raw: 32 callers on 8 connections, each taking the oldest due row with
SKIP LOCKED, under the same lease and token, and marking it done, in two autocommit statements through asyncpg. The
calls to providers, and the rows of nodes that change with them, are in neither. Both are measured in turn on the same
fresh operations in every round; the value is the median of the rounds' ratios. PostgreSQL runs with its default
durability settings on /dev/shm. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from typing import Any

import asyncpg
import uvloop

from app.collector import settle_collector
from app.control.context import ControlContext
from app.control.leader import Leader
from app.db.engine import Database, make_engine
from app.db.nodes.operations import LeasedOperation, OperationState, Settlement, claim
from app.settings import Settings
from app.system import RandomIds, SystemClock
from benchmarks.world import fresh_world, medians, ratios, storage

GOAL = 6.0
CALLERS = 32
LEASE_S = 15.0
_CLAIM_ONE = """
UPDATE provider_operations
SET lease_token = $1, lease_until = clock_timestamp() + interval '15 s', attempts = attempts + 1
WHERE id = (
    SELECT id FROM provider_operations
    WHERE state = 'pending' AND not_before_ms <= $2 AND (lease_until IS NULL OR lease_until < clock_timestamp())
    ORDER BY not_before_ms, id LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING id, node_id, provider, kind, attempts, error_code
"""
_COMPLETE_ONE = """
UPDATE provider_operations
SET state = 'done', ended_ms = $3, error_code = NULL, error_message = NULL, lease_token = NULL, lease_until = NULL
WHERE id = $1 AND state = 'pending' AND lease_token = $2
RETURNING id
"""
_NODES = """
INSERT INTO nodes (
    id, project_id, provider, tier, offer, gpu_type, gpu_count, gpu_memory_bytes, cpus, memory_bytes, region, host,
    image, price_micros_per_hour, billing_unit_ms, billing_starts, billing_minimum_ms, state, requested_ms,
    expected_ready_ms, startup_deadline_ms
)
SELECT
    'node_' || n, $1, 'cloud', 'serverless', '{}', 'A100', 1, 1, 1, 1, 'r', 'h',
    'i', 1, 1, 'request', 1, 'ready', 0,
    0, 0
FROM generate_series(1, $2::integer) AS n
ON CONFLICT DO NOTHING
"""
_OPERATIONS = """
INSERT INTO provider_operations (id, node_id, provider, kind, state, not_before_ms, created_ms)
SELECT 'op_' || lpad(n::text, 20, '0'), 'node_' || n, 'cloud', 'terminate', 'pending', n, n
FROM generate_series(1, $1::integer) AS n
"""


def main() -> None:
    """Run all rounds, print a line for each, and the result last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--operations", type=int, default=6000)
    options = parser.parse_args()
    with fresh_world() as world:
        detail = _measure_rounds(world, options.rounds, options.operations)
    value = detail["ratio_median"]
    print(json.dumps({"name": "claim", "value": value, "goal": GOAL, "unit": "x one row at a time", "detail": detail}))


def _measure_rounds(world: dict[str, Any], rounds: int, operations: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"raw": [], "ours": []}
    for number in range(rounds):
        for name in list(rates) if number % 2 == 0 else list(reversed(rates)):
            asyncio.run(_refill(world, operations))
            rates[name].append(_measure_apart(name, world))
        line = ", ".join(f"{name} {values[-1]:.0f}/s" for name, values in rates.items())
        print(f"round {number + 1}: {line}, ratio {rates['ours'][-1] / rates['raw'][-1]:.2f}", flush=True)
    return {
        "ratio_median": round(statistics.median(ratios(rates, "ours", "raw")), 3),
        "ratios": [round(one, 3) for one in ratios(rates, "ours", "raw")],
        **{f"{name}_per_s": round(value) for name, value in medians(rates).items()},
        "callers": CALLERS,
        "connections": world["connections"],
        "operations": operations,
        "cores": os.cpu_count(),
        "storage": storage(),
    }


async def _refill(world: dict[str, Any], operations: int) -> None:
    """So many due operations, in a table without dead rows."""
    connection = await asyncpg.connect(world["database_url"])
    await connection.execute("TRUNCATE provider_operations")
    await connection.execute(_NODES, world["project_id"], operations)
    await connection.execute(_OPERATIONS, operations)
    await connection.execute("VACUUM (ANALYZE) provider_operations")
    await connection.close()


def _measure_apart(name: str, world: dict[str, Any]) -> float:
    given = json.dumps({"part": name, "world": world})
    command = [sys.executable, "-m", "benchmarks.claim", given]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    rate: float = json.loads(done.stdout.strip().splitlines()[-1])["rate"]
    return rate


async def measure_ours(world: dict[str, Any]) -> float:
    """Operations per second, until none is left. What runs before the clock starts: one operation, to warm up."""
    url, clock = world["database_url"], SystemClock()
    database = Database(make_engine(url, pool_size=world["connections"], timeout_s=30))
    settings = Settings(database_url=url, objects_signing_key="benchmark" * 5, secret_key="benchmark" * 5)
    ids = RandomIds(clock)
    context = ControlContext(database, {}, settings, clock, ids, Leader(database, holder="benchmark", lease_s=10))

    async def carry_out(operation: LeasedOperation) -> None:
        assert await context.settle(Settlement(operation, OperationState.DONE, clock.now_ms()))

    async def work(limit: int) -> int:
        operations = await claim(database, limit=limit, lease_s=LEASE_S, now_ms=clock.now_ms())
        await asyncio.gather(*(carry_out(operation) for operation in operations))
        return len(operations)

    for _ in range(8):
        await work(1)
    settle_collector()
    started = time.perf_counter()
    done = 0
    while (claimed := await work(CALLERS)) > 0:
        done += claimed
    elapsed_s = time.perf_counter() - started
    await database.close()
    return done / elapsed_s


async def measure_raw(world: dict[str, Any]) -> float:
    """Operations per second, until none is left, after one for each connection."""
    idle: asyncio.Queue[Any] = asyncio.Queue()
    opened = [await asyncpg.connect(world["database_url"]) for _ in range(world["connections"])]
    for connection in opened:
        idle.put_nowait((await connection.prepare(_CLAIM_ONE), await connection.prepare(_COMPLETE_ONE)))

    async def work() -> bool:
        token = secrets.token_hex(16)
        claim_one, complete_one = await idle.get()
        row = await claim_one.fetchrow(token, time.time_ns() // 1_000_000)
        idle.put_nowait((claim_one, complete_one))
        if row is None:
            return False
        claim_one, complete_one = await idle.get()
        assert await complete_one.fetchval(row["id"], token, time.time_ns() // 1_000_000)
        idle.put_nowait((claim_one, complete_one))
        return True

    async def caller() -> int:
        done = 0
        while await work():
            done += 1
        return done

    await asyncio.gather(*(work() for _ in opened))
    settle_collector()
    started = time.perf_counter()
    done = sum(await asyncio.gather(*(caller() for _ in range(CALLERS))))
    elapsed_s = time.perf_counter() - started
    for connection in opened:
        await connection.close()
    return done / elapsed_s


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        given = json.loads(sys.argv[1])
        measured = measure_raw(given["world"]) if given["part"] == "raw" else measure_ours(given["world"])
        print(json.dumps({"rate": uvloop.run(measured)}))
    else:
        main()
