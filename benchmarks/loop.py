"""The whole control loop among very many jobs: from the news of one job to the orders that follow from it.

    python -m benchmarks.loop [--jobs 100000] [--nodes 2000] [--events 60] [--burst 1000]

Real PostgreSQL. As many jobs as there are nodes run, 50 are on serverless, and the rest wait. An event: the agent of a
node tells that its job has ended; the loop observes, decides, writes the next job's run and the orders of its agent.
Its time is from the agent's report to the notice that wakes the agent's long poll; `tick_ms` is the whole decision, the
words for those who wait and its record included. The same with a hundredth of the jobs gives the growth.
Then, in the small world, so many jobs are submitted at once and all are given a place on serverless. `value` is the
median in milliseconds among all jobs. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import time
from collections import defaultdict
from typing import Any

import asyncpg
import uvloop

from allpass.wire.agent import ExitReport, RunReport
from app.collector import settle_collector
from app.control.prices import refresh_offers
from app.control.service import ControlService
from app.core.model.plan import Assign, Start
from app.db.engine import Database, make_engine
from app.db.listen import Listener
from app.db.notify import NODE
from app.services.runs.apply_run_reports import apply_run_reports
from app.settings import Settings
from app.system import RandomIds, SystemClock
from benchmarks.agents_server import PROVIDER
from benchmarks.loop_ground import SERVERLESS, LendingCloud, lay_out, node_image
from benchmarks.world import fresh_world, storage

GOAL_MS = 100.0
_WARM_UP = 3
_FEW_NODES = 40  # among a hundredth of the jobs


class Ground:
    """One process that decides, over a database with so many live jobs."""

    def __init__(self, world: dict[str, Any], jobs: int, nodes: int, *, serverless: int = SERVERLESS) -> None:
        self.world, self.jobs, self.nodes = world, jobs, nodes
        self.clock = SystemClock()
        self.ids = RandomIds(self.clock)
        url = world["database_url"]
        settings = Settings(
            database_url=url,
            objects_signing_key="k" * 40,
            secret_key="s" * 40,
            serverful_limit=nodes,
            serverless_limit=serverless,
            node_image=node_image(),
            leader_lease_s=600,
        )
        self._orders: defaultdict[str, list[float]] = defaultdict(list)  # by node: when its agent was woken
        self.database = Database(make_engine(url, pool_size=8, timeout_s=120))
        self.control = ControlService(
            database=self.database,
            listener=Listener(url, timeout_s=30),
            providers={PROVIDER: LendingCloud(url)},
            settings=settings,
            clock=self.clock,
            ids=self.ids,
        )

    async def open(self) -> float:
        """Lay it out and decide once; how long that first decision takes, in milliseconds."""
        connection = await asyncpg.connect(self.world["database_url"])
        await lay_out(connection, self.world, self.jobs, self.nodes)
        await connection.close()
        self._listening = await asyncpg.connect(self.world["database_url"])
        await self._listening.add_listener(NODE, self._note_order)
        assert await self.control.context.leader.step()
        await refresh_offers(self.control.context)
        began = time.perf_counter()
        await self.control.loop.tick("first")
        settle_collector()
        return 1e3 * (time.perf_counter() - began)

    def _note_order(self, *notice: object) -> None:
        self._orders[str(notice[-1])].append(time.perf_counter())

    async def event_ms(self, number: int) -> tuple[float, float]:
        """The job of this node ends: how long until its agent is woken for the next one, and until all is done."""
        name = f"{number:07d}"
        ended = RunReport(
            run_id=f"run_{name}", job_id=f"job_{name}", epoch=1, phase="exited", step=10, exit=ExitReport(exit_code=0)
        )
        began = time.perf_counter()
        await apply_run_reports(
            self.database, self.ids, f"node_{name}", [ended], now_ms=self.clock.now_ms(), fault_budget=3
        )
        await asyncio.sleep(0)
        decision = await self.control.loop.tick("change")
        took_s = time.perf_counter() - began
        assert decision is not None
        assert not decision.dropped, decision.dropped[0].why
        given = [action.node_id for action in decision.plan.actions if isinstance(action, Assign)]
        assert given == [f"node_{name}"], decision.plan.actions
        _of_the_report, of_the_order = self._orders[f"node_{name}"]
        return 1e3 * (of_the_order - began), 1e3 * took_s

    async def burst(self) -> dict[str, Any]:
        """All jobs that wait are given places: starts per second, and how long each tick takes."""
        waiting, started, ticks_ms = self.jobs - self.nodes - SERVERLESS, 0, []
        began = time.perf_counter()
        while started < waiting:
            tick = time.perf_counter()
            decision = await self.control.loop.tick("burst")
            ticks_ms.append(1e3 * (time.perf_counter() - tick))
            assert decision is not None
            starts = sum(isinstance(action, Start) for action in decision.plan.actions) - len(decision.dropped)
            assert starts, "nothing was started"
            started += starts
        took_s = time.perf_counter() - began
        return {"starts": started, "starts_per_s": round(started / took_s, 1), "worst_tick_ms": round(max(ticks_ms), 1)}

    async def close(self) -> None:
        await self._listening.close()
        await self.database.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=2_000)
    parser.add_argument("--events", type=int, default=60)
    parser.add_argument("--burst", type=int, default=1_000)
    options = parser.parse_args()
    small = _measured(max(200, options.jobs // 100), _FEW_NODES, min(options.events, _FEW_NODES - _WARM_UP))
    burst = _burst(options.burst)
    large = _measured(options.jobs, options.nodes, options.events)
    detail = {
        "median_ms": large["median_ms"],
        "p99_ms": large["p99_ms"],
        "growth": round(large["median_ms"] / small["median_ms"], 2),
        "small": small,
        "large": large,
        "burst": burst,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "cores": os.cpu_count(),
        "storage": storage(),
    }
    print(json.dumps({"name": "loop", "value": large["median_ms"], "goal": GOAL_MS, "unit": "ms", "detail": detail}))


def _measured(jobs: int, nodes: int, events: int) -> dict[str, Any]:
    with fresh_world() as world:
        return uvloop.run(_events(Ground(world, jobs, nodes), events))


async def _events(ground: Ground, events: int) -> dict[str, Any]:
    first_ms = await ground.open()
    took = [await ground.event_ms(number) for number in range(1, events + _WARM_UP + 1)][_WARM_UP:]
    await ground.close()
    orders, ticks = sorted(order_ms for order_ms, _ in took), sorted(tick_ms for _, tick_ms in took)
    return {
        "jobs": ground.jobs,
        "nodes": ground.nodes,
        "events": len(took),
        "first_ms": round(first_ms, 1),
        "median_ms": round(statistics.median(orders), 1),
        "p99_ms": round(orders[max(0, -(-99 * len(orders) // 100) - 1)], 1),
        "tick_ms": round(statistics.median(ticks), 1),
    }


def _burst(count: int) -> dict[str, Any]:
    with fresh_world() as world:
        return uvloop.run(_all_at_once(world, count))


async def _all_at_once(world: dict[str, Any], count: int) -> dict[str, Any]:
    ground = Ground(world, count + 1 + SERVERLESS, 1, serverless=count + SERVERLESS)
    connection = await asyncpg.connect(world["database_url"])
    await lay_out(connection, world, ground.jobs, 1)
    await connection.close()
    assert await ground.control.context.leader.step()
    await refresh_offers(ground.control.context)
    told = await ground.burst()
    await ground.database.close()
    return told


if __name__ == "__main__":
    main()
