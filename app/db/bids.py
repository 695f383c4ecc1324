"""Which machines are bid for: so their offer says, as it was agreed (ADR 0110)."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func

from app.core.model.node import Tier
from app.db.tables import nodes


def is_bid() -> ColumnElement[bool]:
    """Of a node: its company takes it back without a word as soon as somebody pays more (`Offer.interruptible`)."""
    return (func.coalesce(nodes.c.offer["spot_only"].astext, "") == "true") & (nodes.c.tier != Tier.OWN)
