"""Bring the ledger up to date."""

from __future__ import annotations

from collections.abc import Sequence

from app.control.context import ControlContext
from app.control.each import in_batches
from app.core.model.health import Chore
from app.db import notify
from app.db.connection import Connection
from app.db.money import ledger

_AT_ONCE = 200  # a leader renews its lease between transactions only, so none may be long


async def read_meters(context: ControlContext) -> int:
    """Read the meter of every node whose bill is open, some in each transaction; returns how many were written. One
    that cannot be read is left out, and goes on where it was when it can."""
    async with context.database.statement() as connection:
        node_ids = await ledger.unmetered_nodes(connection)

    async def read(connection: Connection, some: Sequence[str]) -> int:
        readings = await ledger.read_meters(connection, some, now_ms=context.clock.now_ms())
        new = sum(bool(reading.lines) for reading in readings.values())
        if new:
            await notify.control(connection)  # what jobs have spent is part of what is decided on
        return new

    return sum(await in_batches(context, Chore.METER, node_ids, read, at_once=_AT_ONCE))
