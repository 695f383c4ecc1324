"""Jobs of several GPUs leave large nodes behind: small ones do not keep them."""

from __future__ import annotations

import pytest

from app.simulator.bound import CLAIRVOYANT
from app.simulator.options import Options
from app.simulator.running import simulate
from app.simulator.traces.generating import generate

MOST_OVER_THE_FLOOR = {"allpass": 1.35, "cheapest-first": 1.1}


@pytest.mark.parametrize("like", ["seren", "philly"])
@pytest.mark.parametrize("move_s", [84, 5])
def test_no_large_node_is_kept_for_small_jobs(like: str, move_s: int) -> None:
    """Of 250 jobs with as many GPUs as they ask for, the bill stays near the floor, under policies that rent for each
    job; it was up to seventeen times as much."""
    asked = Options(gpus="trace").having("move-seconds", str(move_s))
    trace = generate(like, 250, seed=3)
    found = simulate(trace, [*MOST_OVER_THE_FLOOR, CLAIRVOYANT], asked, range(2))["policies"]
    floor = found[CLAIRVOYANT]["cost_usd"]
    over = {name: found[name]["cost_usd"] / floor for name in MOST_OVER_THE_FLOOR}
    assert {name: ratio for name, ratio in over.items() if ratio > MOST_OVER_THE_FLOOR[name]} == {}
