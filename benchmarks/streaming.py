"""Event streaming to many followers, and taking logs in: how long it takes, against an app with nothing behind it.

    python -m benchmarks.streaming [--followers 1000] [--events 20] [--reports 200] [--rounds 3]

Streaming: so many clients follow one job; the time from just before an event is committed (the empty app: posted) until
each of them has it. Logs: the time of one POST /v1/agent/logs, from 8 callers at once; every piece is new and stored.
Both servers are measured in turn in every round; a value is the median of the rounds' ratios. Loopback only. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpx
import uvloop
from sqlalchemy import update

from app.core.model.ids import Prefix
from app.core.model.job import JobState
from app.core.model.run import RunState
from app.db.engine import Database, make_engine
from app.db.tables import allocations, jobs, nodes, run_jobs, runs
from app.db.transitions import Event, add_job_event
from app.ports.objects import content_key
from app.services.access.create_key import create_key
from app.system import RandomIds, SystemClock
from benchmarks.streaming_server import objects_of
from benchmarks.world import fresh_world, storage

SERVERS = ("ours", "empty")
CALLERS = 8
TOKEN = "the token of the benchmark's node"
PATIENCE_S = 60.0


class _Follower(asyncio.Protocol):
    """Notes when each event arrives."""

    def __init__(self, request: bytes, arrived: Callable[[int], None]) -> None:
        self._request = request
        self._arrived = arrived
        self._held = b""
        self.opened = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        *lines, self._held = (self._held + data).split(b"\n")
        for line in lines:
            if line.startswith(b"id: "):
                self._arrived(int(line[4:]))
            elif line.startswith(b"HTTP/1.1") and not line.startswith(b"HTTP/1.1 200"):
                self.opened.set_exception(RuntimeError(f"not a 200: {line!r}"))
            elif line.startswith(b"retry") and not self.opened.done():
                self.opened.set_result(None)


def main() -> None:
    """Run all rounds, print a line for each, and the result last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("followers", 1000), ("events", 20), ("reports", 200), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    measured: dict[str, dict[str, list[float]]] = {name: {} for name in SERVERS}
    with fresh_world() as world:
        for number in range(options.rounds):
            for name in SERVERS:
                for what, value in uvloop.run(_round(name, world, options, number)).items():
                    measured[name].setdefault(what, []).append(value)
                print(f"round {number + 1} {name}: {_last(measured[name])}", flush=True)
    _tell(measured, options)


def _tell(measured: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> None:
    pairs = {what: zip(measured["ours"][what], measured["empty"][what], strict=True) for what in measured["ours"]}
    ratios = {what: round(statistics.median(one / other for one, other in both), 2) for what, both in pairs.items()}
    detail: dict[str, Any] = {f"{what}_ratio": ratio for what, ratio in ratios.items()}
    for name in SERVERS:
        detail |= {f"{name}_{what}_ms": round(statistics.median(of), 2) for what, of in measured[name].items()}
    detail |= {"followers": options.followers, "rounds": options.rounds, "storage": storage()}
    result = {"name": "streaming", "value": ratios["event_median"], "unit": "x empty app", "detail": detail}
    print(json.dumps(result))


def _last(measured: dict[str, list[float]]) -> str:
    return ", ".join(f"{what} {values[-1]:.2f} ms" for what, values in measured.items())


async def _round(name: str, world: dict[str, Any], options: argparse.Namespace, number: int) -> dict[str, float]:
    database = Database(make_engine(world["database_url"], pool_size=2, timeout_s=30))
    try:
        with _serving(name, world) as port:
            await _until_up(port)
            place = await _new_place(database, world, number)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
                fire = _committing(database, place["job_id"]) if name == "ours" else _posting(http)
                events = await _stream(port, place, options.followers, options.events, fire)
                reports = await _report(http, world, place, options.reports, store=name == "ours")
    finally:
        await database.close()
    return {**_summary("event", events), **_summary("log", reports)}


def _summary(what: str, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return {f"{what}_median": 1000 * statistics.median(ordered), f"{what}_p99": 1000 * p99}


async def _stream(
    port: int, place: dict[str, str], followers: int, events: int, fire: Callable[[int], Awaitable[object]]
) -> list[float]:
    """How long each follower waited for each event."""
    waits: list[float] = []
    started, complete, current, left = 0.0, asyncio.Event(), 0, 0

    def arrived(position: int) -> None:
        nonlocal left
        if position == current:
            waits.append(time.perf_counter() - started)
            left -= 1
            if left == 0:
                complete.set()

    loop = asyncio.get_running_loop()
    path = f"/v1/jobs/{place['job_id']}/events/stream"
    head = f"GET {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {place['key']}\r\n\r\n".encode()
    transports = []
    for _ in range(followers):
        transport, follower = await loop.create_connection(lambda: _Follower(head, arrived), "127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_S):
            await follower.opened
        transports.append(transport)
    for current in range(1, events + 1):
        left = followers
        complete.clear()
        started = time.perf_counter()
        await fire(current)
        async with asyncio.timeout(PATIENCE_S):
            await complete.wait()
    for transport in transports:
        transport.close()
    return waits


def _committing(database: Database, job_id: str) -> Callable[[int], Awaitable[object]]:
    async def fire(number: int) -> None:
        async with database.transaction() as connection:
            await add_job_event(connection, job_id, Event("note", f"event {number}"), now_ms=time.time_ns() // 10**6)

    return fire


def _posting(http: httpx.AsyncClient) -> Callable[[int], Awaitable[object]]:
    return lambda number: http.post("/tick", params={"number": number})


async def _report(
    http: httpx.AsyncClient, world: dict[str, Any], place: dict[str, str], count: int, *, store: bool
) -> list[float]:
    """How long each report of one new piece took."""
    objects, numbers, took = objects_of(world["folder"]), itertools.count(), []
    bodies = []
    for number in range(count):
        text = f"{place['job_id']} {number}\n".encode() * 50
        sha256 = hashlib.sha256(text).hexdigest()
        if store:
            await objects.put(content_key(world["project_id"], sha256), text, sha256=sha256)
        chunk = {"sequence": number, "sha256": sha256, "size_bytes": len(text), "line_count": 50}
        chunk |= {"first_ms": 1, "last_ms": 2}
        bodies.append({"run_id": place["run_id"], "job_id": place["job_id"], "epoch": 1, "chunks": [chunk]})

    async def caller() -> None:
        headers = {"authorization": f"Bearer {place['token']}"}
        while (number := next(numbers)) < count:
            started = time.perf_counter()
            response = await http.post("/v1/agent/logs", json=bodies[number], headers=headers)
            took.append(time.perf_counter() - started)
            response.raise_for_status()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return took


async def _new_place(database: Database, world: dict[str, Any], number: int) -> dict[str, str]:
    """A running job on a node of its own, and a key that may read it."""
    clock = SystemClock()
    ids, now_ms = RandomIds(clock), clock.now_ms()
    new: dict[Prefix, str] = {prefix: ids.new(prefix) for prefix in ("job", "run", "node", "aloc")}
    token = f"{TOKEN} {new['node']}"
    common = {"project_id": world["project_id"]}
    async with database.transaction() as connection:
        key = await create_key(connection, world["project_id"], f"r{number}", ("read",), clock=clock, ids=ids)
        job = {name: {} for name in ("parameters", "template", "resources")}
        await connection.execute(
            jobs.insert().values(
                id=new["job"],
                app_id=world["row"]["app_id"],
                app_version_id=world["row"]["app_version_id"],
                name="job",
                kind="batch",
                priority_class="guaranteed",
                start="now",
                checkpoint_interval_s=300,
                deadline_ms=now_ms,
                deadline_given=True,
                state=JobState.RUNNING,
                epoch=1,
                submitted_ms=now_ms,
                **common,
                **job,
            )
        )
        await connection.execute(
            nodes.insert().values(
                id=new["node"],
                provider="local",
                tier="marketplace",
                offer={},
                gpu_type="A100",
                gpu_count=1,
                gpu_memory_bytes=1,
                cpus=1,
                memory_bytes=1,
                region="",
                host="",
                image="",
                price_micros_per_hour=1,
                billing_unit_ms=1000,
                billing_starts="ready",
                billing_minimum_ms=0,
                state="ready",
                requested_ms=now_ms,
                expected_ready_ms=now_ms,
                startup_deadline_ms=now_ms,
                **common,
            )
        )
        digest = hashlib.sha256(token.encode()).digest()
        await connection.execute(update(nodes).where(nodes.c.id == new["node"]).values(token_sha256=digest))
        run = {"id": new["run"], "tier": "marketplace", "state": RunState.RUNNING, "created_ms": now_ms}
        await connection.execute(runs.insert().values(**run, **common))
        await connection.execute(run_jobs.insert().values(run_id=new["run"], job_id=new["job"], epoch=1))
        await connection.execute(
            allocations.insert().values(
                id=new["aloc"], run_id=new["run"], node_id=new["node"], gpu_indices=[0], from_ms=now_ms
            )
        )
    return {"job_id": new["job"], "run_id": new["run"], "token": token, "key": key}


@contextmanager
def _serving(name: str, world: dict[str, Any]) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    plain = {"port": port, "folder": world["folder"], "database_url": world["database_url"]}
    command = [sys.executable, "-m", "benchmarks.streaming_server", name, json.dumps(plain)]
    process = subprocess.Popen(command)
    try:
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _until_up(port: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


if __name__ == "__main__":
    main()
