"""A machine that its provider lists as stopped runs nothing, and costs its disk until it is ended."""

from __future__ import annotations

from dataclasses import replace

from app.ports.provider import MachineStatus
from tests.control.world import World


def stop(world: World) -> str:
    """The one machine there is stops, at its company's side."""
    (rented,) = world.cloud.rented.values()
    rented.machine = replace(rented.machine, status=MachineStatus.STOPPED, detail="OCI runtime create failed")
    return rented.machine.ref


async def test_a_start_that_fails_is_given_up_at_once(world: World) -> None:
    """The job goes on with the next offer without waiting for the deadline, and the machine is ended."""
    job_id = await world.submit()
    await world.decide()
    await world.work()
    node = await world.newest_node()
    assert node.state == "booting"
    ref = stop(world)
    await world.sweep()
    await world.work()
    assert world.cloud.told_to_end == [ref]
    assert (await world.node(node.id)).state == "terminated"
    assert (await world.job(job_id)).state == "queued"
    assert "OCI runtime create failed" in (await world.node(node.id)).end_message


async def test_a_machine_that_stops_under_its_run_is_lost_as_soon_as_it_is_silent(world: World) -> None:
    """Outbid: the agent falls silent, the provider says stopped, the job goes on elsewhere without more waiting."""
    job_id, node_id = await world.run_on_serverless()
    await world.check_heartbeats()
    ref = stop(world)
    for _ in range(4):
        world.clock.advance(s=10)
        await world.check_heartbeats()
    assert (await world.node(node_id)).state == "unreachable"
    await world.check_heartbeats()
    await world.work()
    assert (await world.node(node_id)).state == "terminated"
    assert world.cloud.told_to_end == [ref]
    assert (await world.job(job_id)).state in {"waiting", "queued"}
