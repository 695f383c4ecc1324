"""A target that takes too long to prepare is given up, and so is a source that does not leave when its job has."""

from __future__ import annotations

from app.control.context import ControlContext, as_ms
from app.control.each import each
from app.core.model.health import Chore
from app.db.connection import Connection
from app.db.moves.planned_moves import slow_moves, slow_sources
from app.services.moves.advance_move import close_late_source, give_up_target


async def look_after_moves(context: ControlContext) -> None:
    """Each in its own transaction, under the leader's term."""
    now_ms = context.clock.now_ms()
    timeout_ms, grace_ms = as_ms(context.settings.move_timeout_s), as_ms(context.settings.stop_grace_s)
    async with context.database.transaction() as connection:
        patience_ms, longest_ms = as_ms(context.settings.transfer_patience_s), as_ms(context.settings.transfer_limit_s)
        limit_ms = max(timeout_ms, longest_ms)
        targets = await slow_moves(connection, quiet_since_ms=now_ms - timeout_ms, begun_before_ms=now_ms - limit_ms)
        sources = await slow_sources(
            connection,
            promoted_before_ms=now_ms - grace_ms,
            quiet_since_ms=now_ms - patience_ms,
            limit_ms=now_ms - max(longest_ms, patience_ms),
        )

    async def give_up(connection: Connection, run_id: str) -> None:
        message = f"the next machine was not prepared within {timeout_ms // 1000} s"
        await give_up_target(connection, context.ids, run_id, message, now_ms=now_ms)

    async def close(connection: Connection, run_id: str) -> None:
        await close_late_source(connection, context.ids, run_id, now_ms=now_ms)

    await each(context, Chore.MOVES, targets, give_up)
    await each(context, Chore.MOVES, sources, close)
