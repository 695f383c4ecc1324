"""What other packages bring to simulations by entry point: policies, readers of traces, and markets.

A package that fails is named, and costs nothing else: nothing of it is loaded before somebody asks for it by name.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from app.core.board import Board
from app.core.model.node import RENTED_TIERS, Tier
from app.core.model.plan import Plan
from app.core.policy import Policy, PolicyConfig, PolicyState
from app.errors import InvalidInput, UserError
from app.simulator.prices import PriceCurve
from app.simulator.traces.job import Trace, check_jobs

POLICIES, TRACES, MARKETS = "allpass.policies", "allpass.traces", "allpass.markets"


class PackageFailed(UserError):
    """Code of another package raised, or gave what it must not."""

    code = "package_failed"


def names_of(group: str) -> tuple[str, ...]:
    """What is installed in the group, sorted."""
    return tuple(sorted({one.name for one in entry_points(group=group)}))


def policy_of(name: str) -> Policy:
    """Raises PackageFailed where it is none, InvalidInput where several packages have the name."""
    made = _called(_the_only_one(POLICIES, name, "policy"))
    return _Named(name, checked_policy(made, f"policy {name}"))


class _Named:
    """A package's policy: what it raises is told in a line, with its name."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name, self.uses, self.moves_by_budget = name, policy.uses, policy.moves_by_budget
        self._policy = policy

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        try:
            plan, state = self._policy.decide(board, state, config)
        except Exception as error:
            raise PackageFailed(f"policy {self.name} failed: {_words(error)}", param="policy") from error
        if not isinstance(plan, Plan) or not isinstance(state, PolicyState):
            raise PackageFailed(f"policy {self.name}: decide gave no plan with a state", param="policy")
        return plan, state


def checked_policy(made: Any, what: str) -> Policy:
    """Raises PackageFailed that names what it lacks."""
    lacks = [one for one in ("name", "uses", "moves_by_budget", "decide") if not hasattr(made, one)]
    if lacks or not callable(made.decide) or not isinstance(made.name, str):
        words = ", ".join(lacks) or "a text as its name, or decide(board, state, config)"
        raise PackageFailed(
            f"{what}: {type(made).__name__} is no policy, it lacks {words}; see docs/guides/write-a-policy.md",
            param="policy",
        )
    policy: Policy = made
    return policy


def trace_of(name: str, path: Any) -> Trace:
    """What the package reads from the file. Raises PackageFailed where that is no trace, InvalidInput for bad jobs."""
    found = _called(_the_only_one(TRACES, name, "source"), path)
    if not isinstance(found, Trace):
        raise PackageFailed(f"source: {name} gave a {type(found).__name__}, not a Trace", param="source")
    check_jobs(found)
    return found


def market_of(name: str, seed: int, horizon_s: float) -> Mapping[Tier, PriceCurve]:
    """The prices of each tier that the package moves. Raises PackageFailed where it gives no curves."""
    found = _called(_the_only_one(MARKETS, name, "market"), seed, horizon_s)
    if not isinstance(found, Mapping) or not all(isinstance(one, PriceCurve) for one in found.values()):
        raise PackageFailed(f"--market: {name} gave no PriceCurve for each tier", param="market")
    unknown = [str(tier) for tier in found if tier not in set(RENTED_TIERS)]
    if unknown:
        raise PackageFailed(
            f"--market: {name} gave prices of {unknown[0]}; the tiers are {', '.join(RENTED_TIERS)}", param="market"
        )
    return {Tier(tier): curve for tier, curve in found.items()}


def _the_only_one(group: str, name: str, param: str) -> EntryPoint:
    found = [one for one in entry_points(group=group) if one.name == name]
    if len(found) != 1:
        packages = ", ".join(sorted(_package_of(one) for one in found))
        raise InvalidInput(f"{param}: {name!r} is in several packages: {packages}; remove all but one", param=param)
    return found[0]


def _called(one: EntryPoint, *given: Any) -> Any:
    try:
        return one.load()(*given)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise PackageFailed(
            f"{one.name} of the package {_package_of(one)} failed: {_words(error)}", param=one.group.rpartition(".")[2]
        ) from error


def _words(error: BaseException) -> str:
    """What it says, and where in the package."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}"[:300] + place


def _package_of(one: EntryPoint) -> str:
    return one.dist.name if one.dist is not None else "?"
