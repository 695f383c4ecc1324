"""Simulations from a program or a notebook, with policies of your own. Needs `pip install allpass-server`.

from allpass import simulate

jobs = simulate.generate("seren", jobs=200, seed=1)
print(simulate.run(jobs, ["allpass", "modal-only"], seeds=2))

The guide is write-a-policy.md.
"""

from __future__ import annotations

try:
    from app.cli.comparison import Comparison, run
    from app.core.board import Board
    from app.core.model.node import Tier
    from app.core.model.plan import ActionKind, Plan
    from app.core.policies import policy_names
    from app.core.policies.plan_builder import PlanBuilder
    from app.core.policy import Policy, PolicyConfig, PolicyState
    from app.simulator.prices import PriceCurve
    from app.simulator.traces.generating import generate
    from app.simulator.traces.importing import import_trace
    from app.simulator.traces.job import Trace, TraceJob
    from app.simulator.traces.reading import read_trace
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"app", "numpy"}:
        raise
    raise ModuleNotFoundError(
        f"{error.name} is missing: simulations need pip install allpass-server", name=error.name
    ) from None

__all__ = [
    "ActionKind",
    "Board",
    "Comparison",
    "Plan",
    "PlanBuilder",
    "Policy",
    "PolicyConfig",
    "PolicyState",
    "PriceCurve",
    "Tier",
    "Trace",
    "TraceJob",
    "generate",
    "import_trace",
    "policy_names",
    "read_trace",
    "run",
]
