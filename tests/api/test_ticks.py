"""Decisions over HTTP: listed, found by job and by time, and taken again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allpass.wire.ticks import Replay
from app.api.context import ApiContext
from app.core.model.snapshot import Snapshot
from app.core.policy import PolicyState
from app.db.decisions.ticks import TickRow, add_tick
from tests.api.builders import add_decision, add_job
from tests.api.conftest import Tenant, error_of
from tests.core.samples import CONFIG, OFFERS, job, snapshot
from tests.seeds import T0_MS


@pytest.fixture
async def both(tenant: Tenant, stranger: Tenant, context: ApiContext) -> tuple[str, str, Snapshot]:
    """A waiting job of the caller, one of a stranger, and the snapshot with both."""
    own, foreign = await add_job(context, tenant), await add_job(context, stranger)
    jobs = [job(own, project_id=tenant.project_id), job(foreign, project_id=stranger.project_id)]
    return own, foreign, snapshot(jobs=jobs, offers=OFFERS)


async def test_a_decision_is_taken_again(tenant: Tenant, context: ApiContext, both: tuple[str, str, Snapshot]) -> None:
    """As it was, it comes out the same; of other projects only numbers are told."""
    own, foreign, seen = both
    number = await add_decision(context, seen)
    answer = await tenant.http.post(f"/v1/ticks/{number}/replay", json={})
    told = Replay.model_validate(answer.json())
    assert (told.same, told.caveat, told.policy_then, told.policy_now) == (True, None, "allpass", "allpass")
    assert ("start", own, "local/fn") in [(action.kind, action.job_id, action.offer) for action in told.both]
    assert {action.job_id for action in told.both} == {own}
    assert (told.others.both > 0, told.others.only_then) == (True, 0)
    assert foreign not in answer.text


async def test_with_other_rules_or_another_policy(
    tenant: Tenant, context: ApiContext, both: tuple[str, str, Snapshot]
) -> None:
    """What would be done otherwise is told, with why jobs wait; a tick of no room shows it."""
    own, _, seen = both
    number = await add_decision(context, seen, config=replace(CONFIG, serverless_limit=1))
    other = await tenant.http.post(f"/v1/ticks/{number}/replay", json={"policy": "tiresias-l-np"})
    told = Replay.model_validate(other.json())
    assert told.policy_now == "tiresias-l-np"
    assert not told.same
    ruled = await tenant.http.post(f"/v1/ticks/{number}/replay", json={"rules": {"move_gain": 9.0}})
    assert Replay.model_validate(ruled.json()).same
    assert own in other.text


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"policy": "best"}, 422, "invalid_input", "policy"),
        ({"rules": {"moves": 1.0}}, 422, "invalid_input", "rules.moves"),
        ({"rules": {"move_gain": -1}}, 422, "invalid_input", None),
        ({"policies": "allpass"}, 422, "invalid_input", "policies"),
    ],
)
async def test_bad_requests_name_the_field(
    tenant: Tenant,
    context: ApiContext,
    both: tuple[str, str, Snapshot],
    body: dict[str, object],
    status: int,
    code: str,
    param: str | None,
) -> None:
    number = await add_decision(context, both[2])
    error = error_of(await tenant.http.post(f"/v1/ticks/{number}/replay", json=body), status, code)
    assert param is None or error["param"] == param


async def test_ticks_that_are_not_there(tenant: Tenant, context: ApiContext) -> None:
    """One that was never taken, one whose record was not kept."""
    error_of(await tenant.http.post("/v1/ticks/7/replay", json={}), 404, "not_found")
    error_of(await tenant.http.get("/v1/ticks/7"), 404, "not_found")
    async with context.database.transaction() as connection:
        row = TickRow(T0_MS, 1, "tick", "allpass", PolicyState(), {"signals": [], "actions": []}, 0, 7)
        number = await add_tick(connection, row)
    assert (await tenant.http.get(f"/v1/ticks/{number}")).json()["id"] == number
    error_of(await tenant.http.post(f"/v1/ticks/{number}/replay", json={}), 409, "conflict")


async def test_listed_by_job_and_by_time(
    tenant: Tenant, stranger: Tenant, context: ApiContext, both: tuple[str, str, Snapshot]
) -> None:
    """Newest first, page by page; a job of another project is not there."""
    own, foreign, seen = both
    numbers = [
        await add_decision(context, replace(seen, jobs=seen.jobs if n else ()), T0_MS + 1_000 * n) for n in range(3)
    ]
    page = (await tenant.http.get("/v1/ticks?limit=2")).json()
    assert [one["id"] for one in page["data"]] == numbers[:0:-1]
    rest = (await tenant.http.get(f"/v1/ticks?limit=2&cursor={page['next_cursor']}")).json()
    assert ([one["id"] for one in rest["data"]], rest["next_cursor"]) == ([numbers[0]], None)
    mine = (await tenant.http.get(f"/v1/ticks?job_id={own}")).json()["data"]
    assert [one["id"] for one in mine] == numbers[:0:-1]
    early = (await tenant.http.get("/v1/ticks?until=2027-01-15T08:00:01.500Z")).json()["data"]
    assert [one["id"] for one in early] == numbers[1::-1]
    error_of(await tenant.http.get(f"/v1/ticks?job_id={foreign}"), 404, "not_found")
    error_of(await tenant.http.get("/v1/ticks?until=yesterday"), 422, "invalid_input")
    error_of(await tenant.http.get("/v1/ticks?cursor=x"), 422, "invalid_input")
