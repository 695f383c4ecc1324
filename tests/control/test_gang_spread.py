"""Where the machines of a job on several are, and how fast they reach each other, is kept and told; and a pool's hosts
are taken from one switch by the loop itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from app.core.model.job import Resources
from app.core.model.node import ProviderTraits
from app.core.model.pool import JOINED
from app.core.topology import SwitchRule
from app.db import tables as t
from app.db.connection import Connection
from app.db.jobs.reads import find_job
from app.services.reading.explain_job import explain_job
from tests.control.defragging import HostsOfPools
from tests.control.test_gangs import MEETING, Gang
from tests.control.world import World
from tests.seeds import resources_json

GIB = 1024**3


async def explained(gang: Gang) -> dict[str, dict[str, Any]]:
    world = gang.world
    async with world.database.transaction() as connection:
        job = await find_job(connection, world.project_id, gang.job_id)
        assert job is not None
        said = await explain_job(connection, world.settings, job, now_ms=world.clock.now_ms())
    return {one.text: dict(one.data) for one in said.because}


async def events(gang: Gang, kind: str) -> list[Any]:
    of = t.job_events.c
    async with gang.world.database.transaction() as connection:
        found = select(of.message, of.data).where(of.job_id == gang.job_id, of.kind == kind)
        return list(await connection.execute(found))


@pytest.fixture
async def gang(world: World) -> Gang:
    made = Gang(world, nodes=3)
    await made.submit()
    await made.rent()
    await world.decide()
    return made


async def test_how_fast_machines_reach_the_first_one_is_kept_told_once_and_explained(gang: Gang) -> None:
    """Reports are repeated, and come in any order; the event is of the moment when all are there."""
    await gang.say(2, "prepared", network_bits_per_s=9_400_000_000)
    await gang.say(0, "prepared", meeting=MEETING, network_bits_per_s=1)
    assert await events(gang, "machines_met") == []
    for _ in range(2):
        await gang.say(1, "prepared", network_bits_per_s=23_100_000_000)
        await gang.say(2, "prepared", network_bits_per_s=5)
    (met,) = await events(gang, "machines_met")
    assert met.message == (
        "all 3 machines are prepared, the others reached machine 0 at 9.4 Gbit/s (machine 2) to 23.1 Gbit/s (machine 1)"
    )
    assert met.data["network_bits_per_s"] == {"1": 23_100_000_000, "2": 9_400_000_000}
    told = await explained(gang)
    (said,) = [text for text in told if text.startswith("before its code ran")]
    assert told[said]["network_bits_per_s"] == met.data["network_bits_per_s"]
    assert not [text for text in told if "switch" in text], "a cloud's machines are under none that anybody named"


async def test_agents_of_a_release_before_measure_nothing_and_begin_all_the_same(gang: Gang) -> None:
    for rank in range(3):
        await gang.say(rank, "prepared", meeting=MEETING if rank == 0 else None)
    assert [one.message for one in await events(gang, "machines_met")] == ["all 3 machines are prepared"]
    assert await gang.wants() == [None, None, None]
    assert not [text for text in await explained(gang) if "reached" in text]


async def test_switches_of_hosts_are_explained_as_their_labels_say_now(gang: Gang) -> None:
    world = gang.world
    nodes = await gang.nodes()
    async with world.database.transaction() as connection:
        await _add_hosts(connection, {"host_0": "leaf-1", "host_1": "leaf-1", "host_2": ""})
        for number, node_id in enumerate(nodes):
            row = {"provider": JOINED, "host": f"host_{number}/A100"}
            await connection.execute(update(t.nodes).where(t.nodes.c.id == node_id).values(**row))
    told = await explained(gang)
    (said,) = [text for text in told if "machines are spread" in text]
    assert "2 under leaf-1, 1 under one that nobody says (entropy 0.64)" in said
    assert not [text for text in told if "chosen by the rule" in text], "a cloud's machines were rented for it"
    async with world.database.transaction() as connection:
        chosen = {"switches_chosen_by": "literal"}
        renting = t.job_events.c.kind == "node_rented"
        await connection.execute(update(t.job_events).where(renting).values(data=chosen))
        await connection.execute(update(t.hosts).values(labels={"switch": "leaf-1"}))
    told = await explained(gang)
    assert "all 3 machines are under switch leaf-1" in told
    assert [text for text in told if text.startswith("its switches were chosen by the rule literal")]
    async with world.database.transaction() as connection:
        await connection.execute(t.hosts.delete())
    assert any("nobody says" in text for text in await explained(gang)), "hosts that left say nothing"


class NetworkedHosts(HostsOfPools):
    def traits(self) -> tuple[ProviderTraits, ...]:
        return tuple(replace(one, is_networked=True) for one in super().traits())


async def _add_hosts(connection: Connection, switches: dict[str, str], racks: dict[str, str] | None = None) -> None:
    """Hosts of pool `lab`, with one GPU each, by the switch, and the rack, that their labels say."""
    pool = {"name": "lab", "launcher": JOINED, "price_micros": 0, "created_ms": 0}
    await connection.execute(insert(t.pools).values(**pool))
    gpu = {"index": 0, "type": "A100", "memory_bytes": 40 * GIB}
    for host_id, switch in switches.items():
        row = {"id": host_id, "pool": "lab", "name": host_id, "nonce_sha256": host_id.encode(), "boot_id": ""}
        row |= {"facts": {"cpus": 8, "memory_bytes": 64 * GIB, "gpus": [gpu]}, "joined_ms": 0, "heard_ms": 2**50}
        await connection.execute(insert(t.hosts).values(**row, labels=_labels(switch, (racks or {}).get(host_id, ""))))


def _labels(switch: str, rack: str) -> dict[str, str]:
    return {name: said for name, said in (("switch", switch), ("rack", rack)) if said}


async def test_the_loop_takes_hosts_of_one_rack(world: World) -> None:
    """No switch has two of them."""
    hosts = NetworkedHosts(world.clock, name=JOINED)
    hosts.on_offer = world.cloud.on_offer = []
    world.other_clouds = [hosts]
    await world.restart()
    switches = {"host_a": "leaf-1", "host_b": "leaf-2", "host_c": "leaf-3"}
    async with world.database.transaction() as connection:
        await _add_hosts(connection, switches, {"host_a": "r1", "host_b": "r2", "host_c": "r1"})
    job_id = await world.submit(resources=resources_json(Resources(nodes=2)), saves_ms=1)
    await world.decide()
    rented = {node.host for node in await world.rows(t.nodes) if node.rented_for_job_id == job_id}
    assert rented == {"host_a/A100", "host_c/A100"}


@pytest.mark.parametrize("labelled", [True, False])
async def test_the_loop_takes_hosts_under_one_switch(world: World, *, labelled: bool) -> None:
    """By the names of hosts alone, a job on two machines would be under both."""
    hosts = NetworkedHosts(world.clock, name=JOINED)
    hosts.on_offer = world.cloud.on_offer = []
    world.other_clouds = [hosts]
    await world.restart()
    switches = {"host_a": "leaf-1", "host_b": "leaf-2", "host_c": "leaf-1", "host_d": "leaf-3"}
    async with world.database.transaction() as connection:
        await _add_hosts(connection, switches if labelled else dict.fromkeys(switches, ""))
    job_id = await world.submit(resources=resources_json(Resources(nodes=2)), saves_ms=1)
    await world.decide()
    rented = {node.host for node in await world.rows(t.nodes) if node.rented_for_job_id == job_id}
    assert rented == {f"host_{one}/A100" for one in ("ac" if labelled else "ab")}


async def test_the_loop_keeps_machines_apart_as_the_template_says_and_tells_whom_it_keeps_waiting(world: World) -> None:
    """Three hosts in two racks: two of them for a job of which one may be in a rack; a job on three waits."""
    own = NetworkedHosts(world.clock, name=JOINED)
    own.on_offer = world.cloud.on_offer = []
    world.other_clouds = [own]
    await world.restart()
    async with world.database.transaction() as connection:
        await _add_hosts(
            connection,
            {"host_a": "leaf-1", "host_b": "leaf-1", "host_c": "leaf-2"},
            {"host_a": "r1", "host_b": "r1", "host_c": "r2"},
        )
    asked = {"affinity": {"most_per_rack": 1, "most_per_switch": None}, "saves_ms": 1}
    waits = await world.submit(resources=resources_json(Resources(nodes=3)), deadline_ms=1, **asked)
    job_id = await world.submit(resources=resources_json(Resources(nodes=2)), deadline_ms=2, **asked)
    await world.decide()
    rented = {node.host for node in await world.rows(t.nodes) if node.rented_for_job_id == job_id}
    assert rented == {"host_a/A100", "host_c/A100"}
    (told,) = [row.wait_reason for row in await world.rows(t.jobs) if row.id == waits]
    assert (
        "at most 1 in one rack: pool lab has 3 of them free now (A100), and a job may have 2 of them together" in told
    )


@pytest.mark.parametrize(("rule", "hosts"), [(SwitchRule.FEWEST, "bc"), (SwitchRule.LITERAL, "ab")])
async def test_the_loop_chooses_switches_by_the_rule_that_is_set_and_explain_says_which(
    world: World, rule: SwitchRule, hosts: str
) -> None:
    """Algorithm 2 as printed begins with a switch of one host."""
    world.settings = world.settings.model_copy(update={"gang_switches": rule})
    own = NetworkedHosts(world.clock, name=JOINED)
    own.on_offer = world.cloud.on_offer = []
    world.other_clouds = [own]
    await world.restart()
    async with world.database.transaction() as connection:
        await _add_hosts(connection, {"host_a": "leaf-1", "host_b": "leaf-2", "host_c": "leaf-2", "host_d": "leaf-3"})
    job_id = await world.submit(resources=resources_json(Resources(nodes=2)), saves_ms=1)
    await world.decide()
    rented = [node for node in await world.rows(t.nodes) if node.rented_for_job_id == job_id]
    assert {node.host for node in rented} == {f"host_{one}/A100" for one in hosts}
    events = [row for row in await world.rows(t.job_events) if row.kind == "node_rented"]
    assert [row.data["switches_chosen_by"] for row in events] == [rule.value]
