"""Machines that end by themselves: at the limit of their provider, or with their lease.

Their runs move while there is time to prepare another machine (`app.core.leaving`); when there is none left, they save
and go on as they can (`app.services.moves.leave_machine`). What holds nothing is given back.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.control.context import ControlContext, as_ms
from app.control.each import each, each_by_itself
from app.control.enact import enact_apart
from app.control.failed_actions import due, note_outcomes
from app.core.board import Board
from app.core.leaving import EndingNode, ending_node, leave_ending
from app.core.model.health import Chore
from app.core.model.node import NodeState
from app.core.model.plan import ActionKind
from app.core.model.snapshot import Snapshot
from app.core.policies.reasons import duration
from app.core.pools import ends_ms
from app.db.connection import Connection
from app.db.decisions.item_failures import FailureKey, ItemFailure, failures_now
from app.db.decisions.snapshots import freeze, read_snapshot
from app.db.nodes.lifecycle import NodeRow, lock_node
from app.db.nodes.lifetimes import SelfEndingNode, ending_nodes, set_ends_of_pool
from app.db.pools.pools import read_pools
from app.db.runs.live_runs import live_runs_of_node
from app.services.decisions.policy_settings import policy_config
from app.services.moves.leave_machine import call_off_targets, leave_machine
from app.services.nodes.release_node import release_node
from app.services.nodes.warn_of_machine_end import warn_of_machine_end

_ACTIONS_AT_ONCE = 100


async def leave_in_time(context: ControlContext) -> int:
    """Deal with every ready node whose end is near, each in its own transaction; returns how many there were."""
    now_ms = context.clock.now_ms()
    ahead_ms = _ahead_ms(context)
    async with context.database.transaction() as connection:
        for row in await read_pools(connection):
            end_ms = ends_ms(row.pool, now_ms)
            drained = row.pool.drains_ms is not None
            if end_ms is not None and (drained or end_ms <= now_ms + ahead_ms):
                launcher, name = row.pool.launcher, row.pool.name
                await set_ends_of_pool(connection, launcher, name, end_ms, drained=drained, now_ms=now_ms)
        ending = {
            row.node_id: _ending(context, row, now_ms)
            for row in await ending_nodes(connection, now_ms=now_ms, margin_ms=ahead_ms)
        }

    async def move(ending: Mapping[str, EndingNode]) -> None:
        await _begin_moves(context, ending, ahead_ms, now_ms)

    async def leave(connection: Connection, ends: EndingNode) -> None:
        node = await lock_node(connection, ends.node_id)
        if node is not None and node.state is NodeState.READY:
            await _leave(connection, context, node, ends, now_ms=now_ms)

    if ending:  # whoever cannot be moved saves in time nevertheless
        await each_by_itself(context, Chore.LIFETIMES, [ending], move, named=lambda _ending: "the choice of machines")
    near = [node for node in ending.values() if node.left_ms <= node.margin_ms]
    await each(context, Chore.LIFETIMES, near, leave, named=lambda ends: ends.node_id)
    return len(near)


def _ahead_ms(context: ControlContext) -> int:
    """How long before its end a machine may have to be looked at: the slowest other one is prepared in time."""
    settings = context.settings
    slowest_ms = max((traits.startup_mean_ms for traits in context.traits()), default=0)
    return as_ms(settings.lifetime_margin_s) + slowest_ms + as_ms(settings.move_prepare_s)


def _ending(context: ControlContext, row: SelfEndingNode, now_ms: int) -> EndingNode:
    settings = context.settings
    margin_ms = row.margin_ms(as_ms(settings.lifetime_margin_s))
    save_ms = as_ms(settings.move_save_s) + as_ms(settings.stop_grace_s)
    return ending_node(row.node_id, left_ms=row.ends_ms - now_ms, margin_ms=margin_ms, save_ms=save_ms)


async def _begin_moves(context: ControlContext, ending: Mapping[str, EndingNode], ahead_ms: int, now_ms: int) -> None:
    """Decide, and enact what was decided as any plan is: what has moved on meanwhile is decided anew next time."""
    config = policy_config(context.settings)
    if ActionKind.MIGRATE not in config.capabilities:
        return
    snapshot, failures = await _look(context, ahead_ms, now_ms)
    moves = due(leave_ending(Board.of(snapshot), config, tuple(ending.values())), failures, now_ms)
    if moves:
        layouts = await context.layouts.of(snapshot, moves)
        dropped = await enact_apart(context, moves, now_ms=now_ms, layouts=layouts, at_once=_ACTIONS_AT_ONCE)
        await note_outcomes(context, moves, dropped, failures)


async def _look(
    context: ControlContext, ahead_ms: int, now_ms: int
) -> tuple[Snapshot, Mapping[FailureKey, ItemFailure]]:
    settings = context.settings
    async with context.database.transaction() as connection:
        await freeze(connection)
        failures = await failures_now(connection)
        snapshot = await read_snapshot(
            connection,
            now_ms,
            context.traits(),
            settings.offers_gone_after_ms,
            usual_image=settings.node_image,
            lifetime_margin_ms=ahead_ms,
        )
    return snapshot, failures


async def _leave(
    connection: Connection, context: ControlContext, node: NodeRow, ends: EndingNode, *, now_ms: int
) -> None:
    why = f"{node.provider} ends this machine in {duration(max(0, ends.left_ms))}"
    await warn_of_machine_end(connection, node.node_id, why, left_ms=ends.left_ms, now_ms=now_ms)
    if not await live_runs_of_node(connection, node.node_id):
        await release_node(connection, context.ids, node.node_id, f"{why}, and nothing runs on it", now_ms=now_ms)
    elif ends.left_ms <= ends.saving_ms or context.settings.moves == "stop_and_go":
        await leave_machine(connection, context.ids, node.node_id, why, now_ms=now_ms, lets_run=True)
    else:
        await call_off_targets(connection, context.ids, node.node_id, why, now_ms=now_ms)
