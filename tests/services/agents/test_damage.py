"""A checkpoint whose bytes the store lost or changed: found out, told, and never begun with again."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.run import RunEnd
from app.db.tables import checkpoints, condemned_objects, job_events, jobs, objects, runs
from app.ports.objects import content_key
from app.services.runs.end_run import end_run
from tests.seeds import seed_job, seed_run
from tests.services.agents.conftest import Place, Stage, entry, sha

LEFT = Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, "saved and left")


async def resumed(stage: Stage, place: Place) -> Place:
    """The job's next run, told what it begins with."""
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, LEFT, now_ms=stage.clock.ms)
    again = await stage.next_run(place)
    assert (await stage.sync(again)).status_code == 200
    return again


async def report(stage: Stage, place: Place, checkpoint_id: str, data: bytes) -> tuple[int, Any]:
    body = {**place.job(), "sha256": sha(data)}
    answer = await stage.post(place, f"/checkpoints/{checkpoint_id}/damaged", body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("gone", [False, True], ids=["one bit changed", "lost"])
async def test_the_one_before_is_begun_with_and_the_job_is_told(stage: Stage, gone: bool) -> None:
    """One bad piece of the newest checkpoint: the run goes on from the one before, and an event says so."""
    place = await stage.running()
    older = await stage.save(place, 10, ("model", b"ten"), ("config", b"same"))
    newest = await stage.save(place, 20, ("model", b"twenty"), ("config", b"same"))
    again = await resumed(stage, place)
    if gone:
        await stage.objects.delete(content_key(place.project_id, sha(b"twenty")))
    else:
        stage.spoil(place, b"twenty")
    status, answer = await report(stage, again, newest, b"twenty")
    assert status == 200
    assert answer["resume"]["checkpoint_id"] == older
    states = {row.id: row.state for row in await stage.rows(checkpoints)}
    assert states == {older: "committed", newest: "damaged"}
    assert (await stage.row(runs, again.run_id)).resumed_from_step == 10
    job = await stage.row(jobs, place.job_id)
    assert (job.checkpoint_id, job.checkpoint_step) == (older, 10)
    events = {row.kind: row.message for row in await stage.rows(job_events)}
    assert "step 20 is damaged" in events["checkpoint_damaged"]
    assert events["resume_replaced"] == "goes on from the checkpoint of step 10 instead of step 20"
    (run,) = (await stage.sync(again)).json()["runs"]
    assert run["spec"]["resume"]["checkpoint_id"] == older


async def test_a_damaged_piece_is_stored_anew(stage: Stage) -> None:
    """It is deleted and forgotten: a later checkpoint that holds it gets a URL for it, and can be relied on."""
    place = await stage.running()
    only = await stage.save(place, 20, ("model", b"twenty"))
    again = await resumed(stage, place)
    stage.spoil(place, b"twenty")
    status, answer = await report(stage, again, only, b"twenty")
    assert (status, answer) == (200, {"resume": None})
    assert await stage.rows(condemned_objects) == []
    assert sha(b"twenty") not in {row.sha256 for row in await stage.rows(objects)}
    await stage.sync(again, again.report("running"))
    saved = await stage.save(again, 20, ("model", b"twenty"))
    assert (await stage.row(jobs, place.job_id)).checkpoint_id == saved


async def test_a_machine_that_spoils_what_it_fetches_takes_nothing_away(stage: Stage) -> None:
    """The stored piece is looked at: when it is right, the checkpoint stays, and the report is refused."""
    place = await stage.running()
    newest = await stage.save(place, 20, ("model", b"twenty"))
    again = await resumed(stage, place)
    status, answer = await report(stage, again, newest, b"twenty")
    assert (status, answer["error"]["code"]) == (409, "conflict")
    assert (await stage.row(checkpoints, newest)).state == "committed"
    assert (await report(stage, again, newest, b"never stored"))[0] == 404


async def test_every_checkpoint_with_the_piece_is_taken_out_of_use(stage: Stage) -> None:
    """A piece that several checkpoints share damages all of them; what they do not share it leaves alone."""
    place = await stage.running()
    whole = await stage.save(place, 1, ("model", b"one"))
    first = await stage.save(place, 2, ("model", b"two"), ("frozen", b"shared"))
    second = await stage.save(place, 3, ("model", b"three"), ("frozen", b"shared"))
    again = await resumed(stage, place)
    stage.spoil(place, b"shared")
    status, answer = await report(stage, again, second, b"shared")
    assert (status, answer["resume"]["checkpoint_id"]) == (200, whole)
    states = {row.id: row.state for row in await stage.rows(checkpoints)}
    assert states == {whole: "committed", first: "damaged", second: "damaged"}


async def test_a_job_that_was_to_begin_with_it_is_not_started_from_nothing(stage: Stage) -> None:
    """Its owner asked for that very checkpoint: the report is refused with words for them."""
    place = await stage.running()
    source = await stage.save(place, 20, ("model", b"twenty"))
    job = await stage.row(jobs, place.job_id)
    async with stage.database.transaction() as connection:
        columns = {"state": JobState.STARTING, "epoch": 1, "from_checkpoint_id": source}
        app = (job.app_id, job.app_version_id)
        job_id = await seed_job(connection, place.project_id, app, **columns)
        run_id = await seed_run(
            connection, place.project_id, job_id, place.node_id, gpu_indices=(1,), state="assigned", running_ms=None
        )
    begun = Place(place.project_id, job_id, place.node_id, run_id, place.token)
    runs_of = (await stage.sync(begun)).json()["runs"]
    (spec,) = [run["spec"] for run in runs_of if run["job_id"] == job_id]
    assert (spec["resume"]["checkpoint_id"], spec["resume"]["step"]) == (source, 20)
    answer = await stage.post(begun, "/downloads", {**begun.job(), "sha256s": [sha(b"twenty")]})
    assert list(answer.json()["urls"]) == [sha(b"twenty")]
    stage.spoil(place, b"twenty")
    status, told = await report(stage, begun, source, b"twenty")
    assert (status, "submit it again" in told["error"]["message"]) == (409, True)
    assert (await stage.row(checkpoints, source)).state == "damaged"


async def test_only_what_the_run_begins_with_can_be_reported(stage: Stage) -> None:
    """Another checkpoint of the job, or of another project, is not found."""
    place = await stage.running()
    older = await stage.save(place, 10, ("model", b"ten"))
    await stage.save(place, 20, ("model", b"twenty"))
    again = await resumed(stage, place)
    stage.spoil(place, b"ten")
    assert (await report(stage, again, older, b"ten"))[0] == 404
    stranger = await stage.running()
    assert (await report(stage, stranger, older, b"ten"))[0] == 404


async def test_files_in_pieces_come_back_as_they_were_told(stage: Stage) -> None:
    """Spans, packs and empty files: what the next run is told is what was saved, and each piece is asked for once."""
    place = await stage.running()
    pack, head, tail = b"abcdef", b"h" * 8, b"t" * 3

    def piece(data: bytes, start: int, length: int) -> dict[str, object]:
        return {"sha256": sha(data), "size_bytes": len(data), "start": start, "length": length}

    files = [
        {"path": "big", "size_bytes": 19, "pieces": [piece(head, 0, 8), piece(head, 0, 8), piece(tail, 0, 3)]},
        {"path": "empty", "size_bytes": 0, "pieces": []},
        {"path": "small/a", "size_bytes": 2, "pieces": [piece(pack, 0, 2)]},
        {"path": "small/b", "size_bytes": 4, "pieces": [piece(pack, 2, 4)]},
        entry("whole", b"whole"),
    ]
    body = {**place.writer(), "step": 3, "files": files}
    opened = (await stage.post(place, "/checkpoints", body)).json()
    assert set(opened["urls"]) == {sha(one) for one in (pack, head, tail, b"whole")}
    for data in (pack, head, tail, b"whole"):
        await stage.store(place, data)
    path = f"/checkpoints/{opened['checkpoint_id']}/commit"
    assert (await stage.post(place, path, place.job())).status_code == 200
    row = await stage.row(checkpoints, opened["checkpoint_id"])
    assert (row.size_bytes, row.stored_bytes) == (30, 22)
    again = await resumed(stage, place)
    (run,) = (await stage.sync(again)).json()["runs"]
    told = [
        {name: value for name, value in file.items() if value is not None} for file in run["spec"]["resume"]["files"]
    ]
    assert told == files


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"size_bytes": 5}, "files[0].size_bytes"),
        ({"pieces": None}, "files[0].pieces"),
        ({"sha256": "a" * 64}, "files[0].pieces"),
        ({"pieces": [{"sha256": "a" * 64, "size_bytes": 4, "start": 2, "length": 3}]}, "files[0].pieces[0].size_bytes"),
    ],
)
async def test_pieces_that_do_not_make_a_file_are_refused(stage: Stage, change: dict[str, object], param: str) -> None:
    """With the place of what is wrong, and nothing written."""
    place = await stage.running()
    file = {"path": "a", "size_bytes": 4, "pieces": [{"sha256": "a" * 64, "size_bytes": 4, "start": 0, "length": 4}]}
    answer = await stage.post(place, "/checkpoints", {**place.writer(), "step": 1, "files": [{**file, **change}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
    assert await stage.rows(checkpoints) == []


async def test_a_run_is_told_the_same_although_its_checkpoint_was_let_go_of(stage: Stage) -> None:
    """What it was told once stays its answer, whatever retention does meanwhile."""
    place = await stage.running()
    first = await stage.save(place, 10, ("model", b"ten"))
    again = await resumed(stage, place)
    async with stage.database.transaction() as connection:
        await connection.execute(update(checkpoints).where(checkpoints.c.id == first).values(state="pruned"))
    (run,) = (await stage.sync(again)).json()["runs"]
    assert run["spec"]["resume"]["checkpoint_id"] == first
