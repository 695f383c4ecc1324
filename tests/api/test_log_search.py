"""Searching logs over the real store."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.context import ApiContext
from app.core.model.run import RunState
from app.services.reading import search_log
from tests.api.builders import add_chunk, add_ended_run, add_job, add_run
from tests.api.conftest import Tenant, error_of
from tests.seeds import new_id


async def search(tenant: Tenant, job_id: str, q: str, **query: Any) -> dict[str, Any]:
    response = await tenant.http.get(f"/v1/jobs/{job_id}/logs/search", params={"q": q, **query})
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


async def every(tenant: Tenant, job_id: str, q: str, **query: Any) -> list[dict[str, Any]]:
    found, cursor = [], None
    while True:
        page = await search(tenant, job_id, q, **query, **({} if cursor is None else {"cursor": cursor}))
        found += page["data"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


async def log_of_two_runs(context: ApiContext, tenant: Tenant) -> str:
    """`start / loss 2 / loss 1 / (a line where the second run begins) / loss 0.5 / Done loss`, cut inside lines."""
    job_id = await add_job(context, tenant)
    first = await add_ended_run(context, tenant, job_id, epoch=1)
    second = await add_ended_run(context, tenant, job_id, epoch=2)
    await add_chunk(context, tenant, job_id, first, 1, 0, "start\nloss")
    await add_chunk(context, tenant, job_id, first, 1, 1, " 2\nloss 1\n")
    await add_chunk(context, tenant, job_id, second, 2, 0, "loss 0.5\n")
    await add_chunk(context, tenant, job_id, second, 2, 1, "Done LOSS")
    return job_id


async def test_lines_are_found_with_their_number_over_all_runs(tenant: Tenant, context: ApiContext) -> None:
    """Literally, in order, numbered as in the whole log; in any case on request; in pages of any size."""
    job_id = await log_of_two_runs(context, tenant)
    for limit in (1, 2, 100):
        found = await every(tenant, job_id, "loss", limit=limit)
        assert [(one["line"], one["text"]) for one in found] == [(2, "loss 2"), (3, "loss 1"), (5, "loss 0.5")]
        found = await every(tenant, job_id, "loss", limit=limit, ignore_case=True)
        assert [one["line"] for one in found] == [2, 3, 5, 6]
    assert await every(tenant, job_id, "loss 0.5") == found[2:3]
    assert await every(tenant, job_id, "loss.0") == []
    lines = (await tenant.http.get(f"/v1/jobs/{job_id}/logs")).json()["text"].split("\n")
    assert [lines[one["line"] - 1] for one in found] == [one["text"] for one in found]


async def test_a_match_says_from_where_to_read_the_log(tenant: Tenant, context: ApiContext) -> None:
    """The log read from a match's position begins with the piece in which the line begins."""
    job_id = await log_of_two_runs(context, tenant)
    for q, begins in (
        ("loss 2", "start\nloss 2"),
        ("loss 1", " 2\nloss 1"),
        ("loss 0.5", "---- run 2 on A100, begins at step 0 ----\nloss 0.5"),
        ("Done", "Done"),
    ):
        (match,) = await every(tenant, job_id, q)
        response = await tenant.http.get(f"/v1/jobs/{job_id}/logs", params={"position": match["position"]})
        assert response.json()["text"].startswith(begins)
        assert response.json()["text"].endswith("Done LOSS")


async def test_a_lost_piece_is_told_and_does_not_end_the_search(tenant: Tenant, context: ApiContext) -> None:
    """What the store has lost counts as the one line that the log shows for it."""
    job_id = await add_job(context, tenant)
    run_id = await add_ended_run(context, tenant, job_id)
    await add_chunk(context, tenant, job_id, run_id, 1, 0, "lost\n", stored=False)
    await add_chunk(context, tenant, job_id, run_id, 1, 1, "found\n")
    (match,) = await every(tenant, job_id, "found")
    assert match["line"] == 2


async def test_a_running_job_is_searched_as_far_as_its_log_is_whole(tenant: Tenant, context: ApiContext) -> None:
    """A piece that overtook its predecessor waits for it, as it does for readers."""
    job_id = await add_job(context, tenant)
    run_id, _ = await add_run(context, tenant, job_id, state=RunState.RUNNING)
    await add_chunk(context, tenant, job_id, run_id, 1, 0, "one x\n")
    await add_chunk(context, tenant, job_id, run_id, 1, 2, "three x\n")
    assert [one["line"] for one in await every(tenant, job_id, "x")] == [1]
    await add_chunk(context, tenant, job_id, run_id, 1, 1, "two x\n")
    assert [one["line"] for one in await every(tenant, job_id, "x")] == [1, 2, 3]


async def test_one_request_looks_at_a_bounded_part(
    tenant: Tenant, context: ApiContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that found nothing in its part says where to go on; the walk finds everything all the same."""
    monkeypatch.setattr(search_log, "MAX_SCAN_BYTES", 1)
    monkeypatch.setattr("app.services.reading.read_log.MAX_PAGE_BYTES", 10)
    job_id = await log_of_two_runs(context, tenant)
    page = await search(tenant, job_id, "Done")
    assert page["data"] == []
    assert page["next_cursor"] is not None
    assert [one["line"] for one in await every(tenant, job_id, "Done")] == [6]


async def test_searches_that_cannot_be(tenant: Tenant, stranger: Tenant, context: ApiContext) -> None:
    """Nothing to look for, a strange cursor, a job of others."""
    job_id = await add_job(context, tenant)
    path = f"/v1/jobs/{job_id}/logs/search"
    for query in ({}, {"q": ""}, {"q": "a\nb"}, {"q": "a", "cursor": "x"}, {"q": "a", "limit": 0}):
        error_of(await tenant.http.get(path, params=query), 422, "invalid_input")
    error_of(await stranger.http.get(path, params={"q": "a"}), 404, "not_found")
    error_of(await tenant.http.get(f"/v1/jobs/{new_id('job')}/logs/search?q=a"), 404, "not_found")
    assert await every(tenant, job_id, "a") == []
