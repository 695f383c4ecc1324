"""Jobs on several machines that are spread over switches come together, as a defragmentation has planned it
(`app.core.defragmentation.repairs`).

What is rented for one is kept with its plan, in the transaction that rents it: from then on decisions keep these
machines for it, and have it leave once all are ready (`app.control.gangs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from app.control.context import ControlContext
from app.control.dropping import Dropped
from app.control.each import each
from app.control.enact import enact
from app.control.failed_actions import note_outcomes
from app.control.vacating import longest_ms
from app.core.defragmentation import Deciding, PlannedRelease, SeenFleet, SwitchRepair, begun, next_repairs, not_begun
from app.core.model.health import Chore
from app.core.model.plan import ProvisionGang
from app.db.connection import Connection
from app.db.defragmentation.defragmentations import DefragRow, set_repairs
from app.services.defragmentation.tell_together import tell_together


async def bring_together(
    context: ControlContext,
    row: DefragRow,
    repairs: Sequence[SwitchRepair],
    releases: Sequence[PlannedRelease],
    seen: SeenFleet,
    deciding: Deciding,
) -> list[SwitchRepair]:
    """One look at all of them; as they are afterwards. What fails for one is tried again in the next round."""
    longest, told = longest_ms(context.settings), f"defragmentation {row.id}"
    todo = await asyncio.to_thread(next_repairs, repairs, seen, deciding, longest, told, releases)
    now = {one.job_id: one for one in repairs}
    now_ms = seen.snapshot.now_ms

    async def keep(connection: Connection, repair: SwitchRepair) -> None:
        after = await tell_together(connection, row, repair, now_ms=now_ms)
        await set_repairs(connection, row.id, [*({**now, after.job_id: after}).values()])
        now[after.job_id] = after

    dropped: list[Dropped] = []

    async def begin(connection: Connection, action: ProvisionGang) -> None:
        repair = now[action.job_id]
        found = await enact(connection, context, (action,), now_ms=now_ms)
        dropped.extend(found)
        after = not_begun(repair, found[0].why) if found else begun(repair, now_ms)
        await set_repairs(connection, row.id, [*({**now, after.job_id: after}).values()])
        now[after.job_id] = after

    await each(context, Chore.DEFRAG, todo.changed, keep, named=lambda repair: repair.job_id)
    await each(context, Chore.DEFRAG, list(todo.begin.values()), begin, named=lambda action: action.job_id)
    if todo.begin:
        await note_outcomes(context, list(todo.begin.values()), dropped, {})
    return list(now.values())
