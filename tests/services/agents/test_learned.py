"""A job whose lead has ended begins from what that has learned: what its agent is told, and for how long."""

from __future__ import annotations

from typing import Any

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.merge import MergeMode
from app.core.model.plan import Merge
from app.core.model.run import RunEnd
from app.db.merging.merges import add_merge
from app.db.tables import checkpoints, jobs, merges, nodes, runs
from app.services.checkpoints.prune_checkpoints import prune_checkpoints
from app.services.jobs.cancel_job import cancel_job
from app.services.runs.end_run import end_run
from tests.seeds import new_id, seed_app, seed_job, seed_run
from tests.services.agents.conftest import Place, Stage, sha


async def _open(stage: Stage) -> tuple[Place, str]:
    """A lead that trains, and the id of the job that waits for its turn."""
    lead = await stage.running()
    async with stage.database.transaction() as connection:
        app = await seed_app(connection, lead.project_id, bundle_sha256=sha(b"rows"), bundle_size_bytes=4)
        companion_id = await seed_job(connection, lead.project_id, app, state=JobState.QUEUED, parameters={"seed": 3})
        merge = Merge(lead.job_id, companion_id, MergeMode.IN_TURN, 1, 0.8, 0.3, "they help each other", ())
        await add_merge(connection, new_id("merge"), lead.project_id, merge, now_ms=stage.clock.ms)
    return lead, companion_id


async def _merged(stage: Stage) -> tuple[Place, str, str]:
    """A lead that has ended with a checkpoint of step 40; its companion's id, and that of the checkpoint."""
    lead, companion_id = await _open(stage)
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


async def test_a_companion_may_read_what_it_begins_from(stage: Stage) -> None:
    """And no other job may."""
    lead, companion_id, _ = await _merged(stage)
    place = await _run(stage, lead, companion_id)
    asked = {"sha256s": [sha(b"learned")]}
    answer = await stage.post(place, "/downloads", {**place.job(), **asked})
    assert (answer.status_code, list(answer.json()["urls"])) == (200, [sha(b"learned")])
    async with stage.database.transaction() as connection:
        other_id = await seed_job(connection, lead.project_id, state=JobState.QUEUED)
    other = await _run(stage, lead, other_id)
    assert (await stage.post(other, "/downloads", {**other.job(), **asked})).status_code == 404


async def test_a_lead_is_told_whose_rows_to_look_at_while_they_are_merged(stage: Stage) -> None:
    """It may read them until the other one leaves, of which its agent hears."""
    lead, companion_id = await _open(stage)
    spec = (await stage.sync(lead)).json()["runs"][0]["spec"]
    assert spec["watch"] == {
        "job_id": companion_id,
        "bundle_sha256": sha(b"rows"),
        "bundle_size_bytes": 4,
        "parameters": {"seed": 3},
    }
    body = {**lead.job(), "sha256s": [sha(b"rows")]}
    assert (await stage.post(lead, "/downloads", body)).status_code == 200
    before = (await stage.row(nodes, lead.node_id)).desired_version
    async with stage.database.transaction() as connection:
        await cancel_job(connection, stage.ids, lead.project_id, companion_id, now_ms=stage.clock.ms)
    assert (await stage.row(nodes, lead.node_id)).desired_version > before
    assert (await stage.sync(lead)).json()["runs"][0]["spec"]["watch"] is None
    assert (await stage.post(lead, "/downloads", body)).status_code == 404


async def test_what_the_lead_sees_of_its_companion_is_kept(stage: Stage) -> None:
    """With its progress, once each time it changes; not from a run that does not hold the job, nor of another one."""
    lead, companion_id = await _open(stage)

    async def tells(epochs: float, *, epoch: int = 1, of: str = companion_id) -> tuple[float, int]:
        watch = {"job_id": of, "epochs": epochs, "fruitless_epochs": epochs}
        await stage.sync(lead, {**lead.report("running", step=5, watch=watch), "epoch": epoch})
        (row,) = await stage.rows(merges)
        return row.fruitless_epochs, row.row_version

    assert await tells(1.0) == (1.0, 2)
    assert await tells(1.0) == (1.0, 2)
    assert await tells(2.5, epoch=2) == (1.0, 2)
    assert await tells(2.5, of=lead.job_id) == (1.0, 2)
    assert await tells(2.5) == (2.5, 3)
    assert await tells(0.0) == (0.0, 4)


async def _lose(stage: Stage, place: Place) -> None:
    lost = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")
    async with stage.database.transaction() as connection:
        assert await end_run(connection, stage.ids, place.run_id, lost, now_ms=stage.clock.ms)
