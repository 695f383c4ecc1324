"""Bring the ledger up to date."""

from __future__ import annotations

from app.control.parts import ControlParts
from app.db import notify
from app.db.ledger import read_meter, unmetered_nodes


async def read_meters(parts: ControlParts) -> int:
    """Read the meter of every node whose bill is open, each in its own transaction; returns how many were written."""
    async with parts.database.transaction() as connection:
        node_ids = await unmetered_nodes(connection)
    written = 0
    for node_id in node_ids:
        async with parts.database.transaction() as connection:
            await parts.leader.guard(connection)
            reading = await read_meter(connection, node_id, now_ms=parts.clock.now_ms())
            if reading is not None and reading.lines:
                written += 1
                await notify.control(connection)  # what jobs have spent is part of what is decided on
    return written
