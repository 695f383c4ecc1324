"""What a contract has cost by Vast.ai's own postings, also where some of it was given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.core.model.money import Money
from providers.vast.charges import charged

CERTAIN = Money(50_000)


def row(amount: float, source: str = "instance-7") -> dict[str, Any]:
    return {"source": source, "amount": amount}


@pytest.mark.parametrize(
    ("rows", "figure"),
    [
        ([row(0.06)], Money(60_000)),
        ([row(0.03), row(0.04)], Money(70_000)),
        ([row(0.04)], None),  # not complete yet
        ([row(0.06), row(-0.05)], Money(10_000)),  # complete, and partly given back
        ([row(0.06), row(-0.06)], Money(0)),
        ([row(0.06), row(-0.09)], Money(0)),  # a machine never earns money
        ([row(0.04), row(-0.01)], None),  # what was given back makes nothing complete
        ([row(-0.06)], None),
        ([row(0.06), row(-0.06, "instance-8")], Money(60_000)),  # that was another one
        ([], None),
    ],
)
async def test_what_was_given_back_counts_and_does_not_make_a_bill_incomplete(
    rows: list[dict[str, Any]], figure: Money | None
) -> None:
    """Only what was asked for is compared with what its time must have cost."""

    class Wire:
        async def charges(self, *_: int) -> list[Any]:
            return rows

    sighting = SimpleNamespace(machine=SimpleNamespace(ref="7", created_ms=0), certain_cost=lambda: CERTAIN)
    assert await charged(Wire(), sighting, now_ms=1) == figure  # type: ignore[arg-type]  # as much of both as is asked
