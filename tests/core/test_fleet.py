"""Algorithm 2: how many nodes the work due asks for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.fleet import Change, resize

HORIZON_MS = 1_800_000
HALF_HOUR = HORIZON_MS  # of work by one GPU


@pytest.mark.parametrize(
    ("demand_gpu_ms", "capacity", "change"),
    [
        (0, 0, Change(0, 0)),
        (1, 0, Change(1, 0)),
        (HALF_HOUR, 0, Change(1, 0)),
        (HALF_HOUR + 1, 0, Change(2, 0)),
        (20 * HALF_HOUR, 0, Change(20, 0)),  # an overdue job of ten hours
        (3 * HALF_HOUR, 2, Change(1, 0)),
        (3 * HALF_HOUR, 3, Change(0, 0)),
        (3 * HALF_HOUR, 5, Change(0, 2)),
        (2 * HALF_HOUR + 1, 5, Change(0, 2)),  # what is left must do the work
        (0, 4, Change(0, 4)),
    ],
)
def test_by_hand(demand_gpu_ms: int, capacity: int, change: Change) -> None:
    """The shortfall is rented, rounded up; the surplus is given back, rounded down."""
    assert resize(demand_gpu_ms, capacity, HORIZON_MS) == change


def test_larger_nodes_are_fewer() -> None:
    """A node that does the work of four GPUs counts for four."""
    assert resize(9 * HALF_HOUR, 0, HORIZON_MS, node_rate=4.0) == Change(3, 0)
    assert resize(0, 9, HORIZON_MS, node_rate=4.0) == Change(0, 2)


demands = st.integers(0, 100 * HALF_HOUR)
fleets = st.integers(0, 120)


@settings(max_examples=120)
@given(demands, fleets, st.sampled_from([1, 2, 4, 8]))
def test_enough_and_no_more(demand_gpu_ms: int, nodes: int, node_rate: int) -> None:
    """Never both ways at once; after the change the work fits, and with one node less rented it would not."""
    change = resize(demand_gpu_ms, nodes * node_rate, HORIZON_MS, float(node_rate))
    assert change.more == 0 or change.fewer == 0
    after = nodes + change.more - change.fewer
    assert after >= 0
    assert after * node_rate * HORIZON_MS >= demand_gpu_ms
    if after < nodes or change.more:
        assert (after - 1) * node_rate * HORIZON_MS < demand_gpu_ms
    assert resize(demand_gpu_ms, after * node_rate, HORIZON_MS, float(node_rate)) == Change(0, 0)


@settings(max_examples=120)
@given(demands, demands, fleets)
def test_the_fleet_follows_the_load(before: int, after: int, nodes: int) -> None:
    """Constant load settles at once, rising load never gives back, falling load never rents."""
    settled = _step(nodes, before)
    assert _step(settled, before) == settled
    assert (_step(settled, after) >= settled) if after >= before else (_step(settled, after) <= settled)
    assert _step(settled, after) == math.ceil(after / HORIZON_MS)


def _step(nodes: int, demand_gpu_ms: int) -> int:
    change = resize(demand_gpu_ms, nodes, HORIZON_MS)
    return nodes + change.more - change.fewer
