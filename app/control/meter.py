"""Bring the ledger up to date."""

from __future__ import annotations

from app.control.parts import ControlParts
from app.db import ledger, notify

_AT_ONCE = 200  # a leader renews its lease between transactions only, so none may be long


async def read_meters(parts: ControlParts) -> int:
    """Read the meter of every node whose bill is open, some in each transaction; returns how many were written."""
    async with parts.database.statement() as connection:
        node_ids = await ledger.unmetered_nodes(connection)
    written = 0
    for start in range(0, len(node_ids), _AT_ONCE):
        async with parts.database.transaction() as connection:
            await parts.leader.guard(connection)
            now_ms = parts.clock.now_ms()
            readings = await ledger.read_meters(connection, node_ids[start : start + _AT_ONCE], now_ms=now_ms)
            new = sum(bool(reading.lines) for reading in readings.values())
            if new:
                await notify.control(connection)  # what jobs have spent is part of what is decided on
            written += new
    return written
