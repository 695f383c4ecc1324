"""Ended runs teach the next plans: steps that were measured, memory that was held, and memory that did not suffice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update

from app.control.learn import learn
from app.core.memory import MODELS, Training, estimate
from app.core.memory.fit import CONTEXT_BYTES
from app.db import tables as t
from app.db.decisions.snapshots import freeze, read_snapshot
from app.db.learning.calibrations import newest_calibrations, step_rows
from app.db.tables import calibrations
from tests.control.test_out_of_memory import OOM
from tests.control.world import World

MODEL = MODELS["llama-3.2-1b"]
STATED: dict[str, Any] = {
    "model": {"name": "meta-llama/Llama-3.2-1B"},
    "training": {"method": "lora", "batch_size": 8, "sequence_length": 512, "precision": "bf16"},
}
RAN = Training("lora", 4, 512, accumulation=2, checkpointing=True)
TOLD = {"micro_batch": 4, "accumulation": 2, "checkpointing": True, "versions": {"torch": "2.5.1"}}


async def run_to_its_end(
    world: World, facts: dict[str, Any] | None, *, template: dict[str, Any] = STATED, step_ms: int = 0, **exit_: Any
) -> str:
    job_id = await world.submit(template=template)
    await world.decide()
    await world.work()
    node_id = await world.node_of(job_id)
    await world.boot(node_id)
    await world.report(node_id, "running")
    if step_ms:
        epoch = (await world.job(job_id)).epoch
        rows = [
            {"job_id": job_id, "step": step, "epoch": epoch, "at_ms": 1_000 + step * step_ms, "values": {"loss": 1.0}}
            for step in range(1, 6)
        ]
        async with world.database.transaction() as connection:
            await connection.execute(t.metric_points.insert(), rows)
    await world.report(node_id, "exited", **({"exit_code": 0} | exit_), training=facts)
    return job_id


async def learned(world: World) -> tuple[list[Any], list[Any]]:
    async with world.database.transaction() as connection:
        steps = await step_rows(connection, world.project_id)
        known = await newest_calibrations(connection, world.project_id)
    return list(steps), list(known)


async def test_a_run_teaches_its_step_and_its_memory_once(world: World) -> None:
    """What it measured is kept under how it was laid out, for its project; a second round finds nothing new."""
    predicted = estimate(MODEL, RAN)
    allocated = round(predicted.allocated.expected * 1.25)
    reserved = round(allocated * 1.2)
    facts = TOLD | {"allocated_bytes": allocated, "reserved_bytes": reserved, "process_bytes": reserved + 10**9}
    await run_to_its_end(world, facts, step_ms=700)
    assert await learn(world.control.context) == 1
    ((key, row),), ((kind, known),) = await learned(world)
    assert (key.model, key.gpu_type, key.gpus, key.micro_batch, key.accumulation) == ("llama-3.2-1b", "a100", 1, 4, 2)
    assert (key.method, key.frozen_layers, key.checkpointing, key.parallelism) == ("lora", 16, True, "none/tp1")
    assert (row.step_ms, row.samples) == (700.0, 1)
    assert row.roofline_ms is not None
    assert (kind.family, kind.method, kind.kernel, kind.versions) == ("llama", "lora", "flash/full", "torch 2.5")
    assert known.log_ratio == pytest.approx(math.log(1.25), abs=1e-6)
    assert (known.samples, known.fragmentation) == (1, pytest.approx(0.2, abs=1e-6))
    assert known.overhead_bytes == pytest.approx(10**9, abs=2)
    assert await learn(world.control.context) == 0


@pytest.mark.parametrize(
    ("planned", "expected"), [({"precision": "fp16"}, "fp16+autocast"), ({"precision": "bf16"}, "bf16"), (None, "bf16")]
)
async def test_a_step_is_kept_under_what_it_was_computed_in(
    world: World, planned: dict[str, Any] | None, expected: str
) -> None:
    """Where the GPU decided it: by the run's layout, and by the GPU where none was kept."""
    training = STATED["training"] | {"precision_by_gpu": True}
    job_id = await run_to_its_end(world, TOLD, template=STATED | {"training": training}, step_ms=700)
    run = select(t.run_jobs.c.run_id).where(t.run_jobs.c.job_id == job_id).scalar_subquery()
    async with world.database.transaction() as connection:
        await connection.execute(update(t.runs).where(t.runs.c.id == run).values(layout=planned))
    assert await learn(world.control.context) == 1
    ((key, _),), _ = await learned(world)
    assert (key.gpu_type, key.precision) == ("a100", expected)


async def test_further_runs_join_the_same_rows(world: World) -> None:
    """Two runs of one kind make one row of two samples."""
    for step_ms in (600, 800):
        await run_to_its_end(world, TOLD | {"allocated_bytes": 10**10}, step_ms=step_ms)
    assert await learn(world.control.context) == 2
    ((_, row),), ((_, known),) = await learned(world)
    assert (row.step_ms, row.samples, known.samples) == (700.0, 2, 2)
    assert known.overhead_bytes == CONTEXT_BYTES, "nobody measured the process"


async def test_a_run_that_changed_its_gpus_teaches_each_number(world: World) -> None:
    """Two of them first, then one: what it took with each, and not what it took while it changed."""
    job_id = await run_to_its_end(world, TOLD | {"accumulation": 2})
    at_ms, later_ms = 2_000_000_000_000, 2_000_001_000_000
    async with world.database.transaction() as connection:
        run_id = (
            await connection.execute(select(t.run_jobs.c.run_id).where(t.run_jobs.c.job_id == job_id))
        ).scalar_one()
        node_id = (
            await connection.execute(select(t.allocations.c.node_id).where(t.allocations.c.run_id == run_id))
        ).scalar_one()
        await connection.execute(t.allocations.delete().where(t.allocations.c.run_id == run_id))
        for name, gpus, from_ms, to_ms in (("a", [0, 1], at_ms, later_ms), ("b", [0], later_ms, later_ms + 10**6)):
            held = {"run_id": run_id, "node_id": node_id, "gpu_indices": gpus, "from_ms": from_ms, "to_ms": to_ms}
            await connection.execute(t.allocations.insert().values(id=f"aloc_{name}", **held))
        told = [(step, at_ms + 10_000 + 400 * step) for step in range(1, 9)]
        told += [(9, later_ms + 1_000)]  # of the step in which it changed
        told += [(step, later_ms + 10_000 + 700 * step) for step in range(10, 16)]
        points = [
            {"job_id": job_id, "step": step, "epoch": 1, "at_ms": when_ms, "values": {}} for step, when_ms in told
        ]
        await connection.execute(t.metric_points.insert(), points)
    assert await learn(world.control.context) == 1
    rows, _ = await learned(world)
    assert {(key.gpus, key.accumulation, key.parallelism): row.step_ms for key, row in rows} == {
        (1, 2, "none/tp1"): 700.0,
        (2, 1, "ddp/tp1"): 400.0,
    }


async def test_running_out_of_memory_is_learned_from(world: World) -> None:
    """It took more than the GPU has, though less was predicted: the next estimate is higher."""
    small = round(1.3 * estimate(MODEL, RAN).process.expected)
    world.cloud.on_offer = [replace(offer, gpu_memory_bytes=small) for offer in world.cloud.on_offer]
    await run_to_its_end(world, TOLD, exit_code=1, last_lines=OOM)
    assert await learn(world.control.context) == 1
    _, ((_, known),) = await learned(world)
    assert known.log_ratio == pytest.approx(math.log(small / estimate(MODEL, RAN).process.expected), abs=1e-6)
    assert known.log_ratio > 0


@pytest.mark.parametrize(
    ("template", "facts"),
    [
        (STATED, {"allocated_bytes": 10**10}),
        ({}, TOLD),
        ({"model": {"name": "unheard-of"}, "training": STATED["training"]}, TOLD),
        (STATED, TOLD | {"sequence": 1, "micro_batch": 1 << 40}),
    ],
)
async def test_what_cannot_be_learned_from_is_passed_over(
    world: World, template: dict[str, Any], facts: dict[str, Any]
) -> None:
    """No micro-batch, no statement, an unknown model, a layout that cannot be: no row, no error, never looked at
    again."""
    await run_to_its_end(world, facts, template=template, step_ms=700)
    assert await learn(world.control.context) == 1
    assert await learned(world) == ([], [])
    assert await learn(world.control.context) == 0


async def test_a_run_that_told_nothing_is_not_looked_at(world: World) -> None:
    """Most scripts say nothing of themselves: that costs nothing."""
    await run_to_its_end(world, None, step_ms=700)
    assert await learn(world.control.context) == 0
    assert (await world.rows(t.runs))[0].facts is None


async def test_another_project_learns_nothing_of_it(world: World) -> None:
    """What one tenant reports does not move another's plans."""
    await run_to_its_end(world, TOLD | {"allocated_bytes": 10**10})
    await learn(world.control.context)
    async with world.database.transaction() as connection:
        owners = (await connection.execute(select(calibrations.c.project_id))).scalars().all()
        assert owners == [world.project_id]
        assert await newest_calibrations(connection, "proj_of_somebody_else") == ()


async def test_a_stated_job_is_predicted_until_something_is_measured(world: World) -> None:
    """Steps times the stated step; once its app has a history, that counts instead."""
    job_id = await world.submit(total_steps=100, predicted_step_ms=50.0)
    assert (await _total_run_ms(world, job_id)) == 5_000
    async with world.database.transaction() as connection:
        await connection.execute(
            t.run_history.insert().values(
                app_id=world.app[0], gpu_type="A100", samples=1, run_ms=9_000.0, step_ms=70.0, updated_ms=1
            )
        )
    assert (await _total_run_ms(world, job_id)) == 7_000


async def _total_run_ms(world: World, job_id: str) -> int | None:
    async with world.database.transaction() as connection:
        await freeze(connection)
        seen = await read_snapshot(connection, world.clock.now_ms(), world.control.context.traits(), 10**9)
    return next(job.total_run_ms for job in seen.jobs if job.job_id == job_id)
