"""Every question that the API answers, where there is much of everything: few statements, and pages that end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.app import create_app
from app.api.context import ApiContext
from app.db.engine import Database
from app.db.listen import Listener
from app.services.access.create_key import create_key
from app.settings import Settings
from app.storage.directory import DirectoryStore
from tests.api.conftest import SIGNING_KEY, client
from tests.api.document import named_operations
from tests.conftest import CountingIds, ManualClock
from tests.scale.ground import APPS, EVENTS, GONE_NODES, MANY, METERED_MS, POOLS, Ground, past_job, waiting_job
from tests.scale.statements import counted

_FEW = 20
_PARAMETERS = 40
_LIMIT = 100
_READS = {
    name: path
    for name, (method, path, operation) in named_operations().items()
    if method.lower() == "get" and "application/json" in operation["responses"]["200"]["content"]
}
_PAGED = {
    name
    for name, (_, _, operation) in named_operations().items()
    if {"cursor", "limit"} <= {one["name"] for one in operation.get("parameters", ())}
}
_NO_SUCH_ROW = {
    "get_reservation",
    "get_price_list",
    "get_calibration",
    "get_defragmentation",
    "get_sweep",
    "preview_artifact",
}
_ASKED = {"search_log": {"q": "loss"}, "preview_artifact": {"path": "none"}}
# What the lists of the ground hold, where they hold much.
_MUCH = {
    "list_apps": APPS,
    "list_artifacts": MANY,
    "list_audit": MANY,
    "list_events": EVENTS,
    "list_jobs": 2 * MANY,
    "list_job_lines": 2 * MANY,
    "list_metrics": MANY,
    "list_pools": POOLS,
    "list_ticks": MANY,
}
_FILTERS: list[dict[str, Any]] = [
    {"status": "queued"},
    {"status": ["succeeded", "running", "failed", "cancelled", "queued", "waiting", "paused", "starting"]},
    {"name": "job"},
    {"name": "no such name"},
    {"label": "team:none"},
    {"submitted_after": "2020-01-01T00:00:00Z", "submitted_before": "2040-01-01T00:00:00Z"},
]


@pytest.fixture
async def http(
    database: Database, database_url: str, ground: Ground, clock: ManualClock, ids: CountingIds, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    clock.ms = METERED_MS + 10_000
    context = ApiContext(
        database=database,
        listener=Listener(database_url, timeout_s=10.0),
        objects=DirectoryStore(tmp_path / "o", "http://127.0.0.1:1", SIGNING_KEY, max_object_bytes=1024, clock=clock),
        settings=Settings(database_url=database_url, objects_signing_key=SIGNING_KEY, secret_key="s" * 32),
        clock=clock,
        ids=ids,
    )
    async with database.transaction() as connection:
        key = await create_key(connection, ground.project_id, "test", ("admin", "owner"), clock=clock, ids=ids)
    app = create_app(context)
    async with client(app, key) as http:
        await http.post("/v1/session", json={"api_key": key})
        yield http
    await app.state.authenticator.settled()


async def test_every_question_is_answered_in_few_statements(http: httpx.AsyncClient, ground: Ground) -> None:
    """Whatever is asked of a project with much, of a job with a long past, or of one that waits among many."""
    for name, path in sorted(_READS.items()):
        for job_id in (past_job(0), waiting_job(MANY - 1)) if "{job_id}" in path else ("",):
            asked = _ASKED.get(name, {})
            with counted() as sent:
                answer = await http.get(_at(path, ground, job_id), params=asked)
            nothing = name in _NO_SUCH_ROW or ("{checkpoint_id}" in path and job_id != past_job(0))
            assert answer.status_code == (404 if nothing else 200), (name, answer.text)
            assert sent.count <= _FEW, f"{name} sent {sent.count} statements"
            assert sent.most_parameters <= _PARAMETERS, f"{name} sent {sent.most_parameters} parameters"


async def test_every_list_pages_through_much(http: httpx.AsyncClient, ground: Ground) -> None:
    """Full pages, one after the other, in no more statements than the first."""
    assert set(_MUCH) <= _PAGED
    for name in sorted(_MUCH):
        path = _at(_READS[name], ground, past_job(0))
        with counted() as first:
            page = (await http.get(path, params={"limit": _LIMIT})).json()
        with counted() as second:
            answer = await http.get(path, params={"limit": _LIMIT, "cursor": page["next_cursor"]})
        assert answer.status_code == 200, (name, answer.text)
        assert [len(one["data"]) for one in (page, answer.json())] == [_LIMIT, _LIMIT], name
        assert second.count <= first.count, name


async def test_filters_of_many_jobs_take_as_many_statements_as_none(http: httpx.AsyncClient) -> None:
    """Each finds its page, be it empty, with the same few parameters."""
    with counted() as plain:
        await http.get("/v1/jobs")
    for asked in _FILTERS:
        with counted() as sent:
            answer = await http.get("/v1/jobs", params=asked)
        assert answer.status_code == 200, answer.text
        assert sent.count <= plain.count
        assert sent.most_parameters <= _PARAMETERS


async def test_a_search_of_many_lines_takes_as_many_statements_as_a_page(http: httpx.AsyncClient) -> None:
    """Whatever is looked for, and however many are found."""
    with counted() as plain:
        await http.get("/v1/jobs/table")
    for asked in ({"q": "job"}, {"q": "no such name"}, {"status": "queued,running"}, {"label": "team:none"}):
        with counted() as sent:
            answer = await http.get("/v1/jobs/table", params=asked)
        assert answer.status_code == 200, answer.text
        assert sent.count <= plain.count + 4, "what is asked of jobs that have run"
        assert sent.most_parameters <= _PARAMETERS


async def test_machines_that_are_gone_are_listed_in_pages_too(http: httpx.AsyncClient) -> None:
    """All twenty thousand of them, if somebody asks; and the few that there are at once."""
    page = (await http.get("/v1/nodes", params={"all": True, "limit": _LIMIT})).json()
    assert len(page["data"]) == _LIMIT < GONE_NODES
    assert len((await http.get("/v1/nodes")).json()["data"]) == 1


def _at(path: str, ground: Ground, job_id: str) -> str:
    return path.format(
        job_id=job_id,
        app_id=ground.app[0],
        checkpoint_id=ground.checkpoint_id,
        sweep_id="sweep_01MCC5RM000000000000",
        calibration_id="cal_01MCC5RM000000000000",
        defragmentation_id="dfrg_01MCC5RM000000000000",
        reservation_id="resv_01MCC5RM000000000000",
        pool="pool7",
        provider="modal",
        sha256="a" * 64,
        tick_id=MANY,
    )
