"""One small run per policy, and its figures as they are to be.

When a change is meant to alter what a policy does, look at what changes and renew the file:

    python -m tests.simulator.golden
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.core.policies import policy_names
from tests.simulator.scenarios import config, simulate
from tests.simulator.workloads import markets, workload_for

GOLDEN = Path(__file__).parent / "data" / "golden.json"


def figures(name: str) -> dict[str, Any]:
    """Whole numbers only: they are the same on every machine."""
    result = simulate(name, *workload_for(name, 9), on=markets(0), using=config(serverful_limit=6)).result
    return {
        "finished_ms": {one.job_id: one.finished_ms for one in result.outcomes},
        "tiers": {one.job_id: one.tiers for one in result.outcomes},
        "bills": dict(sorted(result.bills.items())),
        "most_nodes": result.most_nodes,
        "decisions": result.decisions,
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: figures(name) for name in policy_names()}, indent=1) + "\n")
