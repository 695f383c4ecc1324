"""Who may write, and what becomes of it: fences, transfers, logs, metrics, artifacts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from app.api.agent import NodeRates
from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.run import RunEnd
from app.db.tables import artifacts, checkpoints, job_events, jobs, log_chunks, metric_points, system_samples
from app.services.kit.rate_limit import RateLimiter
from app.services.runs.end_run import end_run
from tests.services.agents.conftest import BUNDLE, Place, Stage, entry, sha

LOST = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "its agent is silent")


def chunk(sequence: int, data: bytes) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "sha256": sha(data),
        "size_bytes": len(data),
        "line_count": data.count(b"\n"),
        "first_ms": 1,
        "last_ms": 2,
    }


def point(step: int, **values: float) -> dict[str, Any]:
    return {"step": step, "at_ms": 5, "values": values}


def every_write(place: Place) -> dict[str, dict[str, Any]]:
    """One request of each kind that needs the epoch."""
    return {
        "/checkpoints": {**place.writer(), "step": 1, "files": [entry("a", b"1")]},
        "/checkpoints/ckpt_1/commit": place.job(),
        "/checkpoints/ckpt_1/damaged": {**place.job(), "sha256": "a" * 64},
        "/metrics": {**place.writer(), "points": [point(1, loss=1.0)]},
        "/system": {**place.writer(), "samples": [{"at_ms": 5, "values": {"system/cpu_percent": 1.0}}]},
        "/artifacts": {**place.writer(), "files": []},
        "/downloads": {**place.job(), "sha256s": [sha(BUNDLE)]},
    }


async def test_a_zombie_writes_nothing(stage: Stage) -> None:
    """After its run was given up, every write of the old epoch is 409 `fenced`, also once a new run is there."""
    zombie = await stage.running()
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, zombie.run_id, LOST, now_ms=stage.clock.ms)
    for _ in range(2):
        for path, body in every_write(zombie).items():
            answer = await stage.post(zombie, path, body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "fenced"), path
        new = await stage.next_run(zombie)
    for table in (checkpoints, metric_points, system_samples, artifacts):
        assert await stage.rows(table) == []
    body = {**new.writer(), "points": [point(1, loss=2.0)]}
    assert (await stage.post(new, "/metrics", body)).status_code == 204


async def test_a_run_cannot_borrow_a_newer_epoch(stage: Stage) -> None:
    """A run id that does not hold the epoch it names is fenced, whatever the epoch."""
    old = await stage.running()
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, old.run_id, LOST, now_ms=stage.clock.ms)
    new = await stage.next_run(old)
    for epoch in (old.epoch, new.epoch, new.epoch + 1):
        body = {"run_id": old.run_id, "job_id": old.job_id, "epoch": epoch, "points": [point(1, loss=1.0)]}
        assert (await stage.post(old, "/metrics", body)).status_code == 409


async def test_a_node_touches_no_job_of_another(stage: Stage) -> None:
    """Jobs of other nodes and projects do not exist for it, for reading, writing, logging or storing."""
    mine, theirs = await stage.running(), await stage.running()
    requests = every_write(theirs) | {
        "/uploads": {**theirs.job(), "files": [entry("0.log", b"1")]},
        "/logs": {**theirs.writer(), "chunks": [chunk(0, b"x")]},
    }
    for path, body in requests.items():
        assert (await stage.post(mine, path, body)).status_code == 404, path
    opened = await stage.post(theirs, "/checkpoints", every_write(theirs)["/checkpoints"])
    foreign = f"/checkpoints/{opened.json()['checkpoint_id']}/commit"
    assert (await stage.post(mine, foreign, mine.job())).status_code == 404


async def test_a_job_reads_its_code_and_its_committed_checkpoints_only(stage: Stage) -> None:
    """Not what is merely uploaded, not another job's files, even in the same store."""
    place = await stage.running()
    await stage.save(place, 1, ("model", b"weights"))
    await stage.post(place, "/checkpoints", {**place.writer(), "step": 2, "files": [entry("m", b"open")]})
    body = {**place.job(), "sha256s": [sha(BUNDLE), sha(b"weights")]}
    urls = (await stage.post(place, "/downloads", body)).json()["urls"]
    assert set(urls) == {sha(BUNDLE), sha(b"weights")}
    assert all(place.project_id in url for url in urls.values())
    answer = await stage.post(place, "/downloads", {**place.job(), "sha256s": [sha(BUNDLE), sha(b"open")]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "sha256s[1]")


async def test_logs_of_a_run_that_is_over_still_arrive(stage: Stage) -> None:
    """Upload URL and index both: a log is never lost to fencing. Repeating a chunk changes nothing."""
    place = await stage.running()
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, LOST, now_ms=stage.clock.ms)
    urls = (await stage.post(place, "/uploads", {**place.job(), "files": [entry("0.log", b"last\n")]})).json()["urls"]
    assert list(urls) == [sha(b"last\n")]
    report = {**place.writer(), "chunks": [chunk(0, b"last\n")]}
    missing = await stage.post(place, "/logs", report)
    assert (missing.status_code, missing.json()["error"]["code"]) == (409, "conflict")
    await stage.store(place, b"last\n")
    for _ in range(2):
        assert (await stage.post(place, "/logs", report)).status_code == 204
    await stage.store(place, b"other\n")
    assert (await stage.post(place, "/logs", {**place.writer(), "chunks": [chunk(0, b"other\n")]})).status_code == 204
    (row,) = await stage.rows(log_chunks)
    assert (row.epoch, row.sequence, row.sha256, row.line_count) == (1, 0, sha(b"last\n"), 1)
    assert (await stage.post(place, "/uploads", {**place.job(), "files": [entry("0.log", b"last\n")]})).json() == {
        "urls": {}
    }


async def test_a_repeated_step_is_overwritten_by_the_current_epoch(stage: Stage) -> None:
    """After a resume the replayed steps are measured again; within one report the last value wins."""
    place = await stage.running()
    points = [point(1, loss=3.0), point(2, loss=2.0), point(2, loss=1.5)]
    await stage.post(place, "/metrics", {**place.writer(), "points": points})
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, LOST, now_ms=stage.clock.ms)
    again = await stage.next_run(place)
    await stage.post(again, "/metrics", {**again.writer(), "points": [point(2, loss=1.0)]})
    stored = [(row.step, row.epoch, row.values) for row in await stage.rows(metric_points)]
    assert stored == [(1, 1, {"loss": 3.0}), (2, 3, {"loss": 1.0})]


async def test_metrics_move_the_jobs_step_once_user_code_runs(stage: Stage) -> None:
    """Forward only; and not before the run is known to run, when it may still be corrected by where it resumed."""
    place = await stage.place()
    await stage.post(place, "/metrics", {**place.writer(), "points": [point(30, loss=1.0)]})
    assert (await stage.row(jobs, place.job_id)).step == 0
    await stage.sync(place, place.report("running"))
    for step in (4, 2):
        await stage.post(place, "/metrics", {**place.writer(), "points": [point(step, loss=1.0)]})
    assert (await stage.row(jobs, place.job_id)).step == 4


async def test_a_value_that_is_no_number_is_told_once_and_left_out(stage: Stage) -> None:
    """A loss that became NaN is the first thing its user wants to know; it must not stop the other values."""
    place = await stage.running()
    for step in (1, 2):
        body = {**place.writer(), "points": [point(step, loss=float("nan"), lr=0.1), point(9, loss=float("inf"))]}
        answer = await stage.client.post(
            "/v1/agent/metrics",
            content=json.dumps(body),
            headers={"Authorization": f"Bearer {place.token}", "Content-Type": "application/json"},
        )
        assert answer.status_code == 204
    assert [(row.step, row.values) for row in await stage.rows(metric_points)] == [
        (1, {"lr": 0.1}),
        (2, {"lr": 0.1}),
        (9, {}),
    ]
    (told,) = [event for event in await stage.rows(job_events) if event.kind == "metric_not_finite"]
    assert told.message == "loss is nan at step 1: not a number any more"


async def test_a_node_sends_no_more_than_its_share(stage: Stage) -> None:
    """Points and pieces of logs are counted by node, whatever number of runs it has: who sends too many is asked to
    come later, and another node is not concerned."""
    place, other = await stage.running(), await stage.running()
    stage.app.state.node_rates = NodeRates(
        RateLimiter(10, 20, stage.clock, what="metric points", whose="of this node"),
        RateLimiter(1, 2, stage.clock, what="pieces of logs", whose="of this node"),
        RateLimiter(1, 2, stage.clock, what="probes", whose="of this node"),
    )
    many = {**place.writer(), "points": [point(step, loss=1.0) for step in range(15)]}
    assert (await stage.post(place, "/metrics", many)).status_code == 204
    refused = await stage.post(place, "/metrics", many)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
    assert "more than 10 metric points a second of this node" in refused.json()["error"]["message"]
    assert refused.headers["Retry-After"] == "1"
    assert (await stage.post(other, "/metrics", {**many, **other.writer()})).status_code == 204
    stage.clock.ms += 1000
    assert (await stage.post(place, "/metrics", many)).status_code == 204
    await stage.store(place, b"line\n")
    report = {**place.writer(), "chunks": [chunk(number, b"line\n") for number in range(3)]}
    assert (await stage.post(place, "/logs", report)).status_code == 204, "a full bucket lets any report in"
    assert (await stage.post(place, "/logs", report)).status_code == 429


async def test_artifacts_are_a_set_that_is_replaced_whole(stage: Stage) -> None:
    """The second report is what there is; a file whose bytes are not stored is refused, and nothing changes."""
    place = await stage.running()
    await stage.store(place, b"one")
    await stage.store(place, b"two")
    for files in ([entry("a", b"one"), entry("b", b"two")], [entry("b", b"one")]):
        assert (await stage.post(place, "/artifacts", {**place.writer(), "files": files})).status_code == 204
    refused = await stage.post(place, "/artifacts", {**place.writer(), "files": [entry("c", b"three")]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert [(row.path, row.sha256) for row in await stage.rows(artifacts)] == [("b", sha(b"one"))]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/metrics", {"points": [{"step": 2**63, "at_ms": 1, "values": {}}]}),
        ("/metrics", {"points": [{"step": 1, "at_ms": 2**63, "values": {}}]}),
        ("/metrics", {"job_id": "job_\x00"}),
        ("/metrics", {"epoch": 2**31}),
        ("/checkpoints", {"step": 2**63}),
        ("/checkpoints", {"files": [{"path": "a", "sha256": "a" * 64, "size_bytes": 2**63}]}),
    ],
)
async def test_numbers_and_names_that_no_column_holds_are_refused(
    stage: Stage, path: str, change: dict[str, Any]
) -> None:
    """With 422 at the door, not with an error of the database."""
    place = await stage.running()
    answer = await stage.post(place, path, every_write(place)[path] | change)
    assert answer.status_code == 422


async def test_ending_a_run_while_it_writes_leaves_no_write_behind_the_end(stage: Stage) -> None:
    """Writers and the end of their run may meet in any order: each write is whole before it, or refused."""
    place = await stage.running()

    async def finish() -> int:
        async with stage.database.transaction() as connection:
            await end_run(connection, stage.ids, place.run_id, LOST, now_ms=stage.clock.ms)
        return len(await stage.rows(metric_points))

    async def write(step: int) -> int:
        body = {**place.writer(), "points": [point(step, loss=1.0)]}
        return (await stage.post(place, "/metrics", body)).status_code

    results = await asyncio.gather(*(write(n) for n in range(10)), finish(), *(write(n) for n in range(10, 20)))
    at_the_end = results.pop(10)
    codes = results
    assert set(codes) <= {204, 409}
    assert codes.count(204) == len(await stage.rows(metric_points)) == at_the_end
