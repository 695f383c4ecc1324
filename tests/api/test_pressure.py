"""How hard deadlines press, over HTTP."""

from __future__ import annotations

from typing import Any

from allpass.wire.pressure import Pressure
from app.api.context import ApiContext
from app.core.policy import PolicyState
from app.db.decisions.ticks import TickRow, add_tick
from tests.api.builders import add_job
from tests.api.conftest import Tenant, error_of
from tests.seeds import T0_MS

SIGNALS = [["F_s", 290.0], ["p", 1.25], ["C", 2.0], ["D_gpu_s", 4500.0], ["jobs_waiting", 3.0], ["nodes_serverless", 1]]


async def add(context: ApiContext, at_ms: int, signals: list[Any], actions: list[dict[str, Any]]) -> None:
    plan = {"signals": signals, "actions": actions, "waiting": []}
    async with context.database.transaction() as connection:
        await add_tick(connection, TickRow(at_ms, 1, "tick", "allpass", PolicyState(), plan, 0, 7))


async def test_before_the_first_decision(tenant: Tenant) -> None:
    """There is nothing to tell, and that is no error."""
    assert (await tenant.http.get("/v1/pressure")).json() == {"policy": None, "decisions": []}


async def test_decisions_newest_first_with_what_was_seen_and_chosen(
    tenant: Tenant, stranger: Tenant, context: ApiContext
) -> None:
    """Figures of the whole service; reasons of the caller's own jobs alone."""
    own, foreign = await add_job(context, tenant), await add_job(context, stranger)
    await add(context, T0_MS, [["F_s", 300.0]], [])
    actions = [
        {"kind": "start", "job_id": own, "reason": "starts on modal A100"},
        {"kind": "provision", "for_job_id": foreign, "reason": "a secret"},
        {"kind": "release", "node_id": "node_gone", "reason": "another secret"},
    ]
    await add(context, T0_MS + 1_000, SIGNALS, actions)
    answer = await tenant.http.get("/v1/pressure")
    told = Pressure.model_validate(answer.json())
    assert "secret" not in answer.text
    newest, oldest = told.decisions
    assert (newest.pressure, newest.serverless_budget_s, newest.capacity_gpus, newest.demand_gpu_s) == (
        1.25,
        290.0,
        2.0,
        4500.0,
    )
    assert (newest.jobs_waiting, newest.nodes, newest.duration_ms) == (3, {"serverless": 1}, 7)
    assert newest.actions == {"start": 1, "provision": 1, "release": 1}
    assert newest.reasons == ["starts on modal A100"]
    assert (oldest.pressure, oldest.serverless_budget_s, oldest.actions, oldest.reasons) == (None, 300.0, {}, [])


async def test_as_many_as_asked_for(tenant: Tenant, context: ApiContext) -> None:
    """`limit` decisions, within bounds."""
    for number in range(3):
        await add(context, T0_MS + number, [], [])
    assert len((await tenant.http.get("/v1/pressure?limit=2")).json()["decisions"]) == 2
    refused = await tenant.http.get("/v1/pressure?limit=201")
    assert error_of(refused, 422, "invalid_input")["param"] == "limit"
