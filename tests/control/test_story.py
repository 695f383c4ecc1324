"""The story of a job, from submission to the last cent."""

from __future__ import annotations

from app.core.model.node import Tier
from app.db import tables as t
from tests.control.fake_provider import make_offer
from tests.control.world import World


async def test_a_long_job_moves_from_serverless_to_a_rented_node_and_every_cent_is_accounted_for(world: World) -> None:
    """Submit, start, run, demote at F, wait, provision, assign, finish, release: the ledger equals the bill."""
    job_id, serverless = await world.run_on_serverless()
    assert (await world.job(job_id)).state == "running"

    world.clock.advance(s=301)
    await world.beat(serverless)
    await world.meter()
    await world.decide()
    assert (await world.job(job_id)).state == "checkpointing"
    await world.report(serverless, "exited", exit_code=0, saved_after_stop=True)
    await world.set_job(job_id, checkpoint_step=40)
    assert (await world.job(job_id)).state == "waiting"

    await world.decide()
    await world.work()
    assert (await world.node(serverless)).state == "terminated"
    rented = (await world.newest_node()).id
    assert rented != serverless
    await world.decide()
    assert rented in (await world.job(job_id)).wait_reason

    world.clock.advance(s=30)
    await world.boot(rented)
    await world.decide()
    assert await world.node_of(job_id) == rented
    assert (await world.job(job_id)).wait_reason is None
    await world.report(rented, "running")
    world.clock.advance(s=1000)
    await world.report(rented, "exited", exit_code=0)
    job = await world.job(job_id)
    assert (job.state, job.end_reason, job.moves) == ("succeeded", "finished", 1)

    await world.decide()
    await world.work()
    assert (await world.node(rented)).state == "terminated"
    assert world.cloud.alive() == []
    assert await world.ledger_sum() == world.cloud.bill().micros > 0
    assert (await world.job(job_id)).spent_micros <= world.cloud.bill().micros
    assert all(node.meter_closed for node in await world.rows(t.nodes))
    await world.check_invariants()


async def test_the_events_of_a_start_tell_why_and_where(world: World) -> None:
    """The first decision is told with the run, the node, the price and the epoch."""
    job_id = await world.submit()
    await world.decide()
    event = next(row for row in await world.rows(t.job_events) if row.kind == "starting")
    assert "starts on cloud A100 at $2.10/h" in event.message
    assert event.data["epoch"] == 1
    assert event.data["node_id"] == await world.node_of(job_id)
    assert event.data["price_micros_per_hour"] == 2_100_000


async def test_two_jobs_share_a_node_with_two_gpus(world: World) -> None:
    """A job is assigned to the free GPU of a node that already runs another."""
    jobs = [await world.submit(start="when-cheap") for _ in range(2)]
    world.cloud.on_offer = [make_offer("cloud", "market-2", Tier.MARKETPLACE, "1.00", startup_ms=1000, gpus=2)]
    await world.decide()
    await world.work()
    node = await world.newest_node()
    await world.boot(node.id)
    await world.decide()
    assert [await world.node_of(job_id) for job_id in jobs] == [node.id, node.id]
    held = sorted(row.gpu_indices for row in await world.rows(t.allocations))
    assert held == [[0], [1]]
