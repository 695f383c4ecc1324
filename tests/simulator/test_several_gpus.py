"""Jobs of several GPUs leave large nodes behind: small ones do not keep them."""

from __future__ import annotations

import pytest

from app.core.policies import policy_names
from app.simulator.bound import CLAIRVOYANT
from app.simulator.options import Options
from app.simulator.running import simulate
from app.simulator.traces.generating import generate
from app.simulator.traces.job import Trace, TraceJob

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


WIDE = Trace.of("wide", [TraceJob(f"j{place}", 60.0 * place, 1800.0, 64) for place in range(6)])


@pytest.mark.parametrize("name", policy_names())
def test_a_node_is_one_node_whatever_its_size(name: str) -> None:
    """What is told as rented at once keeps to the limit that policies were given; it was eight times as much where jobs
    of 64 GPUs run, whose nodes are made of eight hosts each. GPUs are told apart."""
    found = simulate(WIDE, [name], Options(gpus="trace", serverful_limit=2))["policies"][name]
    assert found["peak_nodes"] <= 2
    assert found["peak_gpus"] == 64 * found["peak_nodes"]


def test_the_bound_counts_a_node_for_each_job() -> None:
    """All six jobs of half an hour run at once: six nodes, each with as many GPUs as its job."""
    found = simulate(WIDE, [CLAIRVOYANT], Options(gpus="trace"))["policies"][CLAIRVOYANT]
    assert (found["peak_nodes"], found["peak_gpus"]) == (6, 384)
