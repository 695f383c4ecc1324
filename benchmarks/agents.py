"""Thousands of running jobs: what their agents' long polls and the control loop cost.

    python -m benchmarks.agents [--agents 3000] [--seconds 60]

Every job runs on a node of its own, whose agent is simulated: it reports its run and a step that has moved on, waits
for orders as long as it is allowed to, and calls again. The service is one process (API and control loop, default
settings) on loopback, with PostgreSQL on /dev/shm. Told are its memory and processor time and PostgreSQL's, how late
polls are answered, how long the orders of a hundred nodes, changed one after the other, take to reach their agents, and
how long a decision takes. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import asyncpg
import uvloop

from app.core import codec
from benchmarks.agents_server import OFFER, PRICE_MICROS, PROVIDER
from benchmarks.world import fresh_world, storage

GOAL_MS = 1000.0  # an order should reach an agent within a second
WAIT_MS = 25_000  # what agents ask for, and the most that the service grants by default
ORDERS = 100
_CONNECTING_AT_ONCE = 100
_WARM_UP_S = 1.2 * WAIT_MS / 1000
_PATIENCE_S = 120.0
_LENGTH = b"content-length: "
_LATER = b"HTTP/1.1 503"
_AGAIN_S = 2.0


@dataclass
class Seen:
    """What the agents noticed, from when `counting` is set."""

    counting: bool = False
    polls: int = 0
    put_off: int = 0  # polls that were answered 503
    late_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    orders: dict[int, asyncio.Future[float]] = field(default_factory=dict)  # by agent: when its orders came

    def check(self) -> None:
        """Raises SystemExit when any poll failed."""
        if self.errors:
            raise SystemExit(f"{len(self.errors)} polls failed, the first: {self.errors[0]}")


class _Agent(asyncio.Protocol):
    """One agent: reports, waits, reports again, on one connection."""

    def __init__(self, number: int, seen: Seen) -> None:
        self._number = number
        self._seen = seen
        self._version = 0
        self._step = 0
        self._held = b""
        self._asked_at = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._poll()

    def data_received(self, data: bytes) -> None:
        held = self._held = self._held + data
        end, start = held.find(b"\r\n\r\n"), held.find(_LENGTH)
        if end < 0 or len(held) < end + 4 + int(held[start + len(_LENGTH) : held.index(b"\r", start)]):
            return
        self._held = b""
        if held.startswith(_LATER):  # as a real agent does: ask again a little later
            self._seen.put_off += 1
            asyncio.get_running_loop().call_later(_AGAIN_S, self._poll)
            return
        if not held.startswith(b"HTTP/1.1 200"):
            self._seen.errors.append(held[:300].decode())
            return
        self._take(json.loads(held[end + 4 :])["version"], time.perf_counter())
        self._poll()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._seen.errors.append(repr(error))

    def _take(self, version: int, now: float) -> None:
        seen = self._seen
        news, self._version = version != self._version, version
        waiting = seen.orders.get(self._number)
        if news and waiting is not None and not waiting.done():
            waiting.set_result(now)
        if seen.counting:
            seen.polls += 1
            if not news:
                seen.late_s.append(now - self._asked_at - WAIT_MS / 1000)

    def _poll(self) -> None:
        self._asked_at = time.perf_counter()
        self._step += 1
        number = self._number
        run = {"run_id": f"run_{number}", "job_id": f"job_{number}", "epoch": 1, "phase": "running", "step": self._step}
        host = {"python": "3.11", "cpus": 16, "memory_bytes": 2**36}
        body = json.dumps(
            {"agent_version": "1", "seen": self._version, "wait_ms": WAIT_MS, "runs": [run], "host": host}
        )
        head = "POST /v1/agent/sync HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nAuthorization: Bearer "
        assert self.transport is not None
        self.transport.write(f"{head}{_token(number)}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


def main() -> None:
    """Set up, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=3_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < options.agents + 200:
        raise SystemExit(
            f"--agents: {options.agents} need as many open files in two processes; the limit here is {most}"
        )
    with fresh_world() as world:
        detail = uvloop.run(_measure(world, options.agents, options.seconds))
    value = detail["order_median_ms"]
    print(json.dumps({"name": "agents", "value": value, "goal": GOAL_MS, "unit": "ms", "detail": detail}))


async def _measure(world: dict[str, Any], agents: int, seconds: float) -> dict[str, Any]:
    connection = await asyncpg.connect(world["database_url"])
    await _fill(connection, world, agents)
    postgres = await connection.fetchval("SELECT pg_backend_pid()")
    server, port = _start(world)
    seen = Seen()
    try:
        await _until_up(server, port)
        idle_bytes = _memory_bytes(server.pid)
        transports = await _connect(port, agents, seen)
        await asyncio.sleep(_WARM_UP_S)
        seen.check()
        cpu_s = _cpu_s([server.pid]), _cpu_s(_siblings(postgres))
        started, seen.counting = time.perf_counter(), True
        orders_s = await _order(connection, agents, seen, seconds)
        seen.counting, elapsed_s = False, time.perf_counter() - started
        cores = [
            round((after - before) / elapsed_s, 2)
            for before, after in zip(cpu_s, (_cpu_s([server.pid]), _cpu_s(_siblings(postgres))), strict=True)
        ]
        used_bytes = _memory_bytes(server.pid)
        ticks = await connection.fetch("SELECT duration_ms FROM ticks ORDER BY id")
        for transport in transports:
            transport.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        await connection.close()
    seen.check()
    late, ticked = sorted(seen.late_s), [row[0] for row in ticks]
    return {
        "agents": agents,
        "orders": len(orders_s),
        "put_off": seen.put_off,
        "polls_per_s": round(seen.polls / elapsed_s, 1),
        "order_median_ms": round(1000 * statistics.median(orders_s), 1),
        "order_p99_ms": round(1000 * _p99(sorted(orders_s)), 1),
        "late_median_ms": round(1000 * statistics.median(late or [0.0]), 1),
        "late_p99_ms": round(1000 * _p99(late or [0.0]), 1),
        "server_cores": cores[0],
        "postgres_cores": cores[1],
        "server_idle_mib": idle_bytes // 2**20,
        "server_mib": used_bytes // 2**20,
        "kib_per_agent": round((used_bytes - idle_bytes) / agents / 1024, 1),
        "ticks": len(ticked),
        "tick_median_ms": statistics.median(ticked) if ticked else None,
        "cores": os.cpu_count(),
        "storage": storage(),
    }


async def _order(connection: asyncpg.Connection, agents: int, seen: Seen, seconds: float) -> list[float]:
    """Change the orders of some nodes, evenly over the time; how long each change took to reach its agent."""
    loop, waits = asyncio.get_running_loop(), []
    chosen = random.Random(7).sample(range(1, agents + 1), min(ORDERS, agents))
    until = time.perf_counter() + 2 * seconds
    for number in chosen:
        next_at = time.perf_counter() + seconds / len(chosen)
        arrived = seen.orders[number] = loop.create_future()
        started = time.perf_counter()
        await connection.execute(
            "WITH changed AS (UPDATE nodes SET desired_version = desired_version + 1 WHERE id = $1 RETURNING id) "
            "SELECT pg_notify('allpass_node', id) FROM changed",
            f"node_{number}",
        )
        with suppress(TimeoutError):  # counted with the time that it has waited so far
            async with asyncio.timeout(max(1.0, until - started)):
                await asyncio.shield(arrived)
        waits.append((arrived.result() if arrived.done() else time.perf_counter()) - started)
        seen.check()
        if time.perf_counter() > until:
            break
        await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
    return waits


async def _connect(port: int, agents: int, seen: Seen) -> list[asyncio.BaseTransport]:
    """All agents, coming evenly over one poll's time: they restart at any moment, not together."""
    loop, transports = asyncio.get_running_loop(), []
    pause_s = WAIT_MS / 1000 / max(1, agents / _CONNECTING_AT_ONCE)
    for first in range(1, agents + 1, _CONNECTING_AT_ONCE):
        next_at = time.perf_counter() + pause_s
        for number in range(first, min(first + _CONNECTING_AT_ONCE, agents + 1)):
            # mypy cannot infer a lambda with a default.
            transport, _ = await loop.create_connection(lambda number=number: _Agent(number, seen), "127.0.0.1", port)  # type: ignore[misc]
            transports.append(transport)
        await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
    return transports


async def _fill(connection: asyncpg.Connection, world: dict[str, Any], agents: int) -> None:
    """So many running jobs, each with a run on a ready node of its own."""
    now_ms = time.time_ns() // 10**6
    row = world["row"]
    names = [name for name in row if name not in ("id", "submitted_ms", "deadline_ms")]
    marks = ", ".join(f"${at}" for at in range(3, 3 + len(names)))
    await connection.execute(
        f"INSERT INTO jobs (id, state, epoch, submitted_ms, deadline_ms, {', '.join(names)}) "
        f"SELECT 'job_' || n, 'running', 1, $2::bigint, $2::bigint + 86400000, {marks} "
        "FROM generate_series(1, $1::integer) n",
        agents,
        now_ms,
        *(row[name] for name in names),
    )
    await connection.execute(
        "INSERT INTO nodes (id, project_id, provider, provider_ref, tier, offer, gpu_type, gpu_count, "
        "gpu_memory_bytes, cpus, memory_bytes, region, host, image, price_micros_per_hour, billing_unit_ms, "
        "billing_starts, billing_minimum_ms, state, requested_ms, expected_ready_ms, startup_deadline_ms, ready_ms, "
        "billed_from_ms) "
        "SELECT 'node_' || n, $2, $3, 'ref-' || n, 'marketplace', $6, 'A100', 1, 85899345920, 16, 68719476736, "
        "'eu', 'host', 'image', $4, 1000, 'ready', 0, 'ready', $5::bigint, $5, $5, $5, $5 "
        "FROM generate_series(1, $1) n",
        agents,
        world["project_id"],
        PROVIDER,
        PRICE_MICROS,
        now_ms,
        json.dumps(codec.encode(OFFER)),
    )
    tokens = [(f"node_{number}", hashlib.sha256(_token(number).encode()).digest()) for number in range(1, agents + 1)]
    await connection.execute(
        "UPDATE nodes SET token_sha256 = t.digest FROM unnest($1::text[], $2::bytea[]) AS t(id, digest) "
        "WHERE nodes.id = t.id",
        *map(list, zip(*tokens, strict=True)),
    )
    for statement in (
        "INSERT INTO runs (id, project_id, tier, state, created_ms, running_ms) "
        f"SELECT 'run_' || n, '{world['project_id']}', 'marketplace', 'running', {now_ms}, {now_ms}",
        "INSERT INTO run_jobs (run_id, job_id, epoch) SELECT 'run_' || n, 'job_' || n, 1",
        "INSERT INTO allocations (id, run_id, node_id, gpu_indices, from_ms) "
        f"SELECT 'aloc_' || n, 'run_' || n, 'node_' || n, '{{0}}', {now_ms}",
    ):
        await connection.execute(f"{statement} FROM generate_series(1, {agents}) n")
    await connection.execute("VACUUM (ANALYZE) jobs, nodes, runs, run_jobs, allocations")


def _token(number: int) -> str:
    return f"agent-of-the-benchmark-{number}"


def _start(world: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    plain = {"port": port, "folder": world["folder"], "database_url": world["database_url"]}
    return subprocess.Popen([sys.executable, "-m", "benchmarks.agents_server", json.dumps(plain)]), port


async def _until_up(server: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        if server.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the server did not start (exit code {server.poll()})")
        await asyncio.sleep(0.05)


def _memory_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def _siblings(backend: int) -> list[int]:
    """All processes of the PostgreSQL server that this backend belongs to."""
    parent = int(_stat(backend)[1])
    found = [parent]
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(_stat(int(path.name))[1]) == parent:
                found.append(int(path.name))
    return found


def _cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = _stat(pid)
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before them may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _p99(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


if __name__ == "__main__":
    main()
