"""A run is laid out for the GPUs that its decision gives it: told, kept, and handed on to its agent."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from app.control.enact import enact
from app.control.leader import Leader
from app.core.layout import GpuSet, Layout, Learned
from app.core.memory.need import Stated
from app.core.model.plan import Assign, Migrate
from app.db import tables as t
from app.db.connection import Connection
from app.db.runs.desired_state import orders
from app.services.runs import lay_out_run
from tests.control.test_enact import _ready_node, _versions
from tests.control.world import World

TRAINING = {"method": "lora", "batch_size": 8, "sequence_length": 512}
STATED: dict[str, Any] = {"model": {"name": "llama-3.2-1b"}, "training": TRAINING}
PLAN = "llama-3.2-1b by lora needs at least 9.9 GB"


async def _layout_of(world: World, job_id: str) -> Any:
    async with world.database.transaction() as connection:
        rows = await connection.execute(
            select(t.runs.c.layout)
            .join(t.run_jobs, t.run_jobs.c.run_id == t.runs.c.id)
            .where(t.run_jobs.c.job_id == job_id)
        )
        return rows.scalar_one()


async def _starting(world: World, job_id: str) -> Any:
    return next(row for row in await world.rows(t.job_events) if (row.job_id, row.kind) == (job_id, "starting"))


async def test_a_start_is_laid_out_told_and_handed_on(world: World) -> None:
    """For the offer's GPUs, keeping the template's batch; a job that states nothing starts without."""
    stated = await world.submit(template=STATED, plan=PLAN)
    silent = await world.submit(template=STATED | {"training": {}})
    await world.decide()
    layout = await _layout_of(world, stated)
    assert layout["data_parallel"] * layout["micro_batch"] * layout["accumulation"] == layout["batch"] == 8
    told = await _starting(world, stated)
    node = await world.node(await world.node_of(stated))
    assert f"; laid out on {layout['gpus']} {node.gpu_type}: " in told.message
    assert told.message.endswith(PLAN)
    assert layout["gpu_type"] == node.gpu_type
    assert await _layout_of(world, silent) is None
    assert "laid out" not in (await _starting(world, silent)).message
    async with world.database.transaction() as connection:
        (order,) = await orders(connection, node.id)
    assert order.layout == layout


async def test_an_assignment_is_laid_out_for_its_node(world: World) -> None:
    """By the node's own GPUs, and as many as the run gets; asked again, nothing is computed."""
    first, second = [await world.submit(template=STATED, plan=PLAN) for _ in range(2)]
    node_id = await _ready_node(world, first, gpus=2)
    layouts = lay_out_run.RunLayouts(world.database, world.clock)
    snapshot = (await world.control.loop._observe()).snapshot
    both = [
        Assign(job_id, node_id, (number,), "a free GPU", await _versions(world, job_id))
        for number, job_id in enumerate((first, second))
    ]
    found = await layouts.of(snapshot, both)
    assert found[first] is found[second]
    assert found[first].training.gpus == 1
    wide = await layouts.of(snapshot, [Assign(first, node_id, (0, 1), "both", ())])
    assert wide[first].training.gpus == 2
    assert await layouts.of(snapshot, [Assign(first, "node_gone", (0,), "nowhere", ())]) == {}


async def test_a_move_is_laid_out_for_its_target(world: World) -> None:
    """The run that stands by has a layout of its own; the one that still trains keeps its."""
    job_id = await world.submit(template=STATED, plan=PLAN)
    await world.decide()
    before = await _layout_of(world, job_id)
    node_id = await world.node_of(job_id)
    await world.work()
    await world.boot(node_id)
    await world.report(node_id, "running")
    target_id = await _ready_node(world, job_id, gpus=2)
    (run,) = [run for run in await world.rows(t.runs) if run.layout is not None]
    versions = await _versions(world, job_id, run.id, target_id)
    move = Migrate(job_id, run.id, target_id, (0, 1), "two GPUs", versions)
    context = world.control.context
    snapshot = (await world.control.loop._observe()).snapshot
    layouts = await context.layouts.of(snapshot, [move])
    async with world.database.transaction() as connection:
        assert await enact(connection, context, [move], now_ms=world.clock.now_ms(), layouts=layouts) == ()
    kept = {each.id: each.layout for each in await world.rows(t.runs)}
    assert kept.pop(run.id) == before
    (standby,) = kept.values()
    assert (standby["gpus"], standby["data_parallel"] * standby["micro_batch"] * standby["accumulation"]) == (2, 8)


async def test_nothing_is_computed_in_the_leaders_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout is known before the transaction that writes the start begins; it is worked out once per kind."""
    said: list[str] = []
    worked_out, guard = lay_out_run.lay_out, Leader.guard

    def lay_out(stated: Stated, place: GpuSet, learned: Learned) -> Layout:
        said.append("laid out")
        return worked_out(stated, place, learned)

    async def begin(leader: Leader, connection: Connection) -> None:
        said.append("begun")
        await guard(leader, connection)

    monkeypatch.setattr(lay_out_run, "lay_out", lay_out)
    monkeypatch.setattr(Leader, "guard", begin)
    for _ in range(2):
        await world.submit(template=STATED, plan=PLAN)
    await world.control.loop.tick("test")
    assert said[:2] == ["laid out", "begun"]
    assert said.count("laid out") == 1
