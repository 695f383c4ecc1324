"""Create and terminate operations: one machine per node, whatever the provider answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from app.control.create_machine import TRANSIENT_ATTEMPTS, create_machine
from app.core.model.node import Tier
from app.db import tables as t
from app.db.listen import Listener
from app.db.nodes.operations import LeasedOperation, claim
from app.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    OfferGone,
    OutcomeUnknown,
    PriceMoved,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
    Unavailable,
)
from app.ports.provider import Machine, MachineRequest
from app.services.jobs.cancel_job import cancel_job
from app.services.kit.node_tokens import TokenMint, token_sha256
from tests.control.fake_provider import FakeProvider, Fault, make_offer
from tests.control.world import World

_GRACE_S = 10
_LEASE_S = 3.0  # of real time: a busy machine still renews it when it should
_PATIENCE_S = 60.0


async def _start(world: World) -> tuple[str, str]:
    job_id = await world.submit()
    await world.decide()
    return job_id, await world.node_of(job_id)


async def test_a_created_machine_boots_with_a_join_token_whose_hash_alone_is_kept(world: World) -> None:
    """The label is the node's id, the token is exchanged for the node's, and the database holds neither."""
    _job_id, node_id = await _start(world)
    await world.work()
    (rented,) = world.cloud.of_label(node_id)
    node = await world.node(node_id)
    assert (node.state, node.provider_ref) == ("booting", rented.machine.ref)
    assert rented.url == world.settings.public_url
    token = await world.join(rented)
    assert (await world.node(node_id)).token_sha256 == token_sha256(token)
    stored = [await world.rows(table) for table in (t.nodes, t.node_events, t.node_joins, t.provider_operations)]
    assert rented.join_token not in repr(stored)
    assert token not in repr(stored)


@pytest.mark.parametrize("error", [NoCapacity("none"), OfferGone("taken"), PriceMoved("dearer"), InvalidRequest("bad")])
async def test_a_refused_create_queues_the_job_for_another_offer(world: World, error: ProviderError) -> None:
    """No machine: the job is queued without a fault, avoids the offer, and takes the next one after a moment."""
    world.cloud.create_faults = [error]
    job_id, node_id = await _start(world)
    await world.work()
    job = await world.job(job_id)
    assert (job.state, job.faults) == ("queued", 0)
    assert job.avoided_offers == ["cloud/serverless-a100"]
    assert job.not_before_ms > world.clock.now_ms()
    assert (await world.node(node_id)).state == "terminated"
    assert (await world.node(node_id)).meter_closed
    assert "serverless-a100" not in [row.offer_id for row in await world.rows(t.offers)]
    assert world.cloud.calls.count("terminate") == 0

    world.clock.advance(s=2)
    await world.decide()
    await world.work()
    (second,) = world.cloud.alive()
    assert second.tier is Tier.MARKETPLACE
    await world.check_invariants()


async def test_an_offer_that_fails_again_is_left_alone_for_longer(world: World) -> None:
    """With one offer only, each refusal is followed by a pause: no storm of create calls."""
    world.cloud.on_offer = world.cloud.on_offer[:1]
    world.cloud.create_faults = [NoCapacity("none")] * 10
    job_id = await world.submit()
    for _ in range(20):
        await world.decide()
        await world.work()
        world.clock.advance(s=2)
    assert world.cloud.creates == 3
    world.cloud.create_faults = []
    world.clock.advance(s=30)
    await world.decide()
    await world.work()
    assert (await world.job(job_id)).state == "starting"
    assert len(world.cloud.alive()) == 1


async def test_a_rented_node_that_could_not_be_had_fails_and_its_job_avoids_the_offer(world: World) -> None:
    """A provisioned node without a run ends as failed; the waiting job remembers the offer."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    world.cloud.create_faults = [NoCapacity("none")]
    job_id = await world.submit()
    await world.decide()
    await world.work()
    node = await world.newest_node()
    assert (node.state, node.meter_closed, node.token_sha256) == ("failed", True, None)
    assert "did not rent" in node.end_message
    assert (await world.job(job_id)).avoided_offers == ["cloud/market-a100"]
    assert (await world.job(job_id)).state == "queued"


async def test_a_provider_at_our_limit_is_left_alone_for_a_while(world: World) -> None:
    """None of its offers is taken for two minutes, and for twice as long when the limit is met again; the job is
    queued without a fault, and nothing is held against the offer."""
    world.cloud.create_faults = [QuotaExceeded("limit 0")] * 2
    job_id, node_id = await _start(world)
    await world.work()
    job = await world.job(job_id)
    assert (job.state, job.faults, job.avoided_offers) == ("queued", 0, [])
    for wait_s, creates in ((119, 1), (2, 2), (239, 2), (2, 3)):
        world.clock.advance(s=wait_s)
        await world.decide()
        await world.work()
        assert world.cloud.creates == creates
    kinds = [row.kind for row in await world.rows(t.node_events) if row.node_id == node_id]
    assert "node_create_failed" in kinds


async def test_a_rate_limit_is_waited_out(world: World) -> None:
    """The same operation is tried again after the provider's own time, and makes one machine."""
    world.cloud.create_faults = [RateLimited("slow down", retry_after_ms=7_000)]
    _job_id, node_id = await _start(world)
    await world.work()
    world.clock.advance(ms=6_900)
    await world.work()
    assert world.cloud.creates == 1
    world.clock.advance(ms=200)
    await world.work()
    assert world.cloud.creates == 2
    assert (await world.node(node_id)).state == "booting"


async def test_a_transient_error_is_retried_with_growing_pauses_and_then_given_up(world: World) -> None:
    """No effect happened, so the call is made again at once after its pause; but not for ever."""
    world.cloud.create_faults = [Transient("502")] * 50
    job_id, _node_id = await _start(world)
    for _ in range(40):
        await world.work()
        world.clock.advance(s=1)
    assert world.cloud.creates == TRANSIENT_ATTEMPTS
    job = await world.job(job_id)
    assert (job.unreached_offers, job.avoided_offers) == (["cloud/serverless-a100"], [])
    assert "serverless-a100" in [row.offer_id for row in await world.rows(t.offers)]  # others may take it


async def test_a_lost_reply_is_looked_up_and_the_machine_adopted(world: World) -> None:
    """OutcomeUnknown with a machine: no second create, and its agent is let in."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    job_id, node_id = await _start(world)
    await world.work()
    assert (await world.node(node_id)).state == "unknown"
    world.clock.advance(s=2)
    await world.work()
    assert world.cloud.creates == 1
    assert (await world.node(node_id)).state == "booting"
    await world.boot(node_id)
    await world.report(node_id, "running")
    assert (await world.job(job_id)).state == "running"
    await world.check_invariants()


async def test_a_lost_request_is_made_again_only_after_the_grace_of_listings(world: World) -> None:
    """OutcomeUnknown without a machine: look, wait until listings have caught up, then create again."""
    world.cloud.create_faults = [Fault.LOST_REQUEST]
    _job_id, node_id = await _start(world)
    await world.work()
    for _ in range(_GRACE_S - 1):
        world.clock.advance(s=1)
        await world.work()
    assert world.cloud.creates == 1
    assert world.cloud.calls.count("find") >= 2
    world.clock.advance(s=2)
    await world.work()
    assert world.cloud.creates == 2
    await world.boot(node_id)
    assert len(world.cloud.alive()) == 1


async def test_a_machine_that_appears_late_in_listings_is_still_the_only_one(world: World) -> None:
    """A listing that lags by less than the grace leads to no second machine."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    world.cloud.listing_lag_ms = (_GRACE_S - 2) * 1000
    _job_id, node_id = await _start(world)
    for _ in range(_GRACE_S + 5):
        await world.work()
        world.clock.advance(s=1)
    assert world.cloud.creates == 1
    assert (await world.node(node_id)).state == "booting"


async def test_of_several_machines_the_oldest_is_kept_and_its_agent_let_in(world: World) -> None:
    """A listing that lagged beyond its grace made two: one is kept, the other ended, and the kept one can call home."""
    world.cloud.create_faults = [Fault.LOST_REPLY, Fault.LOST_REPLY]
    world.cloud.listing_lag_ms = (_GRACE_S + 5) * 1000
    _job_id, node_id = await _start(world)
    for _ in range(3 * _GRACE_S):
        await world.work()
        world.clock.advance(s=1)
    assert len(world.cloud.of_label(node_id)) == 2
    (kept,) = world.cloud.alive()
    assert kept.created_ms == min(rented.machine.created_ms for rented in world.cloud.of_label(node_id))
    assert (await world.node(node_id)).provider_ref == kept.ref
    await world.boot(node_id)


async def test_a_call_that_hangs_is_unknown_after_its_timeout(world: World) -> None:
    """Our own timeout tells nothing about the machine: it is looked up."""
    object.__setattr__(world.control.context.settings, "operation_timeout_s", 0.05)
    world.cloud.create_faults = [Fault.HANG]
    _job_id, node_id = await _start(world)
    await world.work()
    assert (await world.node(node_id)).state == "unknown"
    world.clock.advance(s=2)
    await world.work()
    assert (await world.node(node_id)).state == "booting"


async def test_a_machine_that_ended_before_it_was_found_is_given_up(world: World) -> None:
    """Found by its label, but dead: the job takes another offer."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    job_id, node_id = await _start(world)
    await world.work()
    world.cloud.die(node_id)
    world.clock.advance(s=2)
    await world.work()
    assert (await world.job(job_id)).state == "queued"
    await world.check_invariants()


async def test_an_agent_that_is_faster_than_the_answer_finds_its_node(world: World) -> None:
    """The agent calls home while the create call is still unanswered: the node is ready, its machine is known later."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    _job_id, node_id = await _start(world)
    await world.work()
    await world.boot(node_id)
    world.clock.advance(s=2)
    await world.work()
    node = await world.node(node_id)
    assert (node.state, node.provider_ref) == ("ready", world.cloud.of_label(node_id)[0].machine.ref)


async def test_a_result_that_comes_after_the_lease_is_dropped(world: World) -> None:
    """Whoever holds the operation now decides: a late worker writes nothing."""
    _job_id, node_id = await _start(world)

    (operation,) = await claim(world.database, limit=1, lease_s=60, now_ms=world.clock.now_ms())

    class Stealing:
        name = world.cloud.name
        traits = world.cloud.traits

        async def create(self, request: object) -> object:
            machine = await world.cloud.create(request)  # type: ignore[arg-type]  # as built by the test
            async with world.database.transaction() as connection:
                await connection.execute(update(t.provider_operations).values(lease_token="somebody else"))
            return machine

    context = world.control.context
    object.__setattr__(context, "providers", {"cloud": Stealing()})
    await create_machine(context, TokenMint("s" * 32), operation)
    assert (await world.node(node_id)).provider_ref is None
    object.__setattr__(context, "providers", {"cloud": world.cloud})
    await world.restart()
    await world.work()
    assert world.cloud.creates == 1
    assert (await world.node(node_id)).provider_ref is not None


async def test_the_end_of_a_machine_is_over_when_the_provider_says_so(world: World) -> None:
    """A machine that takes its time to end keeps its node terminating, and is paid to the provider's own end time."""
    job_id, node_id = await world.run_on_serverless()
    world.cloud.slow_to_end = 3
    world.clock.advance(s=10)
    await world.report(node_id, "exited", exit_code=0)
    await world.work()
    assert (await world.node(node_id)).state == "terminating"
    for _ in range(5):
        world.clock.advance(s=1)
        await world.work()
    node = await world.node(node_id)
    assert (node.state, node.token_sha256, node.meter_closed) == ("terminated", None, True)
    assert await world.ledger_sum() == world.cloud.bill().micros
    lines = {row.payer: row.amount_micros for row in await world.rows(t.ledger)}
    assert (await world.job(job_id)).spent_micros == lines["run"]
    assert lines["idle"] > 0, "the provider's slow end is not the job's to pay"


async def test_a_terminate_that_fails_is_tried_until_it_works(world: World) -> None:
    """Errors of every kind only make the tries rarer."""
    world.cloud.terminate_faults = [
        Transient("502"),
        OutcomeUnknown("broke"),
        AuthFailed("no"),
        RateLimited("slow", retry_after_ms=20_000),
    ]
    _job_id, node_id = await world.run_on_serverless()
    await world.report(node_id, "exited", exit_code=0)
    for _ in range(60):
        await world.work()
        world.clock.advance(s=1)
    assert (await world.node(node_id)).state == "terminated"
    assert world.cloud.alive() == []
    assert await world.ledger_sum() == world.cloud.bill().micros


async def test_a_node_that_was_never_asked_for_ends_without_a_call(world: World) -> None:
    """Cancelled before the create call: the intent is taken back, and the provider hears nothing of it."""
    job_id, node_id = await _start(world)
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
    await world.work()
    assert (await world.node(node_id)).state == "terminated"
    assert "create" not in world.cloud.calls
    assert "terminate" not in world.cloud.calls


async def test_a_node_whose_create_call_was_lost_is_looked_up_before_it_counts_as_ended(world: World) -> None:
    """Cancelled while the outcome is unknown: the machine is found by its label and ended, and it is paid for."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    world.cloud.listing_lag_ms = 5_000
    job_id, node_id = await _start(world)
    await world.work()
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
    await world.work()
    assert (await world.node(node_id)).state == "terminating"
    for _ in range(8):
        world.clock.advance(s=1)
        await world.work()
    assert world.cloud.alive() == []
    assert (await world.node(node_id)).state == "terminated"
    assert await world.ledger_sum() == world.cloud.bill().micros > 0


async def test_two_claimers_never_get_the_same_operation(world: World) -> None:
    """Claims running side by side share out what is due; a leased one is not given out again."""
    for _ in range(6):
        await world.submit()
    await world.decide()

    async def take() -> list[LeasedOperation]:
        return await claim(world.database, limit=2, lease_s=60, now_ms=world.clock.now_ms())

    taken = [
        operation.operation_id for batch in await asyncio.gather(*(take() for _ in range(5))) for operation in batch
    ]
    assert len(taken) == len(set(taken)) == 6
    assert await take() == []


async def test_a_slow_call_keeps_its_lease(world: World) -> None:
    """Leases are short; a call that outlasts several of them is still nobody else's, and its result counts."""
    _job_id, node_id = await _start(world)
    answer, create = asyncio.Event(), world.cloud.create

    async def slow(request: MachineRequest) -> Machine:
        await answer.wait()
        return await create(request)

    object.__setattr__(world.cloud, "create", slow)
    object.__setattr__(world.control.context.settings, "operation_lease_s", _LEASE_S)
    object.__setattr__(world.control.context.settings, "operation_timeout_s", 300)
    listener = Listener(world.settings.database_url.get_secret_value(), timeout_s=30)
    working = asyncio.create_task(world.control.workers.run(listener))
    try:
        first = await _lease_until(world, after=None)
        second = await _lease_until(world, after=first)
        await _lease_until(world, after=second)
        assert await claim(world.database, limit=5, lease_s=60, now_ms=world.clock.now_ms()) == []
        answer.set()
        async with asyncio.timeout(_PATIENCE_S):
            while (await world.node(node_id)).provider_ref is None:
                await asyncio.sleep(0.01)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert world.cloud.creates == 1


async def _hanging_create(world: World, *, lease_s: float) -> tuple[asyncio.Event, asyncio.Event]:
    """From now on a create call rents its machine, and its answer never comes. Set: in the call; cancelled there."""
    inside, cancelled, create = asyncio.Event(), asyncio.Event(), world.cloud.create

    async def hang(request: MachineRequest) -> Machine:
        machine = await create(request)
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return machine

    object.__setattr__(world.cloud, "create", hang)
    object.__setattr__(world.control.context.settings, "operation_lease_s", lease_s)
    object.__setattr__(world.control.context.settings, "operation_timeout_s", 300)
    return inside, cancelled


@asynccontextmanager
async def _working(world: World) -> AsyncIterator[None]:
    listener = Listener(world.settings.database_url.get_secret_value(), timeout_s=30)
    working = asyncio.create_task(world.control.workers.run(listener))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _lend(world: World, holder: str | None) -> None:
    """Whatever is open is `holder`'s from now on, or nobody's."""
    until = None if holder is None else func.clock_timestamp() + timedelta(hours=1)
    async with world.database.transaction() as connection:
        await connection.execute(update(t.provider_operations).values(lease_token=holder, lease_until=until))


async def test_a_provider_that_never_answers_holds_up_no_other(world: World) -> None:
    """More of its calls wait than a process makes at once; a machine of another provider is had meanwhile."""
    other = FakeProvider(world.clock, name="another")
    other.on_offer = []
    world.other_clouds = [other]
    await world.restart()
    object.__setattr__(world.control.context.settings, "operation_workers", 2)
    calls: list[str] = []

    async def hang(request: MachineRequest) -> Machine:
        calls.append(request.label)
        await asyncio.Event().wait()
        raise AssertionError

    object.__setattr__(world.cloud, "create", hang)
    for _ in range(5):
        await world.submit()
    await world.decide()
    async with _working(world):
        while len(calls) < 2:
            await asyncio.sleep(0.01)
        world.cloud.on_offer, other.on_offer = [], [make_offer("another", "fn", Tier.SERVERLESS, "3", startup_ms=9)]
        wanted = await world.submit()
        await world.decide()
        while not other.of_label(await world.node_of(wanted)):
            await asyncio.sleep(0.01)
    assert len(calls) == 2, "each provider's calls are bounded"


async def test_a_worker_leaves_a_call_as_soon_as_its_lease_is_somebody_elses(world: World) -> None:
    """The call in flight is cancelled and nothing is written of it; whoever holds the operation next looks for the
    machine by its label, and finds it: one create call in all."""
    _job_id, node_id = await _start(world)
    inside, cancelled = await _hanging_create(world, lease_s=_LEASE_S)
    async with _working(world):
        await inside.wait()
        await _lend(world, "somebody else")
        await cancelled.wait()
    node, (operation,) = await world.node(node_id), await world.rows(t.provider_operations)
    assert (node.state, node.provider_ref) == ("requested", None)
    assert (operation.state, operation.lease_token) == ("pending", "somebody else")
    assert operation.error_code == OutcomeUnknown.code, "whoever comes next has to know that a call was made"

    await _lend(world, None)
    await world.work()
    assert world.cloud.calls.count("find") == 1
    assert (world.cloud.creates, len(world.cloud.alive())) == (1, 1)
    assert (await world.node(node_id)).state == "booting"
    await world.check_invariants()


async def test_a_worker_that_cannot_renew_leaves_when_its_lease_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is away nobody can say whose the operation is: the worker goes on until its lease may be
    over, and not for longer."""
    _job_id, node_id = await _start(world)
    tried: list[float] = []

    async def away(*_arguments: object, **_options: object) -> bool:
        tried.append(asyncio.get_running_loop().time())
        raise Unavailable("the database is away")

    monkeypatch.setattr("app.control.operate.renew", away)
    inside, cancelled = await _hanging_create(world, lease_s=_LEASE_S)
    async with _working(world):
        await inside.wait()
        await cancelled.wait()
        assert len(tried) == 2, "the first renewal that fails is no reason to leave"
        monkeypatch.undo()
        while (await world.node(node_id)).state != "booting":
            await asyncio.sleep(0.01)
    assert (world.cloud.creates, len(world.cloud.alive())) == (1, 1)


async def test_an_end_that_is_asked_for_is_left_with_its_lease_too(world: World) -> None:
    """A terminate call in flight is cancelled when the lease is lost, and asked again by the next holder."""
    _job_id, node_id = await world.run_on_serverless()
    await world.report(node_id, "exited", exit_code=0)
    inside, cancelled, terminate = asyncio.Event(), asyncio.Event(), world.cloud.terminate

    async def hang(_ref: str) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    object.__setattr__(world.cloud, "terminate", hang)
    object.__setattr__(world.control.context.settings, "operation_lease_s", _LEASE_S)
    object.__setattr__(world.control.context.settings, "operation_timeout_s", 300)
    async with _working(world):
        await inside.wait()
        await _lend(world, "somebody else")
        await cancelled.wait()
    assert (await world.node(node_id)).state == "terminating"
    object.__setattr__(world.cloud, "terminate", terminate)
    await _lend(world, None)
    await world.work()
    assert (await world.node(node_id)).state == "terminated"


async def _lease_until(world: World, *, after: datetime | None) -> datetime:
    """The end of the only lease, once there is one that ends later than `after`."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            async with world.database.transaction() as connection:
                found = (await connection.execute(select(t.provider_operations.c.lease_until))).scalar_one()
            if found is not None and (after is None or found > after):
                return found
            await asyncio.sleep(0.01)


async def test_an_unconfigured_provider_is_no_dead_end(world: World) -> None:
    """A provider that left the settings: creates are given up, an end is kept for when it is back."""
    job_id, node_id = await _start(world)
    object.__setattr__(world.control.context, "providers", {})
    await world.work()
    assert (await world.job(job_id)).state == "queued"
    assert (await world.node(node_id)).state == "terminating"
    object.__setattr__(world.control.context, "providers", {"cloud": world.cloud})
    world.clock.advance(s=60)
    await world.work()
    assert (await world.node(node_id)).state == "terminated"
