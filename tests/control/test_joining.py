"""Which machine becomes the node: exactly one, whatever the provider made of our create calls."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.control.create_machine import _checks
from app.core.model.node import Tier
from app.db import tables as t
from app.db.nodes.lifecycle import read_node
from app.errors import Conflict, Unauthenticated
from app.ports.provider import MachineRequest
from app.services.nodes.join_node import REFUSED
from tests.control.fake_provider import Fault, RentedMachine
from tests.control.world import World


async def _rented(world: World) -> tuple[str, RentedMachine]:
    """A job's node, and its one machine, which has not called yet."""
    job_id = await world.submit()
    await world.decide()
    node_id = await world.node_of(job_id)
    await world.work()
    (rented,) = world.cloud.of_label(node_id)
    return node_id, rented


def _twin(rented: RentedMachine, ref: str = "twin") -> RentedMachine:
    """Another machine that was started with the same order."""
    return replace(rented, machine=replace(rented.machine, ref=ref))


async def _refusals(world: World, node_id: str) -> list[str]:
    rows = await world.rows(t.node_events)
    return [row.message for row in rows if row.node_id == node_id and row.kind == REFUSED]


async def test_of_many_machines_with_one_token_one_gets_in(world: World) -> None:
    """They ask all at once: one is the node, the others are refused, and the node's events say so."""
    node_id, rented = await _rented(world)
    machines = [rented, *(_twin(rented, f"twin-{number}") for number in range(5))]
    answers = await asyncio.gather(*(world.join(machine) for machine in machines), return_exceptions=True)
    tokens = [answer for answer in answers if isinstance(answer, str)]
    refused = [answer for answer in answers if isinstance(answer, Conflict)]
    assert (len(tokens), len(refused)) == (1, 5)
    assert len(await _refusals(world, node_id)) == 5
    winner = machines[answers.index(tokens[0])]
    assert await world.join(winner) == tokens[0], "the reply may be lost: the same machine gets it again"


async def test_whoever_knows_the_token_cannot_fill_the_log(world: World) -> None:
    """Refusals are counted; the first few are told."""
    node_id, rented = await _rented(world)
    await world.join(rented)
    for _ in range(12):
        with pytest.raises(Conflict, match="another machine has joined"):
            await world.join(_twin(rented))
    assert len(await _refusals(world, node_id)) == 5
    (row,) = await world.rows(t.node_joins)
    assert row.refusals == 12


async def test_a_join_token_is_good_until_its_machine_should_be_up(world: World) -> None:
    """Unused, it ends, not before the provider's deadline; used, it is the machine's for as long as the node lives."""
    node_id, rented = await _rented(world)
    (row,) = await world.rows(t.node_joins)
    node = await world.node(node_id)
    assert row.expires_ms > node.startup_deadline_ms
    assert row.expires_ms == world.clock.now_ms() + 900_000
    world.clock.advance(s=901)
    with pytest.raises(Unauthenticated, match="not used in time"):
        await world.join(rented)
    assert len(await _refusals(world, node_id)) == 1

    other_id, other = await _rented(world)
    token = await world.join(other)
    world.clock.advance(s=1000)
    assert await world.join(other) == token
    assert await _refusals(world, other_id) == []


async def test_a_short_lifetime_never_undercuts_the_start_up_deadline(world: World) -> None:
    """However the setting is chosen, a machine that starts in time is let in."""
    world.settings.join_token_ttl_s = 1
    node_id, rented = await _rented(world)
    node = await world.node(node_id)
    world.clock.advance(ms=node.startup_deadline_ms - world.clock.now_ms())
    assert await world.join(rented)


async def test_nobody_joins_a_node_that_is_given_back(world: World) -> None:
    """The machine that was the node is refused as well: replaying what it once sent gains nothing."""
    _job_id, node_id = await world.run_on_serverless()
    (rented,) = world.cloud.of_label(node_id)
    await world.report(node_id, "exited", exit_code=0)
    for _ in range(2):
        for machine in (rented, _twin(rented)):
            with pytest.raises(Unauthenticated):
                await world.join(machine)
        await world.work()
    assert (await world.node(node_id)).state == "terminated"
    assert (await world.node(node_id)).token_sha256 is None


@pytest.mark.parametrize("shown", ["", "x" * 64, "ü"])
async def test_a_token_that_we_never_gave_joins_nothing(world: World, shown: str) -> None:
    """Nothing is learned from the answer, and nothing is written."""
    _node_id, rented = await _rented(world)
    rented.join_token = shown
    with pytest.raises(Unauthenticated):
        await world.join(rented)
    assert [row.nonce_sha256 for row in await world.rows(t.node_joins)] == [None]


async def test_a_machine_whose_create_reply_was_lost_joins(world: World) -> None:
    """Whether it calls before it is found in the listing or after."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    node_id, rented = await _rented(world)
    assert (await world.node(node_id)).state == "unknown"
    await world.boot(node_id)
    world.clock.advance(s=2)
    await world.work()
    assert world.cloud.creates == 1
    node = await world.node(node_id)
    assert (node.state, node.provider_ref) == ("ready", rented.machine.ref)


async def test_the_late_machine_of_a_repeated_create_is_refused(world: World) -> None:
    """The first call's machine turns up when the second's is rented: it is not let in, though nobody has joined yet,
    and the one that the provider told us of is."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    world.cloud.listing_lag_ms = 60_000  # longer than the provider's grace
    node_id, late = await _rented(world)
    for _ in range(10):
        world.clock.advance(s=3)
        await world.work()
    assert world.cloud.creates == 2
    _, told = world.cloud.of_label(node_id)
    assert (await world.node(node_id)).provider_ref == told.machine.ref
    assert told.join_token != late.join_token
    with pytest.raises(Conflict, match="later create call"):
        await world.join(late)
    assert await world.join(told)
    (message,) = await _refusals(world, node_id)
    assert "later create call" in message
    world.clock.advance(s=60)
    await world.sweep()
    await world.work()
    assert world.cloud.alive() == [told.machine]


async def test_no_second_create_once_a_machine_has_joined(world: World) -> None:
    """It is there, only not listed yet: another one would be paid for in vain."""
    world.cloud.create_faults = [Fault.LOST_REPLY]
    world.cloud.listing_lag_ms = 25_000
    node_id, rented = await _rented(world)
    await world.join(rented)  # and its first report is still on the way
    for _ in range(12):
        world.clock.advance(s=3)
        await world.restart()  # whose leases have run out
        await world.work()
    assert world.cloud.creates == 1
    assert (await world.node(node_id)).provider_ref == rented.machine.ref


async def test_an_order_holds_no_key_and_no_token_that_lasts(world: World) -> None:
    """What a provider's console shows: an address, a hash, and a token that is worthless once used."""
    seen: list[MachineRequest] = []
    create = world.cloud.create

    async def watched(request: MachineRequest) -> object:
        seen.append(request)
        return await create(request)

    world.cloud.create = watched  # type: ignore[method-assign, assignment]  # looked at on its way
    node_id, rented = await _rented(world)
    token = await world.join(rented)
    (request,) = seen
    assert [name for name, _ in request.bootstrap] == [
        "ALLPASS_URL",
        "ALLPASS_AGENT_SHA256",
        "ALLPASS_JOIN_TOKEN",
        "ALLPASS_AGENT_ALONE_IDLE_S",
        "ALLPASS_AGENT_ALONE_TRAINING_S",
        "ALLPASS_AGENT_GPU_LOOK_S",
    ]
    assert request.label == node_id
    for hidden in (token, world.settings.secret_key.get_secret_value()):
        assert hidden not in repr(request)


@pytest.mark.parametrize(
    ("is_sandbox", "allowed", "told"),
    [
        (False, False, {}),
        (True, False, {"ALLPASS_AGENT_SINGLE_RUN": "1"}),
        (False, True, {"ALLPASS_AGENT_CODE_AS_ROOT": "1"}),
    ],
)
async def test_a_machine_is_told_why_code_may_run_as_root_there(
    world: World, monkeypatch: pytest.MonkeyPatch, is_sandbox: bool, allowed: bool, told: dict[str, str]
) -> None:
    """Because it is a sandbox of one run, as its provider says, or because the operator allows it; else nothing is."""
    seen: list[MachineRequest] = []
    create, traits = world.cloud.create, world.cloud.traits()

    async def watched(request: MachineRequest) -> object:
        seen.append(request)
        return await create(request)

    monkeypatch.setattr(world.cloud, "create", watched)
    monkeypatch.setattr(world.cloud, "traits", lambda: tuple(replace(one, is_sandbox=is_sandbox) for one in traits))
    world.settings = world.settings.model_copy(update={"user_code_as_root": allowed})
    await world.restart()
    await _rented(world)
    (request,) = seen
    named = {"ALLPASS_AGENT_SINGLE_RUN", "ALLPASS_AGENT_CODE_AS_ROOT"}
    assert {name: value for name, value in request.bootstrap if name in named} == told


async def test_a_changed_secret_locks_no_machine_out(world: World) -> None:
    """A machine that was ordered under the old one joins under the new one."""
    node_id, rented = await _rented(world)
    world.settings = world.settings.model_copy(update={"secret_key": type(world.settings.secret_key)("n" * 40)})
    await world.boot(node_id)
    assert (await world.node(node_id)).state == "ready"
    assert await world.join(rented)


@pytest.mark.parametrize(
    ("kept", "mbps", "tiers", "told"),
    [
        (slice(1, None), 500, None, {"ALLPASS_AGENT_GPU_CHECK": "1", "ALLPASS_AGENT_PROBE_BYTES": "8000000"}),
        (slice(1, None), 0, None, {"ALLPASS_AGENT_GPU_CHECK": "1"}),
        (slice(0, 1), 0, None, {}),  # serverless: a start takes seconds
        (slice(0, 1), 0, [Tier.SERVERLESS], {"ALLPASS_AGENT_GPU_CHECK": "1"}),
        (slice(1, None), 0, [], {}),
    ],
)
async def test_a_machine_is_told_what_to_find_out_of_itself(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    kept: slice,
    mbps: int,
    tiers: list[Tier] | None,
    told: dict[str, str],
) -> None:
    """By its tier, and by what its offer promises."""
    if tiers is not None:
        monkeypatch.setattr(world.settings, "gpu_check_tiers", tiers)
    world.cloud.on_offer = [replace(offer, download_mbps=mbps) for offer in world.cloud.on_offer[kept]]
    seen: list[MachineRequest] = []
    create = world.cloud.create

    async def watched(request: MachineRequest) -> object:
        seen.append(request)
        return await create(request)

    world.cloud.create = watched  # type: ignore[method-assign, assignment]  # looked at on its way
    await world.submit()
    await world.decide()
    await world.work()
    found = dict(seen[0].bootstrap)
    assert {
        name: found[name] for name in ("ALLPASS_AGENT_GPU_CHECK", "ALLPASS_AGENT_PROBE_BYTES") if name in found
    } == told


async def test_an_image_that_a_job_brings_is_not_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is code of a user's: hosts are not remembered on its word."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    await world.submit()
    await world.decide()
    async with world.database.transaction() as connection:
        node = await read_node(connection, (await world.newest_node()).id)
    assert node is not None
    monkeypatch.setattr(world.settings, "node_image", f"{node.image}-of-ours")
    assert dict(_checks(world.control.heartbeats._context, node)) == {}
    monkeypatch.setattr(world.settings, "node_image", node.image)
    assert dict(_checks(world.control.heartbeats._context, node)) == {"ALLPASS_AGENT_GPU_CHECK": "1"}
