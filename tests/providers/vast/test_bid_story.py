"""A spot job on a bid at the emulated Vast.ai, through the control loop and a real database: it is outbid, and goes on;
a guaranteed job beside it is on demand all the while."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.model.money import Money
from app.core.model.node import Tier
from app.db import tables as t
from app.db.engine import Database
from app.errors import AllpassError
from app.ports.provider import Machine, MachineRequest, MachineStatus
from providers.vast.adapter import VastProvider
from tests.conftest import CountingIds, ManualClock
from tests.control.fake_provider import RentedMachine
from tests.control.world import World, make_settings
from tests.providers.cloud_process import eventually
from tests.providers.vast_emulator import SCRIPT, EmulatedVast


class Account:
    """The real adapter, and what each machine was given to join with: the test speaks for the agents."""

    def __init__(self, vast: EmulatedVast) -> None:
        self.tokens: dict[str, str] = {}
        self.provider = vast.provider(bids=True, gpu_types=("T4",), bootstrap=self._note)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)

    def of_label(self, label: str) -> list[RentedMachine]:
        told = Machine("vast", label, label, Tier.MARKETPLACE, MachineStatus.RUNNING, Money(0), 0, None, None)
        return [RentedMachine(told, self.tokens[label], "")] if label in self.tokens else []

    def _note(self, request: MachineRequest) -> str:
        self.tokens[request.label] = dict(request.bootstrap)["ALLPASS_JOIN_TOKEN"]
        return SCRIPT


@pytest.fixture
async def account(vast: EmulatedVast) -> AsyncIterator[Account]:
    account = Account(vast)
    yield account
    await account.provider.close()


@pytest.fixture
async def world(database: Database, database_url: str, account: Account) -> World:
    """At the time that it is: leases of hosts end."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    world = World(database, make_settings(database_url, policy="cheapest-first"), clock, CountingIds(clock))
    world.cloud.on_offer = []
    world.other_clouds = [account]  # type: ignore[list-item]  # a provider whose agents can be spoken for
    world.settings = world.settings.model_copy(update={"operation_timeout_s": 60})
    world.control = world.new_control()
    await world.open()
    return world


async def node_for(world: World, job_id: str) -> Any:
    return next(row for row in reversed(await world.rows(t.nodes)) if row.rented_for_job_id == job_id)


async def begin(world: World, vast: EmulatedVast, job_id: str, *, step: int) -> Any:
    """Its machine is up, and its code runs."""
    node = await node_for(world, job_id)
    eventually(lambda: vast.machine(node.provider_ref)["state"] == "running")
    await world.boot(node.id)
    await world.decide()
    await world.report(node.id, "running", step=step)
    return node


async def test_a_spot_job_is_outbid_and_goes_on_and_a_guaranteed_one_is_never_on_a_bid(
    vast: EmulatedVast, world: World, account: Account
) -> None:
    """One job, two machines, no fault; the contract that was lost is destroyed although its bid wins again, its agent
    is not let in, and both are billed at what was bid."""
    spot = await world.submit(priority_class="spot", saves_ms=1, checkpoint_step=30)
    guaranteed = await world.submit()
    await world.decide()
    await world.work()
    lost, kept = await begin(world, vast, spot, step=40), await begin(world, vast, guaranteed, step=1)
    assert (lost.offer["spot_only"], kept.offer["spot_only"]) == (True, False)
    assert lost.host != kept.host
    bid, on_demand = vast.machine(lost.provider_ref), vast.machine(kept.provider_ref)
    assert (bid["facts"]["bid_micros"] is None, on_demand["facts"]["bid_micros"]) == (False, None)
    assert lost.price_micros_per_hour == lost.offer["price_per_hour"] < kept.price_micros_per_hour

    provider: VastProvider = account.provider
    assert (await provider.get(lost.provider_ref)) is not None  # seen running
    vast.act(lost.provider_ref, "outbid")
    for _ in range(60):
        world.clock.advance(s=5)
        await world.beat(kept.id)
        await world.check_heartbeats()
        if (await world.node(lost.id)).state == "terminating":
            break
    job = await world.job(spot)
    assert (job.state, job.faults) == ("waiting", 0)
    (told,) = [one for one in await world.rows(t.job_events) if one.kind == "interrupted"]
    assert (told.job_id, told.data["steps"]) == (spot, 10)

    vast.act(lost.provider_ref, "win")
    eventually(lambda: vast.machine(lost.provider_ref)["state"] == "running")
    with pytest.raises(AllpassError):
        await world.boot(lost.id)
    await world.work()
    assert vast.machine(lost.provider_ref)["state"] == "ended"
    assert (await world.node(lost.id)).state == "terminated"

    await world.decide()
    await world.work()
    again = await begin(world, vast, spot, step=31)
    assert again.offer["spot_only"]
    assert again.host not in {lost.host, kept.host}
    assert ((await world.job(spot)).state, (await world.job(guaranteed)).state) == ("running", "running")
    assert await world.node_of(guaranteed) == kept.id
    runs = {row.run_id for row in await world.rows(t.run_jobs) if row.job_id == spot}
    assert len(runs) == 2
    await world.meter()
    paid = {row.id: row.metered_micros for row in await world.rows(t.nodes)}
    assert await world.ledger_sum() == sum(paid.values())
