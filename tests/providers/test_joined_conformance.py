"""Joined hosts sit the exam of all providers: the orders are rows of a real database, which a host reads and obeys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import select

from allpass.wire.hosts import HostFacts, HostJoinRequest, HostSyncRequest
from app.core.billing import cost
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.pool import Pool
from app.db.engine import Database
from app.db.pools.machines import set_started
from app.db.pools.pools import PoolRow, add_pool
from app.db.tables import host_machines
from app.errors import AuthFailed, NoCapacity, OfferGone, OutcomeUnknown, PriceMoved, RateLimited, Transient
from app.ports.provider import Machine, MachineRequest, MachineStatus, Provider
from app.services.kit.seal import Sealer
from app.services.pools.join_host import join_host, make_pool_token
from app.services.pools.own_hosts import DatabaseHosts
from app.services.pools.sync_host import orders_of_host, report_host
from app.system import RandomIds, SystemClock
from providers.conformance.harness import TROUBLE_RETRY_AFTER_MS, BillLine, Trouble, Ways
from providers.conformance.suite import ProviderConformance, rent
from providers.joined.adapter import JoinedHosts
from tests.control.world import make_settings

PATIENCE_S = 20.0
GIB = 1024**3
GPUS = [{"index": index, "name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 * GIB} for index in range(8)]
FACTS = HostFacts.model_validate({"cpus": 64, "memory_bytes": 256 * GIB, "gpus": GPUS})


class ObedientHost:
    """A host that starts what it is told to and ends it again. `stuck`: it starts nothing for now."""

    def __init__(self, database: Database, token: str, host_id: str, sealer: Sealer) -> None:
        self._database, self._bearer, self._host_id, self._sealer = database, f"Bearer {token}", host_id, sealer
        self._runs: dict[str, str] = {}
        self.stuck = False

    async def work(self) -> None:
        while True:
            await self.turn()
            await asyncio.sleep(0.02)

    async def turn(self) -> None:
        machines = [{"id": one, "state": state, "log": f"{one}\nis {state}\n"} for one, state in self._runs.items()]
        said = HostSyncRequest.model_validate({"boot_id": "1", "facts": FACTS.model_dump(), "machines": machines})
        now_ms = SystemClock().now_ms()
        await report_host(self._database, RandomIds(SystemClock()), self._bearer, said, fault_budget=3, now_ms=now_ms)
        async with self._database.transaction() as connection:
            told = await orders_of_host(connection, self._sealer, self._host_id, now_ms=now_ms)
        for order in told.machines:
            if order.ends:
                self._runs[order.id] = "ended"
            elif order.environment is not None and not self.stuck:
                self._runs.setdefault(order.id, "running")
        self._runs = {one: state for one, state in self._runs.items() if one in {order.id for order in told.machines}}

    def die(self, ref: str) -> None:
        self._runs[ref] = "ended"


class TroubledHosts:
    """What is asked of the database, and the way to it, which fails when it is told to."""

    def __init__(self, hosts: DatabaseHosts, host: ObedientHost) -> None:
        self._hosts, self._host = hosts, host
        self.trouble: Trouble | None = None

    def _taken(self, *fits: Trouble) -> Trouble | None:
        found = self.trouble if self.trouble in fits else None
        self.trouble = None if found else self.trouble
        return found

    async def offers(self) -> list[Offer]:
        return await self._hosts.offers()

    async def launch(self, request: MachineRequest) -> Machine:
        trouble = self._taken(*(one for one in Trouble if one.value.startswith("create")))
        match trouble:
            case Trouble.CREATE_NO_CAPACITY:
                raise NoCapacity("all GPUs are taken")
            case Trouble.CREATE_OFFER_GONE:
                raise OfferGone("the host has left")
            case Trouble.CREATE_PRICE_MOVED:
                raise PriceMoved("its owner says another price now")
            case Trouble.CREATE_RATE_LIMITED:
                raise RateLimited("the database is busy", retry_after_ms=TROUBLE_RETRY_AFTER_MS)
            case Trouble.CREATE_DROPPED_BEFORE_EFFECT | Trouble.CREATE_ERROR_BEFORE_EFFECT:
                raise Transient("no connection")
            case Trouble.CREATE_NEVER_READY:
                self._host.stuck = True
        machine = await self._hosts.launch(request)
        if trouble not in (None, Trouble.CREATE_NEVER_READY):
            raise OutcomeUnknown("the connection broke as it was written down")
        return machine

    async def machines(self, label: str | None = None) -> Sequence[Machine]:
        trouble = self._taken(Trouble.LIST_ERROR, Trouble.LIST_RATE_LIMITED) if label is None else None
        if trouble is Trouble.LIST_RATE_LIMITED:
            raise RateLimited("the database is busy", retry_after_ms=TROUBLE_RETRY_AFTER_MS)
        if trouble is not None:
            raise Transient("no connection")
        return await self._hosts.machines(label)

    async def machine(self, ref: str) -> Machine | None:
        if self._taken(Trouble.GET_DROPPED):
            raise Transient("no connection")
        return await self._hosts.machine(ref)

    async def end(self, ref: str) -> None:
        trouble = self._taken(Trouble.TERMINATE_REPLY_LOST, Trouble.TERMINATE_ERROR_BEFORE_EFFECT)
        if trouble is not Trouble.TERMINATE_ERROR_BEFORE_EFFECT:
            await self._hosts.end(ref)
        if trouble is not None:
            raise Transient("no connection")

    async def log(self, ref: str) -> str:
        return await self._hosts.log(ref)


class Refusing:
    """Hosts of which nothing can be had but this error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, _name: str) -> Any:
        async def refuse(*_: object) -> None:
            raise self._error

        return refuse


class JoinedHarness:
    tiers = frozenset({Tier.OWN})
    patience_s = PATIENCE_S
    ways = Ways()

    def __init__(self, database: Database, hosts: TroubledHosts, host: ObedientHost) -> None:
        self.database, self._hosts, self.host = database, hosts, host
        self.provider: Provider = JoinedHosts(hosts, startup_deadline_ms=60_000)

    async def arrange(self, trouble: Trouble) -> None:
        self._hosts.trouble = trouble

    def with_wrong_key(self) -> Provider:
        refusing: Any = Refusing(AuthFailed("the database refuses us"))
        return JoinedHosts(refusing, startup_deadline_ms=60_000)

    def unreachable(self) -> Provider:
        refusing: Any = Refusing(Transient("no connection"))
        return JoinedHosts(refusing, startup_deadline_ms=60_000)

    async def rent_for_somebody_else(self) -> str:
        """Nobody else's machines are in our tables; a ref that is of no host of ours."""
        return "mach_of_somebody_else"

    async def kill_inside(self, ref: str) -> None:
        self.host.die(ref)

    async def bill(self, ref: str) -> BillLine:
        """By the rows: own machines cost what their owner says, for the time in which they ran."""
        async with self.database.transaction() as connection:
            (row,) = list(await connection.execute(select(host_machines).where(host_machines.c.id == ref)))
        to_ms = row.ending_ms if row.ending_ms is not None else row.ended_ms
        if row.started_ms is None or (to_ms is not None and row.started_ms > to_ms):
            return BillLine(Money(0), None, None)
        until_ms = to_ms if to_ms is not None else round(time.time() * 1000)
        (traits,) = self.provider.traits()
        price = Money(row.price_micros_per_hour)
        return BillLine(cost(traits.billing, price, row.started_ms, until_ms), row.started_ms, to_ms)


class TestJoined(ProviderConformance):
    @pytest.fixture
    async def harness(self, database: Database, database_url: str) -> AsyncIterator[JoinedHarness]:
        settings, clock = make_settings(database_url), SystemClock()
        ids, sealer = RandomIds(clock), Sealer.of(settings)
        async with database.transaction() as connection:
            await add_pool(connection, PoolRow(Pool("lab", price=Money(400_000)), "", {}, 0))
            now_ms = clock.now_ms()
            token = await make_pool_token(connection, "lab", joins=1, expires_ms=now_ms + 60_000, now_ms=now_ms)
            body = {"nonce": "a" * 64, "name": "box", "boot_id": "1", "facts": FACTS.model_dump()}
            asked = HostJoinRequest.model_validate(body)
            told = await join_host(connection, settings, ids, f"Bearer {token}", asked, now_ms=now_ms)
        host = ObedientHost(database, told.host_token, told.host_id, sealer)
        working = asyncio.create_task(host.work())
        own = TroubledHosts(DatabaseHosts(database, sealer, clock, ids), host)
        yield JoinedHarness(database, own, host)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working

    async def test_one_that_its_host_started_after_it_was_asked_to_end_costs_nothing(
        self, harness: JoinedHarness
    ) -> None:
        """The host had not heard of it yet: what it says of the machine is written down, and nothing is billed."""
        harness.host.stuck = True
        machine = await rent(harness)
        await harness.provider.terminate(machine.ref)
        async with harness.database.transaction() as connection:
            await set_started(connection, machine.ref, now_ms=SystemClock().now_ms() + 1)
        found = await harness.provider.get(machine.ref)
        assert found is not None and found.status is MachineStatus.ENDED
        assert (found.billed_from_ms, found.billed_to_ms) == (None, None)
        assert (await harness.bill(machine.ref)).amount == Money(0)
