"""Set and remove budgets, on behalf of who may: a project's are its administrators', the installation's its owners'."""

from __future__ import annotations

from allpass.wire.budgets import BudgetRequest
from app.core.model.budget import Budget, Period
from app.core.model.ids import is_id
from app.core.model.money import Money
from app.db.access.keys import key_facts
from app.db.connection import Connection
from app.db.money.budgets import (
    INSTALLATION,
    BudgetRow,
    count_budgets,
    delete_budget,
    find_budget,
    known_providers,
    set_budget,
)
from app.errors import Conflict, InvalidInput, InvariantBroken, NotFound
from app.ports.clock import Clock, IdSource
from app.services.access.authenticate import Caller
from app.services.access.create_key import OWNER
from app.services.jobs.compose_job import micros

MOST_BUDGETS = 200  # of a project, or of the installation: each is looked at in every decision


async def change_budget(
    connection: Connection, caller: Caller, request: BudgetRequest, *, clock: Clock, ids: IdSource
) -> BudgetRow:
    """Store it, in the place of an earlier one for the same. Raises Forbidden, InvalidInput naming the field, NotFound
    for a key that is not of this project, and Conflict when there are too many."""
    over_all = request.scope == "installation"
    if over_all:
        caller.require(OWNER)
    await _check_key(connection, caller, request)
    await _check_provider(connection, request.provider)
    new = Budget(
        budget_id=ids.new("bud"),
        project_id=None if over_all else caller.project_id,
        key_id=request.key_id,
        provider=request.provider,
        period=Period(request.period),
        amount=Money(micros(request.amount_usd, "amount_usd")),
    )
    budget_id = await set_budget(connection, new, set_by=caller.key_id, now_ms=clock.now_ms())
    if budget_id == new.budget_id:
        await _check_number(connection, new.project_id or INSTALLATION)
    settled = await find_budget(connection, budget_id, now_ms=clock.now_ms())
    if settled is None:
        raise InvariantBroken(f"{budget_id} is gone in the transaction that set it")
    return settled


async def drop_budget(connection: Connection, caller: Caller, budget_id: str, *, now_ms: int) -> BudgetRow:
    """Remove it; answers as it was. Raises NotFound for one that the caller does not see."""
    found = await find_budget(connection, budget_id, now_ms=now_ms) if is_id(budget_id, "bud") else None
    if found is None or (found.standing.budget.project_id or INSTALLATION) not in visible_projects(caller):
        raise NotFound(f"there is no budget {budget_id!r} in this project (allpass budget lists them)")
    await delete_budget(connection, budget_id)
    return found


def visible_projects(caller: Caller) -> tuple[str, ...]:
    """Whose budgets the caller sees: those of its project, and an owner those of the installation."""
    return (caller.project_id, INSTALLATION) if OWNER in caller.scopes else (caller.project_id,)


async def _check_key(connection: Connection, caller: Caller, request: BudgetRequest) -> None:
    """One that was revoked is none to begin with, but a budget stays when its key is revoked: its jobs go on."""
    if request.key_id is None:
        return
    if request.scope == "installation":
        raise InvalidInput(
            f'key_id: {request.key_id!r} with scope "installation"; a key belongs to one project, so leave scope out',
            param="key_id",
        )
    facts = await key_facts(connection, caller.project_id, request.key_id) if is_id(request.key_id, "key") else None
    if facts is None:
        raise NotFound(f"there is no key {request.key_id!r} in this project (allpass key list)", param="key_id")


async def _check_provider(connection: Connection, provider: str | None) -> None:
    """A budget for a misspelt provider would hold nothing, and nobody would know."""
    if provider is None:
        return
    known = await known_providers(connection)
    if provider not in known:
        there = ", ".join(known) or "none yet"
        raise InvalidInput(f"provider: {provider!r} is not one of this service's: {there}", param="provider")


async def _check_number(connection: Connection, project_id: str) -> None:
    count = await count_budgets(connection, project_id)
    if count > MOST_BUDGETS:
        raise Conflict(f"there are {MOST_BUDGETS} budgets, and that is the most; remove one first")
