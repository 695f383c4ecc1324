"""A GPU that a job gives up is given to another job by the next decision, and no sooner."""

from __future__ import annotations

from sqlalchemy import select

from allpass.wire.agent import GpusTold, RunReport
from app.core.model.job import JobState, Resources
from app.core.model.node import NodeState
from app.db.tables import allocations, runs
from app.services.runs.apply_run_reports import apply_run_reports
from app.services.sizes.resize_job import resize_job
from tests.control.world import World
from tests.seeds import resources_json, seed_app, seed_job, seed_node, seed_run


async def test_what_is_given_up_is_taken_by_who_waits(world: World) -> None:
    """Once its training has left it; who takes it is beside who gave it."""
    app = await app_of(world)
    async with world.database.transaction() as connection:
        node_id = await seed_node(connection, world.project_id, gpu_count=4, cpus=48)
        four = resources_json(Resources(gpus_min=4, gpus_max=4))
        held = {"state": JobState.RUNNING, "epoch": 1, "resources": four, "labels": {"lends": "one"}}
        lender = await seed_job(connection, world.project_id, app, **held)
        run_id = await seed_run(connection, world.project_id, lender, node_id, gpu_indices=(0, 1, 2, 3))
    await world.decide()
    await told(world, node_id, run_id, lender, 0, 1, 2, 3)
    async with world.database.transaction() as connection:
        affinity = {"affinity": {"lends": "one"}}
        taker = await seed_job(connection, world.project_id, app, state=JobState.QUEUED, affinity=affinity)
    await world.decide()
    assert (await world.job(taker)).state == JobState.QUEUED
    async with world.database.transaction() as connection:
        await resize_job(connection, world.ids, world.project_id, lender, 3, now_ms=world.clock.ms)
    await world.decide()
    assert (await world.job(taker)).state == JobState.QUEUED
    await told(world, node_id, run_id, lender, 0, 1, 2)
    await world.decide()
    assert (await world.job(taker)).state == JobState.STARTING, (await world.job(taker)).wait_reason
    async with world.database.transaction() as connection:
        of = allocations.c
        rows = await connection.execute(
            select(of.gpu_indices).join(runs, runs.c.id == of.run_id).where(of.to_ms.is_(None), runs.c.id != run_id)
        )
        assert [list(one) for one in rows.scalars()] == [[3]]


async def app_of(world: World) -> tuple[str, str]:
    async with world.database.transaction() as connection:
        return await seed_app(connection, world.project_id)


async def told(world: World, node_id: str, run_id: str, job_id: str, *used: int) -> None:
    gpus = GpusTold(used=list(used), leaving=[], refused=[])
    report = RunReport(run_id=run_id, job_id=job_id, epoch=1, phase="running", step=1, gpus=gpus)
    now_ms = world.clock.now_ms()
    await apply_run_reports(world.database, world.ids, node_id, [report], now_ms=now_ms, fault_budget=3)
    await world.beat(node_id)
    assert (await world.node(node_id)).state == NodeState.READY
