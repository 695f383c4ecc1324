"""A key of its own for the rehearsal, whose jobs may spend at one company and below the ceiling, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import allpass
from allpass.config import Connection
from allpass.errors import AllpassError

_MARGIN = timedelta(hours=1)


@contextmanager
def fenced(
    admin: allpass.Client,
    connection: Connection,
    provider: str,
    others: Sequence[str],
    *,
    most_micros: int,
    most_s: int,
) -> Iterator[allpass.Client]:
    """A client whose jobs are held to budgets: the ceiling here, nothing anywhere else. They and the key are taken away
    at the end; a key that is left, because this process was killed, ends by itself."""
    expires_at = datetime.now(UTC) + timedelta(seconds=most_s) + _MARGIN
    made = admin.create_key("allpass smoke", ("read", "submit"), expires_at=expires_at)
    budgets: list[str] = []
    try:
        for name in others:
            budgets.append(admin.set_budget("month", 0, key_id=made.id, provider=name).id)
        dollars = most_micros / 1e6
        budgets.append(admin.set_budget("month", dollars, key_id=made.id, provider=provider).id)
        with allpass.Client(connection.url, made.key) as client:
            yield client
    finally:
        for budget_id in budgets:
            with suppress(AllpassError):
                admin.remove_budget(budget_id)
        with suppress(AllpassError):
            admin.revoke_key(made.id)
