"""Where the fault matrix is played: one whole stack that rents from emulated companies, and doors behind it.

The stack is what a customer runs: PostgreSQL, object store, API, control loop, agents as machines, and the real client
code of every company. Each company's admin port tells what it has and what it charges; the database tells what we
believe. Both are asked behind the control plane's back.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

import allpass
from app.stack.emulated import Emulated
from app.stack.supervisor import Clouds, Stack, StackOptions
from benchmarks.fault_books import Books, CompanyBooks
from benchmarks.fault_cluster import CLUSTER_GPU, CLUSTER_SETTINGS, ClusterBooks, make_cluster_pool
from benchmarks.fault_host import HOST_GPU
from benchmarks.fault_neighbours import rent_as_neighbour
from benchmarks.fault_pool import POOL_SETTINGS, joined_hosts
from benchmarks.fault_slurm import SLURM_GPU, SlurmBooks, make_slurm_pool, slurm_settings
from benchmarks.pair import PAIR
from providers.emulators.companies import Company
from tests.slurm_cluster import SlurmCluster

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STEPS, STEP_MS = 60, 25
CREATE_GRACE_S, ORPHAN_GRACE_S = 5.0, 3.0
# From when a fault struck until nothing of it may be left: our patience with calls, the graces, some sweeps and tries.
GRACE_S = 40.0
STARTS_WITHIN_S = 20.0
_READY_WITHIN_S = 120.0
_NAMES = tuple(company.value.upper() for company in Company)
# What takes minutes in production takes seconds here. Each company has a GPU that no other one rents out, so that a
# job can be sent there; an A100 is to be had everywhere.
SETTINGS: Mapping[str, str] = {
    "ALLPASS_POLICY": "fixed-threshold",
    "ALLPASS_SERVERLESS_BUDGET_S": "4",
    "ALLPASS_TICK_S": "1",
    "ALLPASS_POLL_S": "0.25",
    "ALLPASS_LEADER_LEASE_S": "3",
    "ALLPASS_SWEEP_S": "1",
    "ALLPASS_METER_S": "1",
    "ALLPASS_PRICES_S": "7",
    "ALLPASS_PROVIDER_RECHECK_S": "3",
    "ALLPASS_HEARTBEAT_CHECK_S": "0.5",
    "ALLPASS_UNREACHABLE_AFTER_S": "4",
    "ALLPASS_LOST_AFTER_S": "4",
    "ALLPASS_ORPHAN_GRACE_S": f"{ORPHAN_GRACE_S:g}",
    "ALLPASS_AGENT_POLL_S": "2",
    "ALLPASS_GPU_LOOK_S": "1",
    "ALLPASS_MODAL_CUDA": "13.0",
    "ALLPASS_LAMBDA_CUDA": "13.0",
    "ALLPASS_STOP_GRACE_S": "5",
    "ALLPASS_OPERATION_LEASE_S": "3",
    "ALLPASS_OPERATION_TIMEOUT_S": "6",
    "ALLPASS_MODAL_GPUS": '["T4", "A100-40GB"]',
    "ALLPASS_VAST_GPU_TYPES": '["RTX4090", "A100"]',
    "ALLPASS_RUNPOD_GPU_TYPES": '["RTXA6000"]',
    "ALLPASS_RUNPOD_GPU_COUNTS": "[1]",
    **{f"ALLPASS_{name}_CREATE_GRACE_S": f"{CREATE_GRACE_S:g}" for name in _NAMES},
    **{f"ALLPASS_{name}_STARTUP_DEADLINE_S": f"{STARTS_WITHIN_S:g}" for name in _NAMES},
}
_ONLY_AT: Mapping[str, Mapping[str, Any]] = {
    "modal": {"gpu": {"count": 1, "type": "T4"}, "start": "now"},
    "vast": {"gpu": {"count": 1, "type": "RTX4090"}, "start": "when-cheap"},
    "lambda": {"gpu": {"count": 1, "type": "A10"}, "start": "when-cheap"},
    "runpod": {"gpu": {"count": 1, "type": "RTXA6000"}, "start": "when-cheap"},
    "kubernetes": {"gpu": {"count": 1, "type": CLUSTER_GPU}, "start": "now"},
    "joined": {"gpu": {"count": 1, "type": HOST_GPU}, "start": "now"},
    "slurm": {"gpu": {"count": 1, "type": SLURM_GPU}, "start": "now"},
}

Found = TypeVar("Found")


class OverdueError(Exception):
    """Something that had to happen did not, in the time it had."""


async def until(what: str, look: Callable[[], Awaitable[Found | None]], within_s: float, every_s: float = 0.1) -> Found:
    """The first truthy thing that `look` finds. Raises OverdueError saying `what` was waited for."""
    deadline = time.monotonic() + within_s
    while True:
        found = await look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise OverdueError(f"{what}: not within {within_s:.0f} s")
        await asyncio.sleep(every_s)


@dataclass
class Ground:
    """A running stack. Its processes are children of the thread that made it: use it from that one."""

    stack: Stack
    client: allpass.Client
    books: Mapping[str, Books]
    _pool: asyncpg.Pool
    _up: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by whoever needs the server, or kills it
    _apps: dict[str, allpass.App] = field(default_factory=dict)  # by script
    crashes: int = 0
    _restarted_at: float = 0.0
    neighbours: set[str] = field(default_factory=set)  # machines of another installation, by reference

    async def submit(
        self, company: str | None, *, steps: int = STEPS, image: str | None = None, spot: bool = False, nodes: int = 1
    ) -> str:
        """A short training, for this company alone or for whoever has an A100. Returns the job's id."""
        async with self._up:
            return await asyncio.to_thread(self._submit, company, steps, image, spot, nodes)

    def _submit(self, company: str | None, steps: int, image: str | None, spot: bool, nodes: int) -> str:
        where = _ONLY_AT[company] if company else {"gpu": {"count": 1, "type": "A100"}}
        template = {**where, "training": {"steps": steps}, "checkpoint_interval_s": 1, "image": image}
        template |= {"priority_class": "spot"} if spot else {}
        template |= {"nodes": nodes} if nodes > 1 else {}
        job = self._app_of(nodes).run(
            template=template, parameters={"steps": steps, "step_ms": STEP_MS}, soft_deadline="6hr"
        )
        assert isinstance(job, allpass.Job)
        return job.id

    def _app_of(self, nodes: int) -> allpass.App:
        """Whose processes need each other, where there are several."""
        name, code = ("faults", EXAMPLES / "plain_loop.py") if nodes == 1 else ("pairs", self._pair())
        if name not in self._apps:
            self._apps[name] = allpass.build(name, "benchmark", code=code, client=self.client)
        return self._apps[name]

    def _pair(self) -> Path:
        path = self.stack.layout.root / "pair.py"
        path.write_text(PAIR)
        return path

    async def lists_bids(self) -> bool:
        """Whether what a spot job is to take is on offer."""
        listed = await asyncio.to_thread(lambda: list(self.client.offers(tier="marketplace")))
        return any(one.interruptible for one in listed)

    async def crash(self) -> None:
        """SIGKILL to the server, and a new one on the same data; once for all who ask while one server lives."""
        asked_at = time.monotonic()
        async with self._up:
            if asked_at < self._restarted_at:
                return
            server = self.stack.children["server"]
            server.kill()
            self._restarted_at = time.monotonic()
            server.restart()
            self.crashes += 1
            ready = lambda: asyncio.to_thread(server.answers)  # noqa: E731 - two ways to ask the same
            await until("the server after its crash", ready, _READY_WITHIN_S)

    async def give_settings(self, settings: Mapping[str, str | None]) -> dict[str, str | None]:
        """Start the server again with these over its own; what it had instead."""
        async with self._up:
            server = self.stack.children["server"]
            server.stop()
            had = server.give(settings)
            self._restarted_at = time.monotonic()
            server.restart()
            ready = lambda: asyncio.to_thread(server.answers)  # noqa: E731 - two ways to ask the same
            await until("the server with other settings", ready, _READY_WITHIN_S)
        return had

    def stand_still(self, name: str) -> None:
        """A part of the stack takes connections and says nothing, until `go_on`."""
        os.kill(self.stack.children[name].pid, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        os.kill(self.stack.children[name].pid, signal.SIGCONT)

    async def rows(self, query: str, *values: Any) -> list[Any]:
        """Ask the database itself."""
        return list(await self._pool.fetch(query, *values))

    async def one(self, query: str, *values: Any) -> Any:
        """The only row, or None."""
        return await self._pool.fetchrow(query, *values)

    async def move_in(self, company: str) -> str:
        """Another installation rents a machine from the account that the stack has there; its reference."""
        (one,) = (each for each in self.stack.companies if each.company.value == company)
        ref = await rent_as_neighbour(one)
        self.neighbours.add(ref)
        return ref

    async def owned(self, company: str) -> set[str]:
        """The machines that are, or were, somebody's: of nodes that we wanted, not those taken in to be ended, and of
        another installation."""
        query = "SELECT provider_ref FROM nodes WHERE provider = $1 AND NOT orphan AND provider_ref IS NOT NULL"
        return {row["provider_ref"] for row in await self.rows(query, company)} | self.neighbours


@contextmanager
def started(folder: Path, slurm: SlurmCluster | None = None) -> Iterator[Stack]:
    """Bring the stack up, and stop it at the end. Outside of any event loop: starting it runs one."""
    of_slurm = {} if slurm is None else slurm_settings(slurm)
    settings = {**SETTINGS, **CLUSTER_SETTINGS, **POOL_SETTINGS, **of_slurm}
    options = StackOptions(
        folder / "data", port=0, cloud_speed=0.0, clouds=Clouds.EMULATED, companies=tuple(Company), settings=settings
    )
    stack = Stack(options, tell=lambda _: None)
    stack.start()
    try:
        yield stack
    finally:
        stack.stop()


@asynccontextmanager
async def ground(stack: Stack, slurm: SlurmCluster | None = None) -> AsyncIterator[Ground]:
    """Open the doors behind a stack that is up."""
    known = json.loads(stack.layout.client_file.read_text())
    books: dict[str, Books] = {one.company.value: _books_of(one) for one in stack.companies}
    async with asyncpg.create_pool(stack.database_url, min_size=1, max_size=4) as pool:
        with allpass.Client(known["url"], known["api_key"]) as client:
            await asyncio.to_thread(make_cluster_pool, client)
            async with joined_hosts(stack.layout.root.parent / "hosts", client, pool) as hosts:
                books[hosts.name] = hosts
                if slurm is not None:
                    await asyncio.to_thread(make_slurm_pool, client)
                    books[SlurmBooks.name] = SlurmBooks(slurm)
                for each in books.values():
                    await each.settle_in()
                yield Ground(stack, client, books, pool)
    for each in books.values():
        await each.close()


def _books_of(one: Emulated) -> CompanyBooks:
    return ClusterBooks(one) if one.company is Company.KUBERNETES else CompanyBooks(one)
