"""An owner asks for a defragmentation: for its plan, for its moves, or for no more of them."""

from __future__ import annotations

import asyncio

from app.core.defragmentation import DefragPlan, Goal, plan_for
from app.core.model.pool import JOINED
from app.db.connection import Connection
from app.db.defragmentation.defragmentations import (
    DefragRow,
    add_defragmentation,
    cancel_defragmentation,
    find_defragmentation,
    open_of_goal,
)
from app.db.engine import Database
from app.db.pools.pools import find_pool
from app.errors import Conflict, InvalidInput, NotFound
from app.ports.clock import IdSource
from app.services.defragmentation.see_fleet import see_fleet
from app.settings import Settings

BY_OWNER = "owner"


async def check_asked(connection: Connection, settings: Settings, goal: Goal, pool: str | None) -> None:
    """Raises InvalidInput, NotFound, and Conflict where nothing moves while it trains."""
    if settings.moves != "make_before_break":
        raise Conflict("jobs are moved by stop-and-go here (ALLPASS_MOVES): nodes are not vacated by moves")
    if pool is None:
        return
    if goal is Goal.RENT:
        raise InvalidInput(f"pool: {pool!r:.80} is not rented; leave it out, or ask for the goal `pools`", param="pool")
    row = await find_pool(connection, pool)
    if row is None:
        raise NotFound(f"there is no pool {pool!r:.80} (allpass pool list shows those that there are)")
    if row.pool.launcher != JOINED:
        raise InvalidInput(f"pool: where jobs run in {pool} is {row.pool.launcher}'s to say", param="pool")


async def plan_defragmentation(
    database: Database, settings: Settings, goal: Goal, pool: str | None, most_moves: int, *, now_ms: int
) -> DefragPlan:
    """What would be done now. Nothing is."""
    async with database.transaction() as connection:
        await check_asked(connection, settings, goal, pool)
    seen = await see_fleet(database, settings, now_ms=now_ms)
    return await asyncio.to_thread(plan_for, seen, goal, pool, most_moves)


async def ask_defragmentation(
    connection: Connection,
    ids: IdSource,
    settings: Settings,
    goal: Goal,
    pool: str | None,
    most_moves: int,
    *,
    now_ms: int,
) -> DefragRow:
    """The control loop plans it and carries it out. Raises Conflict while one of its goal is under way."""
    await check_asked(connection, settings, goal, pool)
    row = DefragRow(ids.new("dfrg"), goal, pool, BY_OWNER, most_moves, "asked", now_ms)
    if not await add_defragmentation(connection, row):
        other = await open_of_goal(connection, goal)
        which = "another one" if other is None else other.id
        raise Conflict(f"{which} is under way for the goal {goal}: wait for it, or call it off (allpass defrag cancel)")
    return row


async def call_off_defragmentation(connection: Connection, row_id: str, *, now_ms: int) -> DefragRow:
    """Nothing more of it begins; moves that are under way end as moves do. Raises NotFound."""
    await cancel_defragmentation(connection, row_id, now_ms=now_ms)
    return await read_defragmentation(connection, row_id)


async def read_defragmentation(connection: Connection, row_id: str) -> DefragRow:
    """Raises NotFound."""
    row = await find_defragmentation(connection, row_id)
    if row is None:
        raise NotFound(f"there is no defragmentation {row_id!r:.80} (allpass defrag list shows those of 30 days)")
    return row
