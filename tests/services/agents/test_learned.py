"""A job whose lead has ended begins from what that has learned: what its agent is told, and for how long."""

from __future__ import annotations

from typing import Any

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.merge import MergeMode
from app.core.model.plan import Merge
from app.core.model.run import RunEnd
from app.db.merge_tables import merges
from app.db.merges import add_merge
from app.db.tables import checkpoints, jobs, runs
from app.services.end_run import end_run
from app.services.prune_checkpoints import prune_checkpoints
from tests.seeds import new_id, seed_job, seed_run
from tests.services.agents.conftest import Place, Stage, sha


async def _merged(stage: Stage) -> tuple[Place, str, str]:
    """A lead that has ended with a checkpoint of step 40; its companion's id, and that of the checkpoint."""
    lead = await stage.running()
    row = await stage.row(jobs, lead.job_id)
    async with stage.database.transaction() as connection:
        app = (row.app_id, row.app_version_id)
        companion_id = await seed_job(connection, lead.project_id, app, state=JobState.QUEUED)
        merge = Merge(lead.job_id, companion_id, MergeMode.IN_TURN, 1, 0.8, 0.3, "they help each other", ())
        await add_merge(connection, new_id("merge"), lead.project_id, merge, now_ms=stage.clock.ms)
    checkpoint_id = await stage.save(lead, 40, ("model", b"learned"))
    await stage.sync(lead, lead.report("exited", step=40, exit={"exit_code": 0}))
    return lead, companion_id, checkpoint_id


async def _run(stage: Stage, lead: Place, companion_id: str) -> Place:
    """The companion is placed where the lead was."""
    first = Place(lead.project_id, companion_id, lead.node_id, "", lead.token, 0)
    return await stage.next_run(first)


async def _told(stage: Stage, place: Place) -> Any:
    (run,) = (await stage.sync(place)).json()["runs"]
    return run["spec"]["resume"]


async def test_a_companion_begins_at_step_0_with_what_its_lead_has_learned(stage: Stage) -> None:
    """The same answer for the whole run; the job counts its own steps."""
    lead, companion_id, checkpoint_id = await _merged(stage)
    place = await _run(stage, lead, companion_id)
    for _ in range(2):
        told = await _told(stage, place)
        assert (told["checkpoint_id"], told["step"], told["learned"]) == (checkpoint_id, 40, True)
        assert [file["path"] for file in told["files"]] == ["model"]
    run = await stage.row(runs, place.run_id)
    assert (run.resumed_from_step, run.resumed_checkpoint_id) == (0, checkpoint_id)
    await stage.sync(place, place.report("running"))
    assert (await stage.row(jobs, companion_id)).step == 0


async def test_a_companion_with_a_checkpoint_of_its_own_goes_on_from_that(stage: Stage) -> None:
    """A first run that saved nothing leaves the next one the lead's; one that did leaves its own."""
    lead, companion_id, checkpoint_id = await _merged(stage)
    place = await _run(stage, lead, companion_id)
    await stage.sync(place, place.report("running"))
    await _lose(stage, place)
    place = await stage.next_run(place)
    assert (await _told(stage, place))["checkpoint_id"] == checkpoint_id
    await stage.sync(place, place.report("running"))
    own = await stage.save(place, 5, ("model", b"own"))
    await _lose(stage, place)
    told = await _told(stage, await stage.next_run(place))
    assert (told["checkpoint_id"], told["step"], told["learned"]) == (own, 5, False)


async def test_the_checkpoint_stays_until_the_companion_has_one(stage: Stage) -> None:
    """A rule that would let go of it waits."""
    lead, companion_id, checkpoint_id = await _merged(stage)
    newer = new_id("ckpt")
    async with stage.database.transaction() as connection:
        (row,) = (await connection.execute(checkpoints.select().where(checkpoints.c.id == checkpoint_id))).all()
        await connection.execute(checkpoints.insert().values({**row._mapping, "id": newer, "step": 50}))
        assert await prune_checkpoints(connection, lead.job_id, keep_last=1, now_ms=stage.clock.ms) == 0
    place = await _run(stage, lead, companion_id)
    await stage.sync(place, place.report("running"))
    await stage.save(place, 5, ("model", b"own"))
    async with stage.database.transaction() as connection:
        assert await prune_checkpoints(connection, lead.job_id, keep_last=1, now_ms=stage.clock.ms) == 1
    assert (await stage.row(checkpoints, checkpoint_id)).state == "pruned"


async def test_a_damaged_one_lets_the_companion_begin_by_itself(stage: Stage) -> None:
    """Nobody chose that checkpoint: a job that cannot have it is not stuck."""
    lead, companion_id, checkpoint_id = await _merged(stage)
    place = await _run(stage, lead, companion_id)
    await _told(stage, place)
    stage.spoil(lead, b"learned")
    body = {**place.job(), "sha256": sha(b"learned")}
    answer = await stage.post(place, f"/checkpoints/{checkpoint_id}/damaged", body)
    assert (answer.status_code, answer.json()) == (200, {"resume": None})
    assert await _told(stage, place) is None
    (row,) = await stage.rows(merges)
    assert row.state == "ended"


async def test_a_job_that_was_given_a_checkpoint_is_not_told_that_it_is_learned(stage: Stage) -> None:
    """Its owner named it: it goes on at that very step."""
    lead, companion_id, checkpoint_id = await _merged(stage)
    async with stage.database.transaction() as connection:
        row = (await connection.execute(jobs.select().where(jobs.c.id == companion_id))).one()
        app = (row.app_id, row.app_version_id)
        other_id = await seed_job(connection, lead.project_id, app, from_checkpoint_id=checkpoint_id, epoch=1)
        run_id = await seed_run(connection, lead.project_id, other_id, lead.node_id, state="assigned", running_ms=None)
    place = Place(lead.project_id, other_id, lead.node_id, run_id, lead.token)
    told = await _told(stage, place)
    assert (told["checkpoint_id"], told["step"], told["learned"]) == (checkpoint_id, 40, False)


async def _lose(stage: Stage, place: Place) -> None:
    lost = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")
    async with stage.database.transaction() as connection:
        assert await end_run(connection, stage.ids, place.run_id, lost, now_ms=stage.clock.ms)
