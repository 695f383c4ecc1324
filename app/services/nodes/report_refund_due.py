"""A machine that never worked has been billed all the same: its owner is told what to ask its company for.

No company's interface that Allpass speaks has a call for it. Nothing is booked on the hope: the ledger is what the
company's own bill says.
"""

from __future__ import annotations

from datetime import UTC, datetime

from app.db.connection import Connection
from app.db.money.ledger import ledger_total
from app.db.nodes.lifecycle import NodeRow, has_node_event, set_node
from app.db.runs.live_runs import has_begun
from app.db.transitions import Event, add_node_event
from app.services.nodes.give_machine_back import NEVER_CAME, UNFIT

MONEY_BACK = "node_money_back"


async def report_refund_due(connection: Connection, node: NodeRow, *, now_ms: int) -> None:
    """Of a node whose bill has just been closed, and whose row is locked. Nothing for one that has worked, that was not
    to blame, or that cost nothing."""
    to_blame = [await has_node_event(connection, node.node_id, kind) for kind in (UNFIT, NEVER_CAME)]
    if not any(to_blame) or await has_begun(connection, node.node_id):
        return
    cost = await ledger_total(connection, node.node_id)
    if cost.micros <= 0:
        return
    told = (
        f"it did no work and {node.provider} has billed {cost} for it: ask the support of {node.provider} to give that "
        f"back, naming its machine {node.provider_ref or node.node_id}, rented {_utc(node.requested_ms)}"
    )
    facts = {"cost_micros": cost.micros, "provider": node.provider, "ref": node.provider_ref}
    await add_node_event(connection, node.node_id, Event(MONEY_BACK, told, facts), now_ms=now_ms)
    await set_node(connection, node.node_id, end_message=f"{node.end_message}; {told}" if node.end_message else told)


def _utc(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
