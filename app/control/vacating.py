"""Nodes that are being vacated are closed to newcomers, in every decision, while their moves go on."""

from __future__ import annotations

from dataclasses import replace

from app.control.context import ControlContext, as_ms
from app.control.each import each_by_itself
from app.control.observe import Observation
from app.core.defragmentation import without_vacated
from app.core.defragmentation.execution import SETTLES_MS
from app.core.model.health import Chore
from app.db.defragmentation.defragmentations import vacated_nodes
from app.db.jobs.set_asides import nodes_on
from app.settings import Settings


def longest_ms(settings: Settings) -> int:
    """That one move may take: to prepare, and to save and go on."""
    return 2 * as_ms(settings.move_timeout_s) + SETTLES_MS


class VacatedNodes:
    """One per control loop. `closed`: nodes, and hosts of pools as their offers name them.

    It is read from rows anew for each decision, so whoever leads next goes on with it. A node opens when its release is
    over, when the defragmentation is called off, and by itself when nothing of it has begun or ended for as long as a
    move may take: whatever became of whoever carried it out.
    """

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self.closed: frozenset[str] = frozenset()

    async def close(self, seen: Observation) -> Observation:
        """The world without what is free there. What fails of it is the chore's alone: then newcomers may come, and
        what was planned is dropped for them."""
        self.closed = frozenset()
        if self._context.settings.moves != "make_before_break":
            return seen  # nobody carries on what was begun
        found = await each_by_itself(
            self._context, Chore.DEFRAG, [seen], self._close, named=lambda _: "what is closed to newcomers"
        )
        return found[0] if found else seen

    async def _close(self, seen: Observation) -> Observation:
        since_ms = seen.snapshot.now_ms - longest_ms(self._context.settings)
        async with self._context.database.statement() as connection:
            places = await vacated_nodes(connection, since_ms=since_ms)
            cuts = await nodes_on(connection, places) if places else []
        closed = frozenset(places | {one.node_id for one in cuts})
        snapshot = without_vacated(seen.snapshot, closed)
        self.closed = closed
        return replace(seen, snapshot=snapshot)
