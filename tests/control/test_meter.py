"""The ledger while machines run, and the limits that users set."""

from __future__ import annotations

from collections import Counter

from app.core.model.money import Money
from app.db import tables as t
from tests.control.world import World


async def test_the_meter_never_runs_ahead_of_what_is_known(world: World) -> None:
    """Lines are written up to the newest heartbeat, not up to now, and jobs' spending follows."""
    job_id, node_id = await world.run_on_serverless()
    world.clock.advance(s=36)
    await world.beat(node_id)
    world.clock.advance(s=100)
    await world.meter()
    job = await world.job(job_id)
    assert Money(job.spent_micros) == Money.usd("0.021")
    assert await world.ledger_sum() == job.spent_micros
    before = job.row_version
    await world.meter()
    assert (await world.job(job_id)).spent_micros == job.spent_micros
    assert (await world.job(job_id)).row_version == before


async def test_boot_is_paid_by_the_job_it_was_rented_for_and_idle_by_the_project(world: World) -> None:
    """Every stretch has its payer, and the sum is the bill."""
    world.cloud.on_offer = world.cloud.on_offer[1:]
    job_id = await world.submit()
    await world.decide()
    await world.work()
    node_id = (await world.newest_node()).id
    world.clock.advance(s=50)
    await world.boot(node_id)
    world.clock.advance(s=100)
    await world.decide()
    await world.report(node_id, "running")
    world.clock.advance(s=200)
    await world.report(node_id, "exited", exit_code=0)
    world.clock.advance(s=25)
    await world.decide()
    await world.work()
    per_s = 200
    paid: Counter[tuple[str, str | None]] = Counter()
    for line in await world.rows(t.ledger):
        paid[line.payer, line.job_id] += line.amount_micros
    assert paid == {("boot", job_id): 50 * per_s, ("idle", None): 125 * per_s, ("run", job_id): 200 * per_s}
    assert await world.ledger_sum() == world.cloud.bill().micros == 375 * per_s
    assert (await world.job(job_id)).spent_micros == 250 * per_s


async def test_a_job_that_has_cost_its_limit_saves_leaves_and_is_paused(world: World) -> None:
    """Reaching max_cost loses nothing: the job keeps its checkpoint and waits for a higher limit."""
    job_id, node_id = await world.run_on_serverless()
    await world.set_job(job_id, max_cost_micros=50_000)
    world.clock.advance(s=60)
    await world.beat(node_id)
    await world.meter()
    assert (await world.job(job_id)).state == "running"
    world.clock.advance(s=30)
    await world.beat(node_id)
    await world.meter()
    assert (await world.job(job_id)).state == "checkpointing"
    await world.report(node_id, "exited", exit_code=0, saved_after_stop=True)
    job = await world.job(job_id)
    assert (job.state, job.pause_reason) == ("paused", "cost_cap")
    assert "$0.05" in job.wait_reason
    await world.decide()
    await world.work()
    assert world.cloud.alive() == []


async def test_a_start_that_is_dearer_than_the_limit_is_called_off_before_code_runs(world: World) -> None:
    """The limit is reached while the machine prepares: the run ends, the job pauses."""
    job_id = await world.submit()
    await world.decide()
    await world.work()
    node_id = await world.node_of(job_id)
    await world.boot(node_id)
    await world.set_job(job_id, max_cost_micros=1)
    world.clock.advance(s=5)
    await world.beat(node_id)
    await world.meter()
    assert (await world.job(job_id)).state == "paused"
    await world.work()
    assert world.cloud.alive() == []
