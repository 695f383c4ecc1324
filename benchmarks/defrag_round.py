"""What a round of a defragmentation costs on a large fleet of hosts of a pool, and how long it keeps everybody else.

    python -m benchmarks.defrag_round [--hosts 2000] [--jobs 10000] [--rounds 5]

Real PostgreSQL. Hosts of eight GPUs, of which parts of one, two or four are given out to jobs of 40 projects that
train. `see_s`: to read the fleet, which after the first time costs what has changed. `plan_s`: to plan. `round_s`: to
go through what is left of a plan, as every round does. `decide_s`: what closing vacated hosts adds to a decision. Each
has the processor's time of this process beside it (`see_cpu_s`). `still_ms`: the longest that the event loop, on which
requests are answered and agents are heard, stood still meanwhile. `value` is the median of reading and planning, in
seconds. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any, TypeVar

import asyncpg

from app.core.defragmentation import Deciding, Goal, NextSteps, SeenFleet, next_steps, pack, plan_for, without_vacated
from app.core.model.job import Resources
from app.core.model.snapshot import Snapshot
from app.db.decisions.snapshots import Memory
from app.db.defragmentation.defragmentations import vacated_nodes
from app.db.engine import Database, make_engine
from app.services.defragmentation.see_fleet import see_fleet
from app.settings import Settings
from benchmarks.world import fresh_world, storage

GOAL_S, GOAL_STILL_MS = 10.0, 250.0
_GPUS, _CPUS, _PROJECTS, _MOST_MOVES = 8, 64, 40, 20
_HOUR_MS, _GIB = 3_600_000, 1024**3
_TICK_S = 0.005
_PARTS = ("see", "plan", "round", "decide")
_NAMES = (*(f"{part}{unit}" for part in _PARTS for unit in ("_s", "_cpu_s")), "still_ms")
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("hosts", 2_000), ("jobs", 10_000), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    with fresh_world() as world:
        detail = asyncio.run(_measure(world, options.hosts, options.jobs, options.rounds))
    value = statistics.median(see + plan for see, plan in zip(detail["see_s"], detail["plan_s"], strict=True))
    print(json.dumps({"name": "defrag_round", "value": value, "goal": GOAL_S, "unit": "s", "detail": detail}))


class _Clock:
    """How long each part takes, and for how long at most nothing else could run on the loop."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {name: [] for name in _NAMES}

    async def times(self, name: str, work: Awaitable[T]) -> T:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        done = await work
        self.found[name].append(round(time.perf_counter() - began_s, 4))
        self.found[name.replace("_s", "_cpu_s")].append(round(time.process_time() - began_cpu_s, 4))
        return done

    async def watch(self) -> None:
        """Until it is cancelled."""
        self.found["still_ms"].append(0.0)
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            late_ms = round(1e3 * (time.perf_counter() - began_s - _TICK_S), 1)
            self.found["still_ms"][-1] = max(self.found["still_ms"][-1], late_ms)


async def _measure(world: dict[str, Any], hosts: int, jobs: int, rounds: int) -> dict[str, Any]:
    now_ms = time.time_ns() // 10**6
    placed = await _lay_out(world, hosts, jobs, now_ms)
    url, clock = world["database_url"], _Clock()
    settings = Settings(database_url=url, objects_signing_key="k" * 40, secret_key="s" * 40)
    database = Database(make_engine(url, pool_size=4, timeout_s=60))
    memory = Memory()
    for _ in range(rounds):
        watching = asyncio.create_task(clock.watch())
        await asyncio.sleep(2 * _TICK_S)
        seen = await clock.times("see_s", see_fleet(database, settings, now_ms=now_ms, memory=memory))
        plan = await clock.times("plan_s", asyncio.to_thread(plan_for, seen, Goal.POOLS, None, _MOST_MOVES))
        deciding, releases = Deciding(Goal.POOLS, now_ms, now_ms, 2), list(plan.releases)
        await clock.times("round_s", asyncio.to_thread(_round, seen, releases, deciding))
        await clock.times("decide_s", _close(database, seen.snapshot, [one.node_id for one in releases]))
        await asyncio.sleep(2 * _TICK_S)
        watching.cancel()
        print({name: values[-1] for name, values in clock.found.items()}, flush=True)
    await database.close()
    shape = {"hosts": hosts, "jobs": placed, "releases": len(releases), "moves": plan.moves}
    return {**shape, **clock.found, "goal_still_ms": GOAL_STILL_MS, "storage": storage()}


def _round(seen: SeenFleet, releases: list[Any], deciding: Deciding) -> NextSteps:
    return next_steps(releases, pack(seen, Goal.POOLS), deciding)


async def _close(database: Database, snapshot: Snapshot, closed: list[str]) -> None:
    async with database.statement() as connection:
        await vacated_nodes(connection, since_ms=0)
    without_vacated(snapshot, frozenset(closed))


async def _lay_out(world: dict[str, Any], hosts: int, jobs: int, now_ms: int) -> int:
    """Hosts, and jobs on parts of them, as many as find room; how many there are."""
    chance, free = random.Random(7), [_GPUS] * hosts
    parts: list[tuple[int, int, int]] = []  # host, first GPU, GPUs
    for _ in range(jobs):
        gpus = chance.choices((1, 2, 4), (70, 25, 5))[0]
        host = next((one for one in chance.choices(range(hosts), k=20) if free[one] >= gpus), None)
        if host is not None:
            parts.append((host, _GPUS - free[host], gpus))
            free[host] -= gpus
    connection = await asyncpg.connect(world["database_url"])
    try:
        await _add_hosts(connection, hosts, now_ms)
        await _add_jobs(connection, world, parts, now_ms)
        await connection.execute("VACUUM (ANALYZE)")
    finally:
        await connection.close()
    return len(parts)


async def _add_hosts(connection: asyncpg.Connection, hosts: int, now_ms: int) -> None:
    await connection.execute(
        "INSERT INTO pools (name, launcher, price_micros, created_ms) VALUES ('lab', 'joined', 0, $1)", now_ms
    )
    kinds = [{"index": index, "type": "A100", "memory_bytes": 80 * _GIB} for index in range(_GPUS)]
    facts = json.dumps({"cpus": _CPUS, "memory_bytes": 1024 * _GIB, "gpus": kinds})
    await connection.execute(
        "INSERT INTO hosts (id, pool, name, nonce_sha256, boot_id, facts, joined_ms, heard_ms) SELECT "
        "'host_' || lpad(n::text, 7, '0'), 'lab', 'box-' || n, int4send(n), '', $2::jsonb, $3, $3 "
        "FROM generate_series(0, $1::int - 1) n",
        hosts,
        facts,
        now_ms + _HOUR_MS,
    )


async def _add_jobs(
    connection: asyncpg.Connection, world: dict[str, Any], parts: list[tuple[int, int, int]], now_ms: int
) -> None:
    """Each trains on a node that is its part of a host, and has done so for an hour."""
    began_ms, row = now_ms - _HOUR_MS, world["row"]
    own = ("id", "submitted_ms", "deadline_ms", "resources", "project_id", "saves_ms")
    names = [name for name in row if name not in own]
    projects = [f"proj_{number:04}" for number in range(_PROJECTS)]
    await connection.execute(
        "INSERT INTO projects (id, name, created_ms) SELECT one, one, $2 FROM unnest($1::text[]) one", projects, now_ms
    )
    marks = ", ".join(f"${at}" for at in range(4, 4 + len(names)))
    given = [json.dumps(asdict(Resources(gpus, gpus))) for _, _, gpus in parts]
    owners = [projects[number % _PROJECTS] for number in range(len(parts))]
    await connection.execute(
        "INSERT INTO jobs (id, resources, project_id, state, epoch, step, checkpoint_step, saves_ms, submitted_ms, "
        f"deadline_ms, {', '.join(names)}) SELECT 'job_' || lpad(n::text, 7, '0'), one::jsonb, project, 'running', 1, "
        f"50, 50, 1, $3::bigint, $3::bigint + 86400000, {marks} "
        "FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS given(one, project, n)",
        given,
        owners,
        began_ms,
        *(row[name] for name in names),
    )
    places = [f"host_{host:07}/A100" for host, _, _ in parts]
    firsts = [first for _, first, _ in parts]
    sizes = [gpus for _, _, gpus in parts]
    await connection.execute(
        "INSERT INTO nodes (id, project_id, provider, provider_ref, tier, offer, gpu_type, gpu_count, "
        "gpu_memory_bytes, cpus, memory_bytes, region, host, image, price_micros_per_hour, billing_unit_ms, "
        "billing_starts, "
        "billing_minimum_ms, state, requested_ms, expected_ready_ms, startup_deadline_ms, ready_ms, billed_from_ms) "
        "SELECT 'node_' || lpad(n::text, 7, '0'), project, 'joined', 'ref-' || n, 'own', '{}', 'A100', gpus, "
        "$5::bigint, 8 * gpus, gpus * $5::bigint, 'lab', place, '', 0, 1000, 'ready', 0, 'ready', $4::bigint, $4, $4, "
        "$4, $4 "
        "FROM unnest($1::text[], $2::text[], $3::int[]) WITH ORDINALITY AS given(project, place, gpus, n)",
        owners,
        places,
        sizes,
        began_ms,
        64 * _GIB,
    )
    await connection.execute(
        "INSERT INTO runs (id, project_id, tier, state, created_ms, running_ms) "
        "SELECT 'run_' || lpad(n::text, 7, '0'), project, 'own', 'running', $2, $2 "
        "FROM unnest($1::text[]) WITH ORDINALITY AS given(project, n)",
        owners,
        began_ms,
    )
    number = "lpad(n::text, 7, '0')"
    await connection.execute(
        f"INSERT INTO run_jobs (run_id, job_id, epoch) SELECT 'run_' || {number}, 'job_' || {number}, 1 "
        "FROM generate_series(1, $1::int) n",
        len(parts),
    )
    held = f"'run_' || {number}, 'node_' || {number}"
    await connection.execute(
        f"INSERT INTO allocations (id, run_id, node_id, gpu_indices, from_ms) SELECT 'aloc_' || {number}, {held}, "
        "ARRAY(SELECT generate_series(0, gpus - 1)), $2 FROM unnest($1::int[]) WITH ORDINALITY AS given(gpus, n)",
        sizes,
        began_ms,
    )
    await connection.execute(
        "INSERT INTO host_machines (id, host_id, node_id, gpu_indices, price_micros_per_hour, created_ms, started_ms) "
        f"SELECT 'mach_' || {number}, split_part(place, '/', 1), 'node_' || {number}, "
        "ARRAY(SELECT generate_series(first, first + gpus - 1)), 0, $4, $4 "
        "FROM unnest($1::text[], $2::int[], $3::int[]) WITH ORDINALITY AS given(place, first, gpus, n)",
        places,
        firsts,
        sizes,
        began_ms,
    )


if __name__ == "__main__":
    main()
