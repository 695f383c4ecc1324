"""GPUs of several speeds in the live loop: what a job states of itself, what its app has shown, and what a run measures
decide where it goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core import codec
from app.core.gpu_speeds import GpuSpeeds
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.snapshot import JobView
from app.core.policies import policy_named
from app.db import tables as t
from app.db.decisions.snapshots import freeze, read_snapshot
from tests.control.fake_provider import make_offer
from tests.control.world import World

HOUR_MS = 3_600_000
STATED = GpuSpeeds("a100", (("l4", 4_000), ("t4", 8_000)))


@pytest.fixture
def several(world: World) -> World:
    """A market of A100s and L4s, decided upon by `allpass`: an hour of an L4 is cheaper, an hour of work is not."""
    world.control.loop._policy = policy_named("allpass")
    world.cloud.on_offer = [
        make_offer(world.cloud.name, "fn", Tier.SERVERLESS, "2.10", startup_ms=3_000),
        make_offer(world.cloud.name, "a100", Tier.MARKETPLACE, "0.80", startup_ms=30_000),
        l4(world, "0.30"),
    ]
    return world


def l4(world: World, usd_hour: str) -> Any:
    return replace(make_offer(world.cloud.name, "l4", Tier.MARKETPLACE, usd_hour, startup_ms=30_000), gpu_type="L4")


async def submit(world: World, hours: float, due_hours: float, **changes: Any) -> str:
    """A job of steps of a second on an A100, which may have any GPU."""
    stated = {"total_steps": round(hours * 3_600), "predicted_step_ms": 1_000.0, "gpu_speeds": codec.encode(STATED)}
    due_ms = world.clock.now_ms() + round(due_hours * HOUR_MS)
    return await world.submit(deadline_ms=due_ms, start="auto", **(stated | changes))


async def view(world: World, job_id: str) -> JobView:
    async with world.database.transaction() as connection:
        await freeze(connection)
        seen = await read_snapshot(connection, world.clock.now_ms(), world.control.context.traits(), 10**9)
    return next(job for job in seen.jobs if job.job_id == job_id)


async def rented_for(world: World, job_id: str) -> str:
    """The GPU that the next decision rents for it."""
    plan = (await world.decide()).plan
    return next(a.offer.gpu_type for a in plan.actions if a.kind == "provision" and a.for_job_id == job_id)


async def test_what_costs_least_for_the_work_is_rented(several: World) -> None:
    job_id = await submit(several, 2, 100)
    assert (await view(several, job_id)).speeds == STATED
    assert await rented_for(several, job_id) == "A100"


@pytest.mark.parametrize(("due_hours", "gpu_type"), [(11, "L4"), (9, "A100")])
async def test_a_bargain_that_is_late_is_none(several: World, due_hours: int, gpu_type: str) -> None:
    """Two hours of an A100 are eight of an L4, ten to be sure."""
    several.cloud.on_offer[-1] = l4(several, "0.10")
    assert await rented_for(several, await submit(several, 2, due_hours)) == gpu_type


async def test_a_job_on_its_node_leaves_for_what_is_cheaper_by_the_work_alone(several: World) -> None:
    """It trains on an A100 for hours. An L4 for $0.30 does not tempt it, one for $0.10 does; there its steps take four
    times as long, and that is what is known of it from then on."""
    job_id = await submit(several, 40, 1_000)
    assert await rented_for(several, job_id) == "A100"
    await several.work()
    first = (await several.newest_node()).id
    several.clock.advance(s=30)
    await several.boot(first)
    await several.decide()
    await several.report(first, "running")
    several.clock.advance(s=5 * 3_600)
    await several.beat(first)
    told = await view(several, job_id)
    assert told.speeds == replace(STATED, trains_there=True)
    assert told.total_run_ms == 40 * HOUR_MS
    assert [action.kind for action in (await several.decide()).plan.actions] == []
    several.cloud.on_offer[-1] = l4(several, "0.10")
    assert await rented_for(several, job_id) == "L4"
    await several.work()
    second = (await several.newest_node()).id
    several.clock.advance(s=30)
    await several.boot(second)
    await several.beat(first)
    await several.decide()
    await several.report(second, "prepared")
    await several.report(first, "exited", exit_code=0, saved_after_stop=True)
    await several.report(second, "running")
    told = await view(several, job_id)
    assert told.speeds == STATED.seen_from("L4", trains_there=True)
    assert told.total_run_ms == 160 * HOUR_MS
    await several.report(second, "exited", exit_code=0)
    await several.decide()
    await several.work()
    assert (await several.job(job_id)).state == "succeeded"
    assert several.cloud.alive() == []
    await several.check_invariants()


async def test_a_prediction_that_was_wrong_is_found_out(several: World) -> None:
    """Four times as long on an L4, it was said; it is eight times. What the job itself has measured on both counts from
    then on, and it goes back to where its work costs less."""
    several.cloud.on_offer[-1] = l4(several, "0.15")
    job_id = await submit(several, 40, 1_000)
    on = {}
    for gpu_type, step_ms in (("L4", 8_000), ("A100", 1_000)):
        assert await rented_for(several, job_id) == gpu_type
        await several.work()
        on[gpu_type] = (await several.newest_node()).id
        several.clock.advance(s=30)
        await several.boot(on[gpu_type])
        if gpu_type == "A100":
            await several.beat(on["L4"])
        await several.decide()
        if gpu_type == "A100":
            await several.report(on["A100"], "prepared")
            await several.report(on["L4"], "exited", exit_code=0, saved_after_stop=True)
        await several.report(on[gpu_type], "running", step=10)
        await measured(several, job_id, step_ms)
        several.clock.advance(s=5 * 3_600)
        await several.beat(on[gpu_type])
        if gpu_type == "L4":
            # It looks as if the whole job took twice as long as stated, and an A100 a quarter of that.
            several.cloud.on_offer[1] = replace(several.cloud.on_offer[1], price_per_hour=Money.usd("0.50"))
    told = await view(several, job_id)
    assert told.speeds is not None
    assert dict(told.speeds.times)["l4"] == 8_000
    await several.report(on["A100"], "exited", exit_code=0)
    await several.decide()
    await several.work()
    assert several.cloud.alive() == []


async def measured(world: World, job_id: str, step_ms: int) -> None:
    """Two points of the present run."""
    job = await world.job(job_id)
    now_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        first = 100 * job.epoch
        for step, at_ms in ((first, now_ms), (first + 10, now_ms + 10 * step_ms)):
            point = {"job_id": job_id, "epoch": job.epoch, "step": step, "at_ms": at_ms, "values": {"loss": 1.0}}
            await connection.execute(t.metric_points.insert().values(**point))


async def test_what_an_app_has_shown_counts_for_its_next_job(several: World) -> None:
    """A script that states nothing: by its earlier jobs an L4 takes a third longer, and costs less in all."""
    for gpu_type, run_ms in (("A100", 2.0 * HOUR_MS), ("L4", 2.6 * HOUR_MS)):
        row = {"app_id": several.app[0], "gpu_type": gpu_type, "samples": 60, "run_ms": run_ms, "updated_ms": 1}
        async with several.database.transaction() as connection:
            await connection.execute(t.run_history.insert().values(row))
    job_id = await submit(several, 0, 100, total_steps=None, predicted_step_ms=None, gpu_speeds=None)
    told = await view(several, job_id)
    assert told.speeds is not None
    assert (told.speeds.gpu_type, dict(told.speeds.times)) == ("l4", {"a100": pytest.approx(770, abs=30)})
    assert await rented_for(several, job_id) == "L4"


async def test_whoever_names_a_type_has_that_one(several: World) -> None:
    """However long it takes there."""
    resources = codec.encode((await view(several, await submit(several, 2, 100))).resources) | {"gpu_type": "L4"}
    job_id = await submit(several, 2, 100, resources=resources)
    assert (await view(several, job_id)).speeds is None
    assert (await view(several, job_id)).total_run_ms == 8 * HOUR_MS
    assert await rented_for(several, job_id) == "L4"


async def test_speeds_that_cannot_be_read_harm_no_other_job(several: World) -> None:
    """A row that a newer release wrote, or somebody by hand."""
    bad = await submit(several, 2, 100, gpu_speeds={"gpu_type": 7})
    good = await submit(several, 2, 100)
    assert await rented_for(several, good) == "A100"
    assert (await several.job(bad)).state == "queued"
