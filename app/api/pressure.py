"""How hard the deadlines press, and what the control loop made of it."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from allpass.wire.pressure import Decision, Pressure
from app.api.auth import Reader
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.views import instant
from app.db.decisions.reads import DecisionRow
from app.services.decisions.read_pressure import read_pressure

router = APIRouter(prefix="/v1", tags=["nodes"])
ContextOf = Annotated[ApiContext, Depends(context_of)]
_NODES = "nodes_"


@router.get(
    "/pressure",
    operation_id="get_pressure",
    summary="Get the newest decisions",
    responses=documented(401, 403, 422, 503),
)
async def get_pressure(
    caller: Reader,
    context: ContextOf,
    limit: Annotated[int, Query(ge=1, le=200, description="So many decisions", examples=[20])] = 20,
) -> Pressure:
    """What the control loop saw (pressure, demand, capacity, F) and chose, newest first.

    The figures are of the whole service; reasons are told of the caller's own jobs and nodes only.
    """
    async with context.database.transaction() as connection:
        found = await read_pressure(connection, caller.project_id, limit)
    decisions = [decision_view(row, reasons) for row, reasons in found]
    return Pressure(policy=decisions[0].policy if decisions else None, decisions=decisions)


def decision_view(row: DecisionRow, reasons: list[str]) -> Decision:
    """A stored decision as the API tells it."""
    seen = row.signals
    return Decision(
        id=row.number,
        at=instant(row.at_ms),
        policy=row.policy,
        trigger=row.trigger,
        pressure=seen.get("p"),
        serverless_budget_s=seen.get("F_s"),
        capacity_gpus=seen.get("C"),
        demand_gpu_s=seen.get("D_gpu_s"),
        jobs_waiting=int(seen.get("jobs_waiting", 0)),
        nodes={name.removeprefix(_NODES): int(count) for name, count in seen.items() if name.startswith(_NODES)},
        actions=dict(sorted(Counter(str(action["kind"]) for action in row.actions).items())),
        reasons=reasons,
        duration_ms=row.duration_ms,
    )
