"""What the friendly world, which is what a simulation plays unless it is asked for another, decides and bills.

The file was written before there were other worlds. When a change is meant to alter what is simulated, look at what
changes and renew it:

    python -m tests.simulator.friendly
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.core.board import Board
from app.core.codec import dumps
from app.core.model.plan import Plan
from app.core.policies import policy_named
from app.core.policy import PolicyState
from app.simulator.engine import Simulation
from app.simulator.merging import MergingSimulation
from app.simulator.options import Options
from app.simulator.traces.generating import generate
from app.simulator.worlds.known import WORLDS
from app.simulator.worlds.rough import simulation_for

FRIENDLY = Path(__file__).parent / "data" / "friendly.json"
POLICIES = ("allpass", "modal-only", "fixed-threshold", "hpa", "allpass-drain", "cheapest-first")
CASES: Mapping[str, Mapping[str, str]] = {
    "as usual": {},
    "several GPUs": {"gpus": "trace"},
    "moving prices": {"market": "calm", "knowledge": "submit:ln0.5,wrong=0.1,refined"},
    "failures": {"market.mean_life_s.marketplace": "3600", "market.mean_life_s.serverless": "20000"},
    "few machines": {"market.limits.marketplace": "4", "serverful-limit": "6"},
    "merging": {"merge-able": "0.8", "merging": "on"},
}


def played(policy: str, words: Mapping[str, str], seed: int = 3) -> dict[str, Any]:
    """Whole numbers and a hash of every plan: they are the same on every machine."""
    options = Options()
    for name, text in words.items():
        options = options.having(name, text)
    config = options.config()
    scenario = options.scenario(generate("seren", 40, 5), seed, config)
    plans = hashlib.sha256()

    def watch(_board: Board, plan: Plan, _state: PolicyState) -> None:
        plans.update(dumps(plan))

    kind = simulation_for(scenario, merging=config.merging)
    if scenario.world == WORLDS["friendly"]:
        kind = MergingSimulation if config.merging else Simulation
    result = kind(scenario, policy_named(policy), config, watch).run()
    return {
        "plans": plans.hexdigest()[:32],
        "finished_ms": sum(one.finished_ms for one in result.outcomes),
        "tiers": hashlib.sha256(" ".join(one.tiers for one in result.outcomes).encode()).hexdigest()[:16],
        "lost_ms": sum(one.lost_ms for one in result.outcomes),
        "bills": dict(sorted(result.bills.items())),
        "decisions": result.decisions,
        "figures": hashlib.sha256(" ".join(result.figures()).encode()).hexdigest()[:16],
    }


def everything() -> dict[str, dict[str, Any]]:
    return {case: {policy: played(policy, words) for policy in POLICIES} for case, words in CASES.items()}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    FRIENDLY.write_text(json.dumps(everything(), indent=1) + "\n")
