"""How fast jobs that are submitted at once are started.

    python -m benchmarks.starts [--jobs 1000] [--rounds 3]

So many jobs wait, and a company rents as many serverless machines as anybody wants. The control loop decides until all
of them have been started: observing, deciding, writing each start (a node, the operation that creates it, a run, its
job's epoch, GPUs, events and wake-ups) and keeping the decision are in it; calls to providers are not. The value is
starts per second over all of that, the median of the rounds. Beside it: the longest decision, what enacting alone
takes, its statements for each start, and its longest transaction, which holds the leader's lease. PostgreSQL runs with
its default durability settings on /dev/shm. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import uvloop
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from allpass.wire.jobs import JobRequest
from app.collector import settle_collector
from app.control import loop as control_loop
from app.control.context import ControlContext
from app.control.leader import Leader
from app.control.loop import ControlLoop
from app.control.prices import refresh_offers
from app.core.policies import policy_named
from app.db.engine import Database, make_engine
from app.services.jobs.submit_jobs import JobSubmitter
from app.settings import Settings
from app.system import RandomIds, SystemClock
from benchmarks.world import fresh_world, storage
from tests.control.fake_provider import FakeProvider

GOAL = 100.0
_EMPTY = "TRUNCATE jobs, job_events, nodes, node_events, runs, provider_operations, ticks CASCADE"
_STARTED = "SELECT count(*) FROM jobs WHERE state = 'starting'"


@dataclass
class Seen:
    """What one round sent to the database while it enacted, and how long that took. `begun`: by connection."""

    enacting: bool = False
    enacting_s: float = 0.0
    statements: int = 0
    longest_s: float = 0.0
    ticks_s: list[float] = field(default_factory=list)
    begun: dict[Any, float] = field(default_factory=dict)


def main() -> None:
    """Run all rounds, print a line for each, and the result last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with fresh_world() as world:
        rounds = uvloop.run(measure(world, options.jobs, options.rounds))
    rates = [options.jobs / sum(seen.ticks_s) for seen in rounds]
    detail = {
        "rates": [round(rate) for rate in rates],
        "ticks": len(rounds[0].ticks_s),
        "longest_tick_ms": round(1e3 * statistics.median(max(seen.ticks_s) for seen in rounds)),
        "enacted_per_s": round(statistics.median(options.jobs / seen.enacting_s for seen in rounds)),
        "statements_per_start": round(rounds[0].statements / options.jobs, 2),
        "longest_transaction_ms": round(1e3 * statistics.median(seen.longest_s for seen in rounds)),
        "jobs": options.jobs,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "storage": storage(),
    }
    value = round(statistics.median(rates), 1)
    print(json.dumps({"name": "starts", "value": value, "goal": GOAL, "unit": "starts/s", "detail": detail}))


async def measure(world: dict[str, Any], jobs: int, rounds: int) -> list[Seen]:
    """A round more is played first, to warm up, and is not counted."""
    engine = make_engine(world["database_url"], pool_size=world["connections"], timeout_s=60)
    database, clock = Database(engine), SystemClock()
    ids = RandomIds(clock)
    settings = Settings(
        database_url=world["database_url"],
        objects_signing_key="benchmark" * 5,
        secret_key="benchmark" * 5,
        serverless_limit=jobs,
        serverful_limit=0,
    )
    leader = Leader(database, holder="benchmark", lease_s=600)
    context = ControlContext(database, {"cloud": FakeProvider(clock)}, settings, clock, ids, leader)
    told = []
    for number in range(rounds + 1):
        await _refill(database, settings, world, jobs if number else jobs // 10)
        assert await leader.step()
        await refresh_offers(context)
        settle_collector()
        seen = Seen()
        with _watched(engine, seen):
            await _start_all(context, jobs if number else jobs // 10, seen)
        if number:
            told.append(seen)
            longest_ms, rate = 1e3 * max(seen.ticks_s), jobs / sum(seen.ticks_s)
            print(f"round {number}: {rate:.0f} starts/s, longest decision {longest_ms:.0f} ms", flush=True)
    await database.close()
    return told


async def _start_all(context: ControlContext, jobs: int, seen: Seen) -> None:
    """One decision after the other, as a loop makes them that is woken all the time."""
    loop = ControlLoop(context, policy_named(context.settings.policy))
    started = 0
    while started < jobs:
        began = time.perf_counter()
        decision = await loop.tick("benchmark")
        seen.ticks_s.append(time.perf_counter() - began)
        assert decision is not None
        assert decision.plan.actions, "some jobs are never started"
        assert not decision.dropped
        started += len(decision.plan.actions)
    async with context.database.transaction() as connection:
        assert (await connection.execute(text(_STARTED))).scalar_one() == jobs


async def _refill(database: Database, settings: Settings, world: dict[str, Any], jobs: int) -> None:
    """So many jobs wait to be started now, and there is nothing else."""
    async with database.transaction() as connection:
        await connection.execute(text(_EMPTY))
    clock = SystemClock()
    submitter = JobSubmitter(database, settings, clock, RandomIds(clock))
    template = {**world["body"]["template"], "start": "now"}
    request = JobRequest.model_validate({**world["body"], "template": template})
    await asyncio.gather(*(submitter.submit_job(world["project_id"], request, None) for _ in range(jobs)))
    async with database.statement() as connection:
        await connection.execute(text("ANALYZE"))


@contextmanager
def _watched(engine: AsyncEngine, seen: Seen) -> Iterator[None]:
    """Counts statements and times transactions while a plan is enacted."""
    enact_apart = control_loop.enact_apart

    async def enacted(*given: Any, **named: Any) -> Any:
        began, seen.enacting = time.perf_counter(), True
        try:
            return await enact_apart(*given, **named)
        finally:
            seen.enacting = False
            seen.enacting_s += time.perf_counter() - began

    def sent(*_details: object) -> None:
        seen.statements += seen.enacting

    def begun(connection: Any) -> None:
        seen.begun[connection] = time.perf_counter()

    def over(connection: Any) -> None:
        took_s = time.perf_counter() - seen.begun.pop(connection)
        if seen.enacting:
            seen.longest_s = max(seen.longest_s, took_s)

    heard: dict[str, Callable[..., None]] = {"before_cursor_execute": sent, "begin": begun, "commit": over}
    for name, hear in heard.items():
        event.listen(engine.sync_engine, name, hear)
    try:
        with patch.object(control_loop, "enact_apart", enacted):
            yield
    finally:
        for name, hear in heard.items():
            event.remove(engine.sync_engine, name, hear)


if __name__ == "__main__":
    main()
