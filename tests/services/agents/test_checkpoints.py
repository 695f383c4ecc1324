"""Checkpoints: opened, filled, committed under an epoch; a torn or stale one can never be resumed from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import update

from app.core.lifecycle import Outcome
from app.core.model.checkpoint import SavedFile
from app.core.model.job import JobState
from app.core.model.run import RunEnd
from app.db.tables import checkpoints, job_events, jobs, objects, runs
from app.errors import StoreUnavailable
from app.ports.objects import content_key
from app.services.runs.end_run import end_run
from app.storage.manifests import Manifest, manifest_sha256
from tests.services.agents.conftest import Place, Stage, entry, sha

LOST = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")
DEMOTED = Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, "saved and left")


async def end(stage: Stage, place: Place, outcome: Outcome = DEMOTED) -> None:
    async with stage.database.transaction() as connection:
        assert await end_run(connection, stage.ids, place.run_id, outcome, now_ms=stage.clock.ms)


async def open_one(stage: Stage, place: Place, step: int, *files: dict[str, Any]) -> Any:
    return await stage.post(place, "/checkpoints", {**place.writer(), "step": step, "files": list(files)})


async def commit(stage: Stage, place: Place, checkpoint_id: str) -> Any:
    return await stage.post(place, f"/checkpoints/{checkpoint_id}/commit", place.job())


async def test_a_committed_checkpoint_is_what_the_next_run_resumes_from(stage: Stage) -> None:
    """Same files, same step; the run's row says so, and so does the step the job starts again at."""
    place = await stage.running()
    await stage.sync(place, place.report("running", step=45))
    checkpoint_id = await stage.save(place, 40, ("model", b"weights"), ("sub/rng", b"state"))
    await end(stage, place)
    again = await stage.next_run(place)
    (run,) = (await stage.sync(again)).json()["runs"]
    assert run["spec"]["resume"] == {
        "checkpoint_id": checkpoint_id,
        "step": 40,
        "files": [{**entry("model", b"weights"), "pieces": None}, {**entry("sub/rng", b"state"), "pieces": None}],
        "learned": False,
        "listing": None,
    }
    assert (await stage.row(runs, again.run_id)).resumed_from_step == 40
    await stage.sync(again, again.report("running"))
    assert (await stage.row(jobs, place.job_id)).step == 40


async def test_what_a_run_resumes_from_stays_the_same_for_its_whole_life(stage: Stage) -> None:
    """Its own newer checkpoints are for the run after it."""
    place = await stage.running()
    first = await stage.save(place, 10, ("model", b"ten"))
    await end(stage, place)
    again = await stage.next_run(place)
    await stage.sync(again, again.report("running"))
    second = await stage.save(again, 20, ("model", b"twenty"))
    (run,) = (await stage.sync(again)).json()["runs"]
    assert (run["spec"]["resume"]["checkpoint_id"], run["spec"]["resume"]["step"]) == (first, 10)
    assert (await stage.row(jobs, place.job_id)).checkpoint_id == second
    await end(stage, again)
    third = await stage.next_run(again)
    (run,) = (await stage.sync(third)).json()["runs"]
    assert run["spec"]["resume"]["checkpoint_id"] == second


async def test_a_run_whose_record_contradicts_the_checkpoints_is_not_delivered(stage: Stage) -> None:
    """Resuming at another step than the one on record would be a wrong trajectory: it is an error of ours."""
    place = await stage.place()
    async with stage.database.transaction() as connection:
        await connection.execute(update(runs).values(resumed_from_step=7))
    answer = await stage.sync(place)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")


async def test_only_pieces_that_the_store_lacks_get_a_url(stage: Stage) -> None:
    """What is stored is noted as verified, and not asked for again."""
    place = await stage.running()
    await stage.store(place, b"old")
    opened = (await open_one(stage, place, 1, entry("a", b"old"), entry("b", b"new"), entry("c", b"new"))).json()
    assert list(opened["urls"]) == [sha(b"new")]
    assert [row.sha256 for row in await stage.rows(objects)] == [sha(b"old")]


async def test_a_checkpoint_with_a_missing_piece_is_refused_and_never_resumed_from(stage: Stage) -> None:
    """It stays open; when its piece arrives it can still be committed; when its run ends it is given up."""
    place = await stage.running()
    opened = (await open_one(stage, place, 5, entry("a", b"one"), entry("b", b"two"))).json()
    await stage.store(place, b"one")
    refused = await commit(stage, place, opened["checkpoint_id"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    await end(stage, place, LOST)
    assert (await stage.row(checkpoints, opened["checkpoint_id"])).state == "aborted"
    again = await stage.next_run(place)
    (run,) = (await stage.sync(again)).json()["runs"]
    assert run["spec"]["resume"] is None
    assert (await commit(stage, again, opened["checkpoint_id"])).status_code == 404


async def test_a_piece_that_vanished_after_it_was_noted_is_noticed(stage: Stage) -> None:
    """The store is asked at commit, whatever the database remembers; the next request gets a URL to mend it."""
    place = await stage.running()
    await stage.save(place, 1, ("model", b"weights"))
    opened = (await open_one(stage, place, 2, entry("model", b"weights"))).json()
    assert opened["urls"] == {}
    await stage.objects.delete(content_key(place.project_id, sha(b"weights")))
    assert (await commit(stage, place, opened["checkpoint_id"])).status_code == 409
    again = (await open_one(stage, place, 2, entry("model", b"weights"))).json()
    assert (again["checkpoint_id"], list(again["urls"])) == (opened["checkpoint_id"], [sha(b"weights")])
    await stage.store(place, b"weights")
    assert (await commit(stage, place, opened["checkpoint_id"])).status_code == 200


async def test_a_size_that_is_not_the_stored_one_is_refused(stage: Stage) -> None:
    """Whether the store or only the database knows it; and one hash has one size."""
    place = await stage.running()
    await stage.store(place, b"data")
    wrong = {**entry("a", b"data"), "size_bytes": 5}
    for _ in range(2):
        assert (await open_one(stage, place, 1, wrong)).status_code == 422
        assert (await open_one(stage, place, 2, entry("a", b"data"))).status_code == 200
    assert (await open_one(stage, place, 1, wrong, {**wrong, "path": "b", "size_bytes": 6})).status_code == 422


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "a\\b", "", "a\x00", "x" * 600])
async def test_paths_that_leave_the_folder_are_refused_by_name(stage: Stage, path: str) -> None:
    """With nothing written."""
    place = await stage.running()
    answer = await open_one(stage, place, 1, entry("ok", b"1"), entry(path, b"2"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "files[1].path")
    assert await stage.rows(checkpoints) == []


async def test_opening_and_committing_may_be_repeated(stage: Stage) -> None:
    """A lost reply costs nothing: one manifest, one event, the same id, and no URLs once it is committed."""
    place = await stage.running()
    first = await open_one(stage, place, 3, entry("a", b"one"))
    many = await asyncio.gather(*(open_one(stage, place, 3, entry("a", b"one")) for _ in range(6)))
    assert {answer.json()["checkpoint_id"] for answer in many} == {first.json()["checkpoint_id"]}
    await stage.store(place, b"one")
    done = await asyncio.gather(*(commit(stage, place, first.json()["checkpoint_id"]) for _ in range(6)))
    assert {answer.status_code for answer in done} == {200}
    kinds = [event.kind for event in await stage.rows(job_events)]
    assert kinds.count("checkpoint_committed") == 1
    again = (await open_one(stage, place, 3, entry("a", b"one"))).json()
    assert again == {"checkpoint_id": first.json()["checkpoint_id"], "urls": {}, "part": False}


async def test_the_manifest_is_identified_by_its_canonical_bytes(stage: Stage) -> None:
    """Its hash is that of the stored spelling, so anybody can recompute it; the event says step and size."""
    place = await stage.running()
    checkpoint_id = await stage.save(place, 8, ("b", b"bb"), ("a", b"a"))
    row = await stage.row(checkpoints, checkpoint_id)
    files = (SavedFile.whole("a", sha(b"a"), 1), SavedFile.whole("b", sha(b"bb"), 2))
    assert row.manifest_sha256 == manifest_sha256(Manifest(place.job_id, 1, 8, files))
    assert (row.state, row.size_bytes, row.committed_ms) == ("committed", 3, stage.clock.ms)
    (event,) = [event for event in await stage.rows(job_events) if event.kind == "checkpoint_committed"]
    assert (event.data["step"], event.data["size_bytes"]) == (8, 3)


async def test_within_an_epoch_the_newest_checkpoint_never_goes_back(stage: Stage) -> None:
    """A late commit of an older step is kept, but is not the newest; a newer epoch may start lower."""
    place = await stage.running()
    newest = await stage.save(place, 9, ("m", b"nine"))
    await stage.save(place, 4, ("m", b"four"))
    job = await stage.row(jobs, place.job_id)
    assert (job.checkpoint_id, job.checkpoint_step) == (newest, 9)
    await end(stage, place)
    again = await stage.next_run(place)
    restarted = await stage.save(again, 2, ("m", b"two"))
    job = await stage.row(jobs, place.job_id)
    assert (job.checkpoint_id, job.checkpoint_step) == (restarted, 2)


async def test_a_run_that_ends_during_a_commit_is_fenced(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the store and the last transaction the epoch may be lost: nothing is committed then."""
    place = await stage.running()
    opened = (await open_one(stage, place, 3, entry("a", b"one"))).json()
    await stage.store(place, b"one")
    head = type(stage.objects).head

    async def slow_head(self: Any, key: str) -> Any:
        await end(stage, place, LOST)
        return await head(self, key)

    monkeypatch.setattr(type(stage.objects), "head", slow_head)
    answer = await commit(stage, place, opened["checkpoint_id"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "fenced")
    job = await stage.row(jobs, place.job_id)
    assert (job.checkpoint_id, (await stage.row(checkpoints, opened["checkpoint_id"])).state) == (None, "aborted")


async def test_a_store_that_is_away_is_told_as_such(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 and retryable: an agent waits and tries again, instead of giving its checkpoint up."""
    place = await stage.running()
    opened = (await open_one(stage, place, 3, entry("a", b"one"))).json()

    async def away(self: Any, key: str) -> Any:
        raise StoreUnavailable("the object store does not answer")

    monkeypatch.setattr(type(stage.objects), "head", away)
    answer = await commit(stage, place, opened["checkpoint_id"])
    assert (answer.status_code, answer.json()["error"]["retryable"]) == (503, True)
    assert (await stage.row(checkpoints, opened["checkpoint_id"])).state == "open"


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ({}, [30, 40, 50]),
        ({"keep_last": 1}, [50]),
        ({"keep_last": 1, "keep_every_steps": 20}, [10, 20, 40, 50]),
        ({"keep_last": 1, "keep_best": {"metric": "loss", "mode": "min"}}, [30, 50]),
    ],
)
async def test_a_commit_lets_go_of_what_the_jobs_rule_does_not_keep(
    stage: Stage, rule: dict[str, Any], left: list[int]
) -> None:
    """The newest three by default; what was let go of is not offered for reading any more."""
    place = await stage.running(template={"checkpoints": rule})
    losses = {10: 0.9, 20: 0.8, 30: 0.1, 40: 0.2, 50: 0.3}
    for step, loss in losses.items():
        data = f"weights {step}".encode()
        body = {**place.writer(), "step": step, "files": [entry("model", data)], "metrics": {"loss": loss}}
        opened = (await stage.post(place, "/checkpoints", body)).json()
        await stage.store(place, data)
        assert (await commit(stage, place, opened["checkpoint_id"])).status_code == 200
        assert (await commit(stage, place, opened["checkpoint_id"])).status_code == 200
    assert [row.step for row in await stage.rows(checkpoints, state="committed")] == left
    for step in losses:
        body = {**place.job(), "sha256s": [sha(f"weights {step}".encode())]}
        assert (await stage.post(place, "/downloads", body)).status_code == (200 if step in left else 404)
