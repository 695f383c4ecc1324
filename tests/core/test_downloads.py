"""When a machine's link is so slow that it is given back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.downloads import download_mbps, is_elsewhere, is_far_below
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import Offer

GIB = 1024**3
OURS = Offer("vast", "1", Tier.MARKETPLACE, "A100", 2, 40 * GIB, 8, 64 * GIB, Money.usd("2.00"), 30_000, host="h1")
OTHERS = (400.0, 500.0, 600.0)
SPEEDS = st.floats(0.001, 1e6)


@pytest.mark.parametrize(
    ("told", "mbps"),
    [
        ({"bytes": 1_000_000, "ms": 1_000}, 8.0),
        ({"bytes": 0, "ms": 5}, None),
        ({"bytes": 5, "ms": 0}, None),
        ({"bytes": -5, "ms": 5}, None),
        ({"bytes": True, "ms": 5}, None),
        ({"bytes": 2**60, "ms": 5}, None),
        ({"bytes": "8", "ms": 5}, None),
        ({"bytes": 1.5, "ms": 5}, None),
        ({}, None),
        ("fast", None),
        (None, None),
    ],
)
def test_a_measurement_is_read(told: Any, mbps: float | None) -> None:
    """Or is none."""
    assert download_mbps({"download": told}) == mbps


@pytest.mark.parametrize(
    ("mbps", "promised", "others", "expected"),
    [
        (9.0, 800, OTHERS, True),
        (90.0, 800, OTHERS, False),  # an eighth is let pass: it was measured elsewhere
        (49.0, 5_000, OTHERS, True),
        (51.0, 5_000, OTHERS, False),  # nobody waits long there
        (9.0, 0, OTHERS, False),  # nothing was promised
        (9.0, 800, OTHERS[:2], False),  # it is not known what is usual
        (9.0, 800, (9.0, 12.0, 14.0), False),  # it is our own link
        (2.0, 800, (9.0, 12.0, 14.0), True),  # and this one is worse still
        (9.0, 800, (400.0, 9.0, 500.0), True),  # another slow one excuses nobody
    ],
)
def test_a_link_is_slow_where_promise_and_others_say_so(
    mbps: float, promised: int, others: tuple[float, ...], expected: bool
) -> None:
    """Both, and by far."""
    assert is_far_below(mbps, promised, others) is expected


@given(SPEEDS, st.integers(0, 10**6), st.lists(SPEEDS))
def test_a_faster_link_is_never_worse(mbps: float, promised: int, others: list[float]) -> None:
    """And where all are as slow, nobody is."""
    if not is_far_below(mbps, promised, others):
        assert not is_far_below(mbps * 2, promised, others)
    assert not is_far_below(mbps, promised, [mbps] * 5)
    assert not is_far_below(mbps, 0, others)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"gpu_count": 8}, True),
        ({"gpu_count": 1}, False),
        ({"gpu_type": "T4"}, False),
        ({"gpu_memory_bytes": 20 * GIB}, False),
        ({"host": "h1"}, False),  # the same host again
        ({"host": "h9"}, False),  # one that has failed
        ({"provider": "lambda"}, False),  # the job may not be let go there
        ({"price_per_hour": Money.usd("3.00")}, True),
        ({"price_per_hour": Money.usd("3.01")}, False),
    ],
)
def test_there_is_another_host_to_take(changes: dict[str, Any], expected: bool) -> None:
    """With as much, of the same company, and not much dearer."""
    other = replace(OURS, **{"offer_id": "2", "host": "h2", **changes})
    assert is_elsewhere(OURS, [OURS, other], ["h9"]) is expected
