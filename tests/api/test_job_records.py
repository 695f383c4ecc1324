"""What a job leaves behind, read while it is still being written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import update

from allpass.wire.jobs import LogPage
from app.api.context import ApiContext
from app.core.model.checkpoint import CheckpointState
from app.core.model.job import JobState
from app.core.model.run import RunState
from app.db.runs.results import LeftBehind, set_results
from app.db.tables import jobs, run_results, runs
from app.db.transitions import Event, add_job_event
from app.services.reading.read_log import MAX_PAGE_CHUNKS
from tests.api.builders import (
    add_artifact,
    add_checkpoint,
    add_chunk,
    add_ended_run,
    add_job,
    add_metric,
    add_run,
)
from tests.api.conftest import Tenant, error_of
from tests.seeds import T0_MS

LONG_S = 30  # a wait that only news can end within the test's patience

SECOND = "---- run 2 on A100, begins at step 0 ----\n"  # where the part of the second run begins


async def add_events(context: ApiContext, job_id: str, count: int) -> None:
    async with context.database.transaction() as connection:
        for number in range(count):
            await add_job_event(connection, job_id, Event("note", f"n{number}", {"n": number}), now_ms=T0_MS)


async def set_states(context: ApiContext, job_id: str, state: JobState, run_id: str | None = None) -> None:
    async with context.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == job_id).values(state=state))
        if run_id is not None:
            await connection.execute(update(runs).where(runs.c.id == run_id).values(state=RunState.ENDED))


async def read_log(tenant: Tenant, job_id: str, position: str | None = None, **query: Any) -> LogPage:
    params = query | ({} if position is None else {"position": position})
    response = await tenant.http.get(f"/v1/jobs/{job_id}/logs", params=params)
    assert response.status_code == 200, response.text
    return LogPage.model_validate(response.json())


async def test_events_are_read_in_order_from_any_position(tenant: Tenant, context: ApiContext) -> None:
    """By pages of `limit`, after `after`, without gaps."""
    job_id = await add_job(context, tenant)
    await add_events(context, job_id, 7)
    seen: list[int] = []
    while True:
        page = (await tenant.http.get(f"/v1/jobs/{job_id}/events", params={"after": len(seen), "limit": 3})).json()
        seen += [event["position"] for event in page["data"]]
        assert (page["next_cursor"] is None) == (len(seen) == 7)
        if page["next_cursor"] is None:
            break
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert page["data"][0]["data"] == {"n": 6}


@pytest.mark.usefixtures("listening")
async def test_a_waiting_reader_is_woken_by_the_next_event(tenant: Tenant, context: ApiContext) -> None:
    """Long before its wait is over, and with the event."""
    job_id = await add_job(context, tenant)
    reading = asyncio.create_task(tenant.http.get(f"/v1/jobs/{job_id}/events", params={"wait_s": LONG_S}))
    while not context.listener._watchers:
        await asyncio.sleep(0.01)
    await add_events(context, job_id, 1)
    async with asyncio.timeout(0.9 * LONG_S):
        page = (await reading).json()
    assert [event["position"] for event in page["data"]] == [1]


async def test_a_lost_notification_only_delays(tenant: Tenant, context: ApiContext) -> None:
    """Without a listener the poll behind it finds the event."""
    job_id = await add_job(context, tenant)
    reading = asyncio.create_task(tenant.http.get(f"/v1/jobs/{job_id}/events", params={"wait_s": LONG_S}))
    while not context.listener._watchers:
        await asyncio.sleep(0.01)
    await add_events(context, job_id, 1)
    async with asyncio.timeout(0.9 * LONG_S):
        assert len((await reading).json()["data"]) == 1


async def test_nobody_waits_for_events_of_a_job_that_is_over(tenant: Tenant, context: ApiContext) -> None:
    """The empty answer comes at once; without news of a live job it comes when the wait is over."""
    job_id = await add_job(context, tenant)
    waited = await tenant.http.get(f"/v1/jobs/{job_id}/events", params={"wait_s": 0.05})
    assert waited.json() == {"data": [], "next_cursor": None}
    await set_states(context, job_id, JobState.FAILED)
    answer = tenant.http.get(f"/v1/jobs/{job_id}/events", params={"wait_s": LONG_S})
    async with asyncio.timeout(0.9 * LONG_S):
        assert (await answer).json() == {"data": [], "next_cursor": None}


async def test_a_log_is_one_text_over_all_runs(tenant: Tenant, context: ApiContext) -> None:
    """In the order of epochs, then of pieces; read once to the end it is complete."""
    job_id = await add_job(context, tenant, state=JobState.SUCCEEDED)
    for epoch in (3, 1):
        run_id = await add_ended_run(context, tenant, job_id, epoch=epoch)
        for sequence in (1, 0):
            await add_chunk(context, tenant, job_id, run_id, epoch, sequence, f"{epoch}.{sequence} ü\n")
    page = await read_log(tenant, job_id)
    assert page.text == f"1.0 ü\n1.1 ü\n{SECOND}3.0 ü\n3.1 ü\n"
    assert page.complete
    again = await read_log(tenant, job_id, page.next_position)
    assert (again.text, again.complete, again.next_position) == ("", True, page.next_position)


@pytest.mark.usefixtures("listening")
async def test_a_followed_log_neither_skips_nor_repeats_while_it_is_written(
    tenant: Tenant, context: ApiContext
) -> None:
    """Pieces arrive while a reader follows, out of order and across a move; the reader ends with all of it."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=1)
    first, _ = await add_run(context, tenant, job_id, epoch=1)

    async def follow() -> str:
        text, position = "", None
        while True:
            page = await read_log(tenant, job_id, position, wait_s=LONG_S)
            text, position = text + page.text, page.next_position
            if page.complete:
                return text

    async def write() -> None:
        for sequence in (1, 0, 3, 2):
            await add_chunk(context, tenant, job_id, first, 1, sequence, f"a{sequence}\n")
        await set_states(context, job_id, JobState.WAITING, first)
        second, _ = await add_run(context, tenant, job_id, epoch=3)
        for sequence in range(40):
            await add_chunk(context, tenant, job_id, second, 3, sequence, f"b{sequence}\n")
        await set_states(context, job_id, JobState.SUCCEEDED, second)
        await add_events(context, job_id, 1)

    async with asyncio.timeout(60):
        text, _ = await asyncio.gather(follow(), write())
    assert text == "".join([f"a{n}\n" for n in range(4)] + [SECOND] + [f"b{n}\n" for n in range(40)])


async def test_a_late_piece_of_an_old_run_is_still_told(tenant: Tenant, context: ApiContext) -> None:
    """A machine that was cut off delivers when the next run has long begun: nothing is lost, nothing comes twice."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=3)
    first = await add_ended_run(context, tenant, job_id, epoch=1)
    second, _ = await add_run(context, tenant, job_id, epoch=3)
    await add_chunk(context, tenant, job_id, first, 1, 0, "a0\n")
    await add_chunk(context, tenant, job_id, second, 3, 0, "b0\n")
    page = await read_log(tenant, job_id)
    assert (page.text, page.complete) == (f"a0\n{SECOND}b0\n", False)
    await add_chunk(context, tenant, job_id, first, 1, 1, "a1\n")
    late = await read_log(tenant, job_id, page.next_position)
    assert late.text == "a1\n"
    assert (await read_log(tenant, job_id, late.next_position)).text == ""


async def test_a_piece_waits_for_the_one_before_it_only_while_its_run_lives(
    tenant: Tenant, context: ApiContext
) -> None:
    """A gap may still be filled; after the run's end it is passed over."""
    job_id = await add_job(context, tenant, state=JobState.RUNNING, epoch=1)
    run_id, _ = await add_run(context, tenant, job_id, epoch=1)
    for sequence in (0, 2):
        await add_chunk(context, tenant, job_id, run_id, 1, sequence, f"{sequence}\n")
    page = await read_log(tenant, job_id)
    assert page.text == "0\n"
    await set_states(context, job_id, JobState.FAILED, run_id)
    rest = await read_log(tenant, job_id, page.next_position)
    assert (rest.text, rest.complete) == ("2\n", True)


async def test_a_log_is_not_complete_before_its_runs_have_ended(tenant: Tenant, context: ApiContext) -> None:
    """A job may be over a moment before its run is: its last lines are still to come."""
    job_id = await add_job(context, tenant, state=JobState.SUCCEEDED)
    run_id, _ = await add_run(context, tenant, job_id)
    await add_chunk(context, tenant, job_id, run_id, 1, 0, "x\n")
    assert not (await read_log(tenant, job_id)).complete
    await set_states(context, job_id, JobState.SUCCEEDED, run_id)
    assert (await read_log(tenant, job_id)).complete


async def test_long_logs_come_in_parts(tenant: Tenant, context: ApiContext) -> None:
    """A page is bounded; only the last one is complete."""
    job_id = await add_job(context, tenant, state=JobState.SUCCEEDED)
    run_id = await add_ended_run(context, tenant, job_id)
    for sequence in range(MAX_PAGE_CHUNKS + 3):
        await add_chunk(context, tenant, job_id, run_id, 1, sequence, f"{sequence}\n")
    first = await read_log(tenant, job_id)
    assert (first.text.count("\n"), first.complete) == (MAX_PAGE_CHUNKS, False)
    rest = await read_log(tenant, job_id, first.next_position)
    assert (rest.text.count("\n"), rest.complete) == (3, True)


async def test_a_lost_piece_is_told_and_reading_goes_on(tenant: Tenant, context: ApiContext) -> None:
    """The object store does not have it any more: a line says so in its place."""
    job_id = await add_job(context, tenant, state=JobState.SUCCEEDED)
    run_id = await add_ended_run(context, tenant, job_id)
    await add_chunk(context, tenant, job_id, run_id, 1, 0, "gone\n", stored=False)
    await add_chunk(context, tenant, job_id, run_id, 1, 1, "here\n")
    page = await read_log(tenant, job_id)
    assert (page.text, page.complete) == ("[allpass: 5 bytes of this log are lost]\nhere\n", True)


@pytest.mark.parametrize("position", ["x", "1", "1.", "1.2-", "1.2.3", "-1.2", "1.9999999999", "1.2 "])
async def test_a_position_that_is_none_is_refused(tenant: Tenant, context: ApiContext, position: str) -> None:
    """Positions are opaque: only what was given out is taken back."""
    job_id = await add_job(context, tenant)
    response = await tenant.http.get(f"/v1/jobs/{job_id}/logs", params={"position": position})
    assert error_of(response, 422, "invalid_input")["param"] == "position"


async def test_metrics_are_read_by_step(tenant: Tenant, context: ApiContext) -> None:
    """After a step, by pages; step 0 is a step."""
    job_id = await add_job(context, tenant)
    for step in (20, 0, 10):
        await add_metric(context, job_id, step, loss=step / 10)
    path = f"/v1/jobs/{job_id}/metrics"
    first = (await tenant.http.get(path, params={"limit": 2})).json()
    assert [(point["step"], point["values"]) for point in first["data"]] == [(0, {"loss": 0.0}), (10, {"loss": 1.0})]
    rest = (await tenant.http.get(path, params={"after": first["next_cursor"]})).json()
    assert ([point["step"] for point in rest["data"]], rest["next_cursor"]) == ([20], None)


async def test_only_complete_checkpoints_are_shown(tenant: Tenant, context: ApiContext) -> None:
    """Newest first, by pages; one that is open or given up is none yet, and has no files to offer."""
    job_id = await add_job(context, tenant)
    run_id = await add_ended_run(context, tenant, job_id)
    ids = [await add_checkpoint(context, tenant, job_id, run_id, step) for step in (1, 2, 3)]
    opened = await add_checkpoint(context, tenant, job_id, run_id, 4, state=CheckpointState.OPEN, paths=("a",))
    path = f"/v1/jobs/{job_id}/checkpoints"
    first = (await tenant.http.get(path, params={"limit": 2})).json()
    rest = (await tenant.http.get(path, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [one["id"] for one in first["data"] + rest["data"]] == ids[::-1]
    assert (rest["next_cursor"], first["data"][0]["metrics"]) == (None, {"loss": 1.5})
    error_of(await tenant.http.get(f"{path}/{opened}/files"), 404, "not_found")


async def test_files_come_with_links_into_the_store(tenant: Tenant, context: ApiContext) -> None:
    """Checkpoint files and artifacts by path, in pages, each with a signed link to its content."""
    job_id = await add_job(context, tenant)
    run_id = await add_ended_run(context, tenant, job_id)
    checkpoint_id = await add_checkpoint(context, tenant, job_id, run_id, 1, paths=("b/model", "a", "ü c"))
    for path in ("z.txt", "model/adapter.bin"):
        await add_artifact(context, job_id, run_id, path)
    for url, paths, sha256 in (
        (f"/v1/jobs/{job_id}/checkpoints/{checkpoint_id}/files", ["a", "b/model", "ü c"], "c" * 64),
        (f"/v1/jobs/{job_id}/artifacts", ["model/adapter.bin", "z.txt"], "d" * 64),
    ):
        whole = (await tenant.http.get(url)).json()["data"]
        assert [one["path"] for one in whole] == paths
        assert all(f"{tenant.project_id}/sha256/{sha256[:2]}/{sha256}" in one["url"] for one in whole)
        walked, cursor = [], None
        while True:
            page = (await tenant.http.get(url, params={"limit": 1} | ({"cursor": cursor} if cursor else {}))).json()
            walked += [one["path"] for one in page["data"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert walked == paths


async def test_a_job_tells_what_its_runs_left(tenant: Tenant, context: ApiContext) -> None:
    """How much is kept of all of them, and what the newest left behind; nothing before any has told."""
    job_id = await add_job(context, tenant)
    assert (await tenant.http.get(f"/v1/jobs/{job_id}")).json()["results"] is None
    first = await add_ended_run(context, tenant, job_id)
    second, _ = await add_run(context, tenant, job_id, epoch=2)
    await add_artifact(context, job_id, first, "out/model", "a" * 64)
    pipe = {"path": "pipe", "size_bytes": 0, "files": 1, "why": "is not a regular file"}
    for run_id, epoch, told in ((second, 2, LeftBehind([pipe], 1, 0)), (first, 1, LeftBehind([], 0, 0))):
        async with context.database.transaction() as connection:
            await set_results(connection, run_id, job_id, epoch, told, final=True, now_ms=T0_MS)
    results = (await tenant.http.get(f"/v1/jobs/{job_id}")).json()["results"]
    assert (results["files"], results["left"], results["left_files"]) == (1, [pipe], 1)
    async with context.database.transaction() as connection:
        await connection.execute(update(run_results).values(left_behind="garbage"))
    assert (await tenant.http.get(f"/v1/jobs/{job_id}")).json()["results"]["left"] == []
