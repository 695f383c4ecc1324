"""What may be spent in an hour, a day or a month: by a project, by a key's jobs, at a provider."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from allpass.wire.base import Page
from allpass.wire.budgets import Budget, BudgetRequest
from app.api.audit import audited
from app.api.auth import Admin, Reader
from app.api.context import ApiContext, context_of
from app.api.cursors import id_cursor
from app.api.errors import documented
from app.api.requests import BudgetId, Cursor, Limit
from app.api.views import instant, page
from app.db.money.budgets import BudgetRow, list_budgets
from app.services.money.change_budget import change_budget, drop_budget, visible_projects

router = APIRouter(prefix="/v1", tags=["budgets"])
ContextOf = Annotated[ApiContext, Depends(context_of)]


@router.get("/budgets", operation_id="list_budgets", summary="List budgets", responses=documented(401, 403, 422, 503))
async def list_(caller: Reader, context: ContextOf, cursor: Cursor = None, limit: Limit = 100) -> Page[Budget]:
    """Newest first, with what counts against each now. A project sees its own; keys with scope `owner` see those of the
    installation, too. What machines cost counts; what a provider asks for traffic is not known until its bill."""
    before = id_cursor(cursor, "bud")
    async with context.database.transaction() as connection:
        rows = await list_budgets(
            connection, visible_projects(caller), before=before, limit=limit + 1, now_ms=context.clock.now_ms()
        )
    return page(rows, limit, budget_view, lambda row: row.standing.budget.budget_id)


@router.put(
    "/budgets",
    operation_id="set_budget",
    summary="Set a budget",
    responses=documented(401, 403, 404, 409, 413, 422, 503),
)
async def put(body: BudgetRequest, request: Request, caller: Admin, context: ContextOf) -> Budget:
    """From the next decision on nothing is rented beyond it. When it is used up, the jobs that it covers save at their
    next step and pause, or wait, and go on by themselves when the period is over or more is allowed. Where several
    budgets cover a job, each of them holds."""
    async with audited(context, request) as write:
        settled = await change_budget(write.connection, caller, body, clock=context.clock, ids=context.ids)
        write.object_id = settled.standing.budget.budget_id
    return budget_view(settled)


@router.delete(
    "/budgets/{budget_id}",
    operation_id="remove_budget",
    summary="Remove a budget",
    responses=documented(401, 403, 404, 413, 422, 503),
)
async def delete(budget_id: BudgetId, request: Request, caller: Admin, context: ContextOf) -> Budget:
    """Answers with the budget as it was. Jobs that it alone has held go on by themselves."""
    async with audited(context, request, budget_id) as write:
        removed = await drop_budget(write.connection, caller, budget_id, now_ms=context.clock.now_ms())
    return budget_view(removed)


def budget_view(row: BudgetRow) -> Budget:
    now, budget = row.standing, row.standing.budget
    return Budget(
        id=budget.budget_id,
        scope="installation" if budget.project_id is None else "project",
        key_id=budget.key_id,
        provider=budget.provider,
        period=budget.period.value,
        amount=budget.amount.micros,
        spent=now.spent.micros,
        left=now.left.micros,
        foreseen=now.foreseen.micros,
        state="used_up" if now.used_up else "near" if now.near else "open",
        begins_at=instant(now.begins_ms),
        ends_at=instant(now.ends_ms),
        set_by=row.set_by,
        set_at=instant(row.set_ms),
    )
