"""What the runs of a job left behind is the job's, whichever of them is heard first, last, or twice."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, text

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.run import RunEnd
from app.db.runs.results import results_of
from app.db.tables import artifacts, job_events, run_results
from app.services.jobs.cancel_job import cancel_job
from app.services.runs.end_run import end_run
from tests.services.agents.conftest import Place, Stage, entry, sha

MOVED = Outcome(RunEnd.MIGRATED, JobState.WAITING, None, False, "its job goes on elsewhere")
DATA = {"path": "data/cache", "size_bytes": 12_000_000_000, "files": 40, "why": "over the limit of 10.0 GB"}


async def tell(stage: Stage, place: Place, files: dict[str, bytes], **more: Any) -> int:
    for data in files.values():
        await stage.store(place, data)
    entries = [entry(path, data) for path, data in files.items()]
    body = {**place.writer(), "files": entries, "joins": True, "final": True, **more}
    answer = await stage.post(place, "/artifacts", body)
    assert answer.status_code in (204, 404, 409), answer.text
    return answer.status_code


async def kept(stage: Stage) -> dict[str, str]:
    return {row.path: row.sha256 for row in await stage.rows(artifacts)}


async def told(stage: Stage, place: Place) -> list[Any]:
    return [row for row in await stage.rows(job_events, job_id=place.job_id) if row.kind == "results_kept"]


async def moved(stage: Stage) -> tuple[Place, Place]:
    """A run that is over, and the one that its job goes on with."""
    first = await stage.running()
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, first.run_id, MOVED, now_ms=stage.clock.ms)
    return first, await stage.next_run(first)


async def test_files_of_a_run_that_was_moved_stay_beside_those_of_the_next(stage: Stage) -> None:
    """What both wrote is the later one's; what only the first wrote is not lost."""
    first, second = await moved(stage)
    assert await tell(stage, first, {"runs/events.1": b"first", "out/model": b"half"}) == 204
    assert await tell(stage, second, {"runs/events.2": b"second", "out/model": b"whole"}) == 204
    expected = {"runs/events.1": sha(b"first"), "runs/events.2": sha(b"second"), "out/model": sha(b"whole")}
    assert await kept(stage) == expected
    assert await tell(stage, first, {"runs/events.1": b"first", "out/model": b"late"}) == 204
    assert await kept(stage) == expected


async def test_a_file_and_a_folder_of_one_name_are_not_both_kept(stage: Stage) -> None:
    """The later run's is, whoever is heard first: a download could not lay them out."""
    first, second = await moved(stage)
    await tell(stage, first, {"out": b"file", "log/1": b"log", "other": b"other"})
    await tell(stage, second, {"out/model": b"folder", "log": b"now a file"})
    assert set(await kept(stage)) == {"out/model", "log", "other"}
    await tell(stage, first, {"out": b"file", "log/1": b"log", "other": b"other"})
    assert set(await kept(stage)) == {"out/model", "log", "other"}


async def test_what_a_run_removed_is_no_result_any_more(stage: Stage) -> None:
    """Of its own files alone."""
    first, second = await moved(stage)
    await tell(stage, first, {"a": b"1"})
    await tell(stage, second, {"checkpoint-1": b"1", "b": b"1"}, final=False)
    await tell(stage, second, {"checkpoint-2": b"2", "b": b"1"}, final=False)
    assert set(await kept(stage)) == {"a", "b", "checkpoint-2"}


async def test_the_last_word_of_a_run_is_told_once_and_counts(stage: Stage) -> None:
    """Repeated, it is no second event; what was on its way before it changes nothing."""
    place = await stage.running()
    for _ in range(2):
        await tell(stage, place, {"model": b"model"}, left=[DATA], left_files=41, left_bytes=12_000_000_100)
    await tell(stage, place, {}, final=False)
    assert set(await kept(stage)) == {"model"}
    (event,) = await told(stage, place)
    assert event.message == (
        "1 file of this run is kept (5 B); left behind: data/cache, 12.0 GB (over the limit of 10.0 GB)"
    )
    assert event.data["left"] == [DATA]
    async with stage.database.transaction() as connection:
        found = await results_of(connection, place.job_id)
    assert (found.files, found.size_bytes, found.left_files, found.left_bytes) == (1, 5, 41, 12_000_000_100)
    assert found.left == [DATA]


async def test_a_cancelled_job_keeps_what_its_machine_still_sends(stage: Stage) -> None:
    """Its state stays what it is."""
    place = await stage.running()
    async with stage.database.transaction() as connection:
        await cancel_job(connection, stage.ids, place.project_id, place.job_id, now_ms=stage.clock.ms)
    assert await tell(stage, place, {"best.pt": b"best"}) == 204
    assert set(await kept(stage)) == {"best.pt"}
    assert [row.kind for row in await stage.rows(job_events, job_id=place.job_id)][-1] == "results_kept"


async def test_another_node_adds_nothing_to_a_job(stage: Stage) -> None:
    mine, theirs = await stage.running(), await stage.running()
    body = {**theirs.writer(), "files": [], "joins": True}
    assert (await stage.post(mine, "/artifacts", body)).status_code == 404
    unknown = {**mine.writer(), "epoch": 7, "files": [], "joins": True}
    assert (await stage.post(mine, "/artifacts", unknown)).status_code == 409
    assert await stage.rows(run_results) == []


async def test_bytes_that_are_not_stored_are_no_results(stage: Stage) -> None:
    place = await stage.running()
    body = {**place.writer(), "files": [entry("a", b"never sent")], "joins": True, "final": True}
    assert (await stage.post(place, "/artifacts", body)).status_code == 409
    assert (await kept(stage), await told(stage, place)) == ({}, [])


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a//b", "a\\b"])
async def test_paths_that_lead_out_are_refused(stage: Stage, path: str) -> None:
    place = await stage.running()
    await stage.store(place, b"x")
    body = {**place.writer(), "files": [entry(path, b"x")], "joins": True}
    assert (await stage.post(place, "/artifacts", body)).status_code == 422


async def test_ten_thousand_files_beside_fifty_thousand_of_earlier_runs_take_seconds(stage: Stage) -> None:
    """No statement grows with them."""
    first, second = await moved(stage)
    await stage.store(second, b"x")
    async with stage.database.transaction() as connection:
        await connection.execute(
            text(
                "INSERT INTO artifacts SELECT :job, 'old/' || n, :run, repeat('a', 64), 1, 0 "
                "FROM generate_series(1, 50000) n"
            ),
            {"job": first.job_id, "run": first.run_id},
        )
    files = [entry(f"new/{number}", b"x") for number in range(10_000)]
    body = {**second.writer(), "files": files, "joins": True, "final": True}
    for _ in range(2):
        assert (await stage.post(second, "/artifacts", body)).status_code == 204
    async with stage.database.transaction() as connection:
        assert (await results_of(connection, second.job_id)).files == 60_000
        counted = await connection.execute(func.count().select().select_from(artifacts))
    assert counted.scalar_one() == 60_000
