"""Instants as the published logs write them."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds_of(text: str) -> float | None:
    """Seconds since 1970 of `2017-10-07 01:12:09`, with or without a zone (then UTC); None if it is no instant."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
