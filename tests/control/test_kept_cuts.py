"""A fine-tuning by the recipe keeps how its steps are cut wherever that fits, and the event of a start tells where it
does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from allpass.recipe.packing import SCRIPT_NAME
from app.core.layout import Layout
from app.core.model.plan import MoveOut
from app.db import tables as t
from app.db.learning.calibrations import calibrations_by_project
from app.db.runs.layouts import set_layout
from app.services.runs import lay_out_run
from tests.control.test_enact import _versions
from tests.control.world import World
from tests.seeds import new_id, seed_app, seed_job, seed_node, seed_run

GB = 1_000_000_000
TRAINING = {"method": "lora", "batch_size": 16, "sequence_length": 1024}
STATED: dict[str, Any] = {"model": {"name": "llama-3.2-1b"}, "training": TRAINING}
SMALL = {"micro_batch": 2, "checkpointing": True}


async def job_with_a_run(
    world: World, *, template: dict[str, Any] = STATED, entrypoint: str = SCRIPT_NAME, saves: bool = True, **run: Any
) -> str:
    """A job whose one run was laid out, and has ended; `saves`: with a checkpoint."""
    async with world.database.transaction() as connection:
        app = await seed_app(connection, world.project_id, entrypoint=entrypoint)
        plan = "it fits"
        job_id = await seed_job(connection, world.project_id, app, template=template, plan=plan, epoch=1)
        node_id = await seed_node(connection, world.project_id)
        run_id = await seed_run(connection, world.project_id, job_id, node_id, **{"state": "ended", **run})
        if saves:
            await connection.execute(
                t.checkpoints.insert().values(
                    id=new_id("ckpt"),
                    project_id=world.project_id,
                    job_id=job_id,
                    run_id=run_id,
                    epoch=1,
                    step=5,
                    state="committed",
                    manifest_sha256="0" * 64,
                    size_bytes=1,
                    opened_ms=1,
                    committed_ms=1,
                )
            )
    return job_id


async def layouts_on(world: World, job_id: str, *memory_gb: int) -> list[Layout]:
    """As it would be laid out on an A100 with so much memory."""
    found = []
    for each in memory_gb:
        snapshot = (await world.control.loop._observe()).snapshot
        offer = replace(world.cloud.on_offer[1], gpu_type="A100", gpu_memory_bytes=each * GB)
        move = MoveOut(job_id, "run_any", offer, (0,), "another machine", await _versions(world, job_id))
        found.append((await world.control.context.layouts.of(snapshot, [move]))[job_id])
    return found


def cut(layout: Layout) -> dict[str, Any]:
    told = layout.as_json()
    return {"micro_batch": told["micro_batch"], "checkpointing": told["checkpointing"]}


async def test_what_was_begun_is_gone_on_with_where_it_fits(world: World) -> None:
    """On a larger GPU too, where another cut would be quicker; and what a run has told comes before its layout."""
    begun = await job_with_a_run(world, layout=SMALL)
    told = await job_with_a_run(world, layout={"micro_batch": 8}, facts=SMALL)
    live = await job_with_a_run(world, layout=SMALL, saves=False, state="running")
    for job_id in (begun, told, live):
        (found,) = await layouts_on(world, job_id, 85)
        assert cut(found) == SMALL
        assert found.begun is None
        assert "cut into" not in found.in_words()


async def test_where_it_does_not_fit_the_event_tells_it(world: World) -> None:
    """The cut is another one, and the words of the start say so."""
    job_id = await job_with_a_run(world, layout={"micro_batch": 16, "checkpointing": False})
    (found,) = await layouts_on(world, job_id, 14)
    assert found.training.batch < 16 or found.training.checkpointing
    assert "its steps were cut into 16 sequences at once before, which need not fit here" in found.in_words()


@pytest.mark.parametrize(
    "job",
    [
        {"saves": False, "layout": SMALL},  # nothing was begun
        {"layout": None},
        {"layout": SMALL, "purpose": "profile"},
        {"layout": SMALL, "entrypoint": "train.py"},  # a script of its own decides for itself
        {"layout": {"micro_batch": "many"}, "facts": {"micro_batch": -3}},  # told by whatever code
    ],
)
async def test_otherwise_the_quickest_is_taken(world: World, job: dict[str, Any]) -> None:
    """Everything at once where there is room."""
    (found,) = await layouts_on(world, await job_with_a_run(world, **job), 85)
    assert cut(found) == {"micro_batch": 16, "checkpointing": False}


async def test_what_the_owner_chose_stays(world: World) -> None:
    """Whatever a run has told."""
    template = {**STATED, "training": {**TRAINING, "micro_batch": 4, "checkpointing": False}}
    (found,) = await layouts_on(world, await job_with_a_run(world, template=template, layout=SMALL), 85)
    assert cut(found) == {"micro_batch": 4, "checkpointing": False}


async def test_what_the_first_gpu_decided_is_gone_on_with(world: World) -> None:
    """The numbers that steps are computed in stay on whatever GPU comes next, where the GPU was to decide them."""
    open_ = {**STATED, "training": {**TRAINING, "precision_by_gpu": True}}
    by_layout = {
        (template is open_, layout["precision"]): (
            await layouts_on(world, await job_with_a_run(world, template=template, layout=SMALL | layout), 85)
        )[0].training
        for template in (open_, STATED)
        for layout in ({"precision": "fp16"}, {"precision": "bf16"}, {"precision": "of tomorrow"})
    }
    assert {told: (one.precision, one.casts) for told, one in by_layout.items()} == {
        (True, "fp16"): ("fp16", True),
        (True, "bf16"): ("bf16", False),
        (True, "of tomorrow"): ("bf16", False),  # nothing that is known: the GPU decides
        (False, "fp16"): ("bf16", False),
        (False, "bf16"): ("bf16", False),
        (False, "of tomorrow"): ("bf16", False),
    }
    assert {one.batch for one in by_layout.values()} == {2}


async def test_one_that_cannot_be_laid_out_keeps_none_from_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts without a layout, and the others with theirs."""
    good, bad = await job_with_a_run(world), await job_with_a_run(world)
    async with world.database.transaction() as connection:
        hostile = {**STATED, "training": {**TRAINING, "batch_size": "many"}}
        await connection.execute(update(t.jobs).where(t.jobs.c.id == bad).values(template=hostile))
    snapshot = (await world.control.loop._observe()).snapshot
    moves = [MoveOut(one, "run_any", world.cloud.on_offer[1], (0,), "", ()) for one in (bad, good)]
    assert list(await world.control.context.layouts.of(snapshot, moves)) == [good]


async def test_lessons_are_read_again_after_a_minute(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with every decision."""
    read: list[list[str]] = []
    reading = calibrations_by_project

    async def calibrations(connection: Any, project_ids: Any) -> Any:
        read.append(list(project_ids))
        return await reading(connection, project_ids)

    monkeypatch.setattr(lay_out_run, "calibrations_by_project", calibrations)
    job_id = await job_with_a_run(world)
    await layouts_on(world, job_id, 85, 14, 85)
    assert read == [[world.project_id]]
    world.clock.advance(s=61)
    await layouts_on(world, job_id, 85)
    assert read == [[world.project_id]] * 2


async def test_many_are_asked_for_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each statement ends in time, however many jobs a decision places; all of them are laid out."""
    monkeypatch.setattr(lay_out_run, "_ASKED_AT_ONCE", 2)
    ids = [await job_with_a_run(world, layout=SMALL) for _ in range(5)]
    snapshot = (await world.control.loop._observe()).snapshot
    moves = [MoveOut(one, "run_any", world.cloud.on_offer[1], (0,), "", ()) for one in ids]
    found = await world.control.context.layouts.of(snapshot, moves)
    assert {one: cut(layout) for one, layout in found.items()} == dict.fromkeys(ids, SMALL)


async def test_two_in_one_process_are_laid_out_as_one(world: World) -> None:
    """They cut their steps alike, or could not be trained together."""
    lead, companion = await job_with_a_run(world), await job_with_a_run(world)
    async with world.database.transaction() as connection:
        runs = {row.job_id: row.run_id for row in await world.rows(t.run_jobs)}
        await connection.execute(update(t.runs).where(t.runs.c.id == runs[companion]).values(companion_of=runs[lead]))
        await set_layout(connection, lead, SMALL)
    assert [run.layout for run in await world.rows(t.runs)] == [SMALL, SMALL]
