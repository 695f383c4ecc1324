"""That a job is to be on another number of machines than it is, as part of why it is where it is."""

from __future__ import annotations

from typing import Any

from app.core.explaining.facts import Remark
from app.core.gang_wishes import WANTED
from app.db.connection import Connection
from app.db.reading.explanations import last_event
from app.db.reading.sizes import MACHINES_CHANGED
from app.services.sizes.resize_nodes import RESIZE_ASKED, RESIZE_WAITS


async def explain_nodes(connection: Connection, job_id: str, asks: Any) -> tuple[Remark, ...]:
    """Nothing of a job that has as many as its owner wants. `asks`: what it asks for, as it is stored."""
    asked = [asks.get(name) for name in ("nodes", WANTED)] if isinstance(asks, dict) else [None, None]
    has, wanted = (one if type(one) is int else None for one in asked)
    has = has or 1
    if wanted is None or wanted == has:
        return ()
    last = await last_event(connection, job_id, (RESIZE_ASKED, RESIZE_WAITS, MACHINES_CHANGED))
    why = None if last is None else last.data.get("why")
    data = {"nodes": has, "nodes_wanted": wanted, **({} if why is None else {"why": why})}
    if wanted < has:
        text = f"its owner wants it on {wanted} of its {has} machines: it leaves them, and goes on there"
        return (Remark(text, data),)
    how = f"it cannot have them yet: {why}" if why is not None else "those that it lacks are rented while it trains"
    return (Remark(f"its owner wants it on {wanted} machines, not {has}: {how}", data),)
