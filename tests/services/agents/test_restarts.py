"""A job whose GPUs are changed by restarts: what its agent says of them, what is kept, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from app.core.keeping_gpus import FOLLOWED_BY_MS, KeepsGpus, kept
from app.db.runs.kept_gpus import watched_runs
from app.db.runs.sizes import elastic_runs
from app.db.tables import job_events, jobs, runs
from app.services.sizes.explain_restarts import explain_restarts
from app.services.sizes.tell_kept import tell_kept
from tests.services.agents.conftest import Place, Stage
from tests.services.agents.test_sizes import events, held, on, refused, resize, told

BY_RESTART = {"resize_by": "restart"}


async def by_restart(stage: Stage, gpus: int, *, says: bool = True, **more: Any) -> Place:
    """It runs on so many of four GPUs."""
    place = await on(stage, gpus, says=False)
    async with stage.database.transaction() as connection:
        columns = {"template": BY_RESTART, **more}
        await connection.execute(update(jobs).where(jobs.c.id == place.job_id).values(columns))
    if says:
        await agent_says(stage, place, *range(gpus))
    return place


async def agent_says(stage: Stage, place: Place, *used: int, leaving: tuple[int, ...] = (), **more: Any) -> None:
    gpus = {"used": list(used), "leaving": list(leaving), "refused": [], **more}
    await stage.sync(place, place.report("running", step=1, gpus=gpus))


async def asks_for(stage: Stage, place: Place) -> tuple[int, int]:
    row = (await stage.row(jobs, place.job_id)).resources
    return row["gpus_min"], row["gpus_max"]


async def why(stage: Stage, place: Place, kind: str) -> list[dict[str, Any]]:
    async with stage.database.transaction() as connection:
        of = job_events.c
        found = await connection.execute(select(of.data).where(of.job_id == place.job_id, of.kind == kind))
    return [dict(row) for row in found.scalars()]


async def test_a_change_is_labelled_not_exact(stage: Stage) -> None:
    """What it gives up is free when its processes are gone, which its agent says."""
    place = await by_restart(stage, 2)
    await resize(stage, place, 1)
    await agent_says(stage, place, 0, 1, leaving=(1,))
    assert await held(stage, place) == [0, 1]
    await agent_says(stage, place, 0, leaving=(1,))
    assert await held(stage, place) == [0, 1], "it may have to go back"
    await agent_says(stage, place, 0, pause_ms=7000)
    assert await held(stage, place) == [0]
    assert [kind for kind, _ in await events(stage, place)] == ["resize_asked", "gpus_changed"]
    (_, changed) = (await events(stage, place))[-1]
    assert changed == "trains on 1 GPU (0), after 2: restarted from its newest checkpoint, not exact"
    assert [data["exact"] for data in await why(stage, place, "gpus_changed")] == [False]
    async with stage.database.transaction() as connection:
        (remark,) = await explain_restarts(connection, place.run_id, restart_s=84.0)
    assert "not exact" in remark.text and remark.data == {"exact": False, "restart_s": 7.0}


async def test_one_that_cannot_go_on_with_fewer_has_them_back(stage: Stage) -> None:
    """It is told once, its job asks for what it asked for, and it is not asked again in this run."""
    place = await by_restart(stage, 2)
    await resize(stage, place, 1)
    await agent_says(stage, place, 0, leaving=(1,))
    for _ in range(2):
        await agent_says(stage, place, 0, 1, kept="failed")
    assert (await held(stage, place), await asks_for(stage, place)) == ([0, 1], (2, 2))
    assert await told(stage, place) == ([0, 1], [0, 1])
    (kept,) = await why(stage, place, "gpus_kept")
    assert kept == {"run_id": place.run_id, "why": "failed", "gpus": 2, "gpus_wanted": 1}
    words = [message for kind, message in await events(stage, place) if kind == "gpus_kept"]
    assert words == [
        "keeps its 2 GPUs: begun again on 1 from what it had saved, it failed at once, and went on from the same "
        "checkpoint; it is not asked to begin again in this run; its job asks for 2 again"
    ]
    error = await refused(stage, place, 1)
    assert (error.error_code, "could not go on so" in str(error)) == ("not_elastic", True)
    async with stage.database.transaction() as connection:
        assert await explain_restarts(connection, place.run_id, restart_s=84.0) == []
        assert await watched_runs(connection) == []


async def test_one_that_cannot_go_on_with_more_gives_them_back(stage: Stage) -> None:
    place = await by_restart(stage, 1)
    await resize(stage, place, 3)
    assert await held(stage, place) == [0, 1, 2]
    await agent_says(stage, place, 0, 1, 2)
    await agent_says(stage, place, 0, kept="failed")
    assert (await held(stage, place), await asks_for(stage, place)) == ([0], (1, 1))


async def test_one_that_would_end_early_with_more_gives_them_back(stage: Stage) -> None:
    """Its epochs are shorter there: it is told what to count instead."""
    place = await by_restart(stage, 1)
    await resize(stage, place, 2)
    await agent_says(stage, place, 0, 1)
    await agent_says(stage, place, 0, kept="short")
    assert (await held(stage, place), await asks_for(stage, place)) == ([0], (1, 1))
    (words,) = [message for kind, message in await events(stage, place) if kind == "gpus_kept"]
    assert "max_steps" in words and words.endswith("its job asks for 1 again")


async def test_one_that_did_not_save_keeps_what_it_has(stage: Stage) -> None:
    """Its owner's wish stays: the next run may be able to. So does a range, which begins where there is room."""
    place = await by_restart(stage, 2)
    await resize(stage, place, 1)
    await agent_says(stage, place, 0, 1, kept="unsaved")
    assert (await held(stage, place), await asks_for(stage, place)) == ([0, 1], (1, 1))
    assert "it has not saved, and went on from its newest checkpoint" in (await events(stage, place))[-1][1]


async def test_one_whose_checkpoints_are_of_no_use_is_told_so(stage: Stage) -> None:
    place = await by_restart(stage, 2)
    await agent_says(stage, place, 0, 1, kept="refused")
    assert "what it saves cannot be kept, or it does not go on from there" in (await events(stage, place))[-1][1]
    assert await held(stage, place) == [0, 1]


async def test_of_whom_a_gpu_was_lent_nothing_is_asked_again(stage: Stage) -> None:
    place = await by_restart(stage, 2, elastic=True)
    async with stage.database.transaction() as connection:
        (run,) = await elastic_runs(connection)
    assert (run.restarts, run.restart_s, run.told.pause_ms) == (True, 60.0, None)
    await agent_says(stage, place, 0, 1, pause_ms=9000)
    async with stage.database.transaction() as connection:
        (run,) = await elastic_runs(connection)
    assert run.resize_s == 9.0
    await agent_says(stage, place, 0, 1, kept="failed")
    async with stage.database.transaction() as connection:
        assert await elastic_runs(connection) == []
    assert await asks_for(stage, place) == (2, 2)


async def test_what_is_said_makes_sense_or_changes_nothing(stage: Stage) -> None:
    """Of an agent of another release, or one that lies: its first GPU is always its own, nobody else's ever."""
    place = await by_restart(stage, 2)
    await resize(stage, place, 1)
    await agent_says(stage, place, 3, kept="of a newer release")
    assert await held(stage, place) == [0]
    row = await stage.row(runs, place.run_id)
    assert row.gpus_told["kept"] == "of a newer release"


async def test_before_it_has_saved_it_is_refused_in_words(stage: Stage) -> None:
    place = await by_restart(stage, 2, says=False)
    error = await refused(stage, place, 1)
    assert "has not saved yet, nor said that it does" in str(error)
    async with stage.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == place.job_id).values(elastic=True))
        await connection.execute(update(runs).where(runs.c.id == place.run_id).values(running_ms=1))
        (watched,) = await watched_runs(connection)
        assert await tell_kept(connection, stage.ids, watched, KeepsGpus.SILENT, now_ms=stage.clock.ms)
    (_, words) = (await events(stage, place))[-1]
    assert words.startswith("keeps its 2 GPUs for now:") and "what never saved is not stopped" in words


@pytest.mark.parametrize(("saved", "end"), [(False, "unsaved"), (True, "demoted")])
async def test_one_that_finds_nothing_to_go_on_from_goes_on_elsewhere(stage: Stage, saved: bool, end: str) -> None:
    """From what is stored, and no fault is counted. No machine is said to be taken away."""
    place = await by_restart(stage, 2)
    exit_ = {"signal": 15, "saved_after_stop": saved, "stranded": True}
    await stage.sync(place, place.report("exited", step=9, exit=exit_))
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.faults) == ("waiting", 0)
    assert (await stage.row(runs, place.run_id)).end_reason == end
    async with stage.database.transaction() as connection:
        of = job_events.c
        exited = of.job_id == place.job_id, of.kind == "process_exited"
        words = (await connection.execute(select(of.message).where(*exited))).scalar_one()
    assert words == "could not begin again where it was: it goes on from its newest stored checkpoint"


async def test_that_it_is_asked_after_a_save_is_remembered_and_explained(stage: Stage) -> None:
    place = await by_restart(stage, 2)
    await agent_says(stage, place, 0, 1, after_save=True)
    await resize(stage, place, 1)
    async with stage.database.transaction() as connection:
        (watched,) = await watched_runs(connection)
        (remark,) = await explain_restarts(connection, place.run_id, restart_s=84.0)
    assert watched.told is not None and watched.told.after_save
    assert kept(watched, watched.wanted_ms + FOLLOWED_BY_MS) is None
    assert "right after its next save" in remark.text
