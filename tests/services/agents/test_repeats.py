"""An agent whose answer was lost sends its request again as it was: the second one has no further effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.api.openapi import operations
from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.node import NodeState
from app.core.model.run import RunEnd
from app.db.nodes.join_tokens import add_join_token
from app.db.tables import metadata
from app.services.kit.node_tokens import TokenMint, token_sha256
from app.services.runs.end_run import end_run
from tests.api.document import document
from tests.services.agents.conftest import BUNDLE, Place, Stage, entry, sha

_LEFT = Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, "saved and left")
Request = tuple[Place, str, dict[str, Any]]
# That it called again is the one thing that may be written down, and that a row was written, were it as it was.
_NOT_COUNTED = {"node_heartbeats", "changed_rows"}


async def _join(stage: Stage) -> Request:
    place = await stage.place(node_state=NodeState.BOOTING)
    shown = TokenMint.of(stage.context.settings).join_token(place.node_id, 1)
    expires_ms = stage.clock.ms + 1000  # the second one comes after that
    async with stage.database.transaction() as connection:
        await add_join_token(connection, place.node_id, 1, token_sha256(shown), expires_ms=expires_ms)
    return replace(place, token=shown), "/join", {"agent_version": "1", "nonce": "5e" * 32}


async def _sync(stage: Stage) -> Request:
    place = await stage.running()
    report = place.report("running", step=7)
    return place, "/sync", {"agent_version": "1", "seen": 0, "wait_ms": 0, "runs": [report]}


async def _last_sync(stage: Stage) -> Request:
    place = await stage.running()
    report = place.report("exited", exit={"exit_code": 0})
    return place, "/sync", {"agent_version": "1", "seen": 0, "wait_ms": 0, "runs": [report]}


async def _installer(stage: Stage) -> Request:
    return await stage.running(), "/installer", {"machine": "x86_64"}


async def _downloads(stage: Stage) -> Request:
    place = await stage.running()
    return place, "/downloads", {**place.job(), "sha256s": [sha(BUNDLE)]}


async def _uploads(stage: Stage) -> Request:
    place = await stage.running()
    await stage.store(place, b"stored")
    return place, "/uploads", {**place.job(), "files": [entry("a", b"stored"), entry("b", b"missing")]}


async def _open(stage: Stage) -> Request:
    place = await stage.running()
    return place, "/checkpoints", {**place.writer(), "step": 5, "files": [entry("model", b"weights")]}


async def _coming(stage: Stage) -> Request:
    place = await stage.running()
    await stage.store(place, b"stored")
    spans = [
        {**entry("model", data), "file_bytes": 9000, "offset": offset, "start": 0, "length": len(data)}
        for offset, data in ((0, b"stored"), (4096, b"missing"))
    ]
    return place, "/checkpoints/coming", {**place.writer(), "step": 5, "spans": spans}


async def _refused(stage: Stage) -> Request:
    place = await stage.running()
    return place, "/refusals", {**place.writer(), "step": 5, "why": "pipe is not a regular file"}


async def _transfer(stage: Stage) -> Request:
    place = await stage.running()
    return place, "/transfers", {**place.writer(), "kind": "send", "done_bytes": 5, "total_bytes": 9}


async def _commit(stage: Stage) -> Request:
    place, path, body = await _open(stage)
    opened = (await stage.post(place, path, body)).json()
    await stage.store(place, b"weights")
    return place, f"/checkpoints/{opened['checkpoint_id']}/commit", place.job()


async def _damaged(stage: Stage) -> Request:
    place = await stage.running()
    checkpoint_id = await stage.save(place, 5, ("model", b"weights"))
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, _LEFT, now_ms=stage.clock.ms)
    again = await stage.next_run(place)
    await stage.sync(again)
    stage.spoil(place, b"weights")
    return again, f"/checkpoints/{checkpoint_id}/damaged", {**again.job(), "sha256": sha(b"weights")}


async def _logs(stage: Stage) -> Request:
    place = await stage.running()
    await stage.store(place, b"a line\n")
    piece = {"sequence": 0, "sha256": sha(b"a line\n"), "size_bytes": 7, "line_count": 1, "first_ms": 1, "last_ms": 2}
    return place, "/logs", {**place.writer(), "chunks": [piece]}


async def _metrics(stage: Stage) -> Request:
    place = await stage.running()
    return place, "/metrics", {**place.writer(), "points": [{"step": 3, "at_ms": 5, "values": {"loss": 1.5}}]}


async def _system(stage: Stage) -> Request:
    place = await stage.running()
    return place, "/system", {**place.writer(), "samples": [{"at_ms": 5, "values": {"system/cpu_percent": 9.5}}]}


async def _artifacts(stage: Stage) -> Request:
    place = await stage.running()
    await stage.store(place, b"adapter")
    return place, "/artifacts", {**place.writer(), "files": [entry("adapter.bin", b"adapter")]}


_REQUESTS: dict[str, list[Callable[[Stage], Awaitable[Request]]]] = {
    "/v1/agent/join": [_join],
    "/v1/agent/sync": [_sync, _last_sync],
    "/v1/agent/installer": [_installer],
    "/v1/agent/downloads": [_downloads],
    "/v1/agent/uploads": [_uploads],
    "/v1/agent/checkpoints": [_open],
    "/v1/agent/checkpoints/coming": [_coming],
    "/v1/agent/checkpoints/{checkpoint_id}/commit": [_commit],
    "/v1/agent/refusals": [_refused],
    "/v1/agent/transfers": [_transfer],
    "/v1/agent/checkpoints/{checkpoint_id}/damaged": [_damaged],
    "/v1/agent/logs": [_logs],
    "/v1/agent/metrics": [_metrics],
    "/v1/agent/system": [_system],
    "/v1/agent/artifacts": [_artifacts],
}


def test_every_post_of_agents_is_tried_here() -> None:
    """A new route cannot be forgotten."""
    posts = {path for method, path, _ in operations(document()) if method == "POST" and path.startswith("/v1/agent/")}
    hosts = {path for path in posts if path.startswith("/v1/agent/hosts/")}  # in tests/api/test_pools.py
    assert posts - hosts == set(_REQUESTS)
    assert hosts == {"/v1/agent/hosts/join", "/v1/agent/hosts/sync"}


@pytest.mark.parametrize("prepare", [one for each in _REQUESTS.values() for one in each], ids=lambda one: one.__name__)
async def test_a_request_that_is_sent_twice_has_the_effect_of_one(
    stage: Stage, prepare: Callable[[Stage], Awaitable[Request]]
) -> None:
    """The second one is answered well, and every row of every table is what the first one left."""
    place, path, body = await prepare(stage)
    before = await _everything(stage)
    first = await stage.post(place, path, body)
    assert first.is_success, first.text
    left = await _everything(stage)
    if path not in ("/downloads", "/uploads", "/installer"):  # these only sign links, or tell
        assert left != before
    stage.clock.advance(ms=1500)
    second = await stage.post(place, path, body)
    assert second.is_success, second.text
    assert _lasting(second) == _lasting(first)
    assert await _everything(stage) == left


async def _everything(stage: Stage) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    return {
        table.name: [tuple(row) for row in await stage.rows(table)]
        for table in metadata.sorted_tables
        if table.name not in _NOT_COUNTED
    }


def _lasting(answer: httpx.Response) -> tuple[int, Any]:
    """What an answer says, but for how its links are signed: that depends on the time."""
    if not answer.content:
        return answer.status_code, None
    told = answer.json()
    if "urls" in told:
        told["urls"] = sorted(told["urls"])
    return answer.status_code, told
