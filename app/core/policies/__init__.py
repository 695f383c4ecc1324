"""The policies by name. A new one is a module here and a line in `_POLICIES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.core.policies.allpass import Allpass
from app.core.policies.cornucopia import Cornucopia
from app.core.policies.fixed_threshold import FixedThreshold
from app.core.policies.hpa import Hpa, HpaConventional
from app.core.policies.ordered import Sjf, SjfNp, TiresiasL, TiresiasLNp
from app.core.policies.paper import Drain, Paper
from app.core.policies.simple import CheapestFirst, ModalOnly
from app.core.policy import Policy
from app.errors import InvalidInput

_ALL: tuple[Callable[[], Policy], ...] = (
    Allpass,
    Paper,
    Drain,
    FixedThreshold,
    ModalOnly,
    CheapestFirst,
    Hpa,
    HpaConventional,
    TiresiasL,
    TiresiasLNp,
    Sjf,
    SjfNp,
    Cornucopia,
)
_POLICIES: Mapping[str, Callable[[], Policy]] = {policy().name: policy for policy in _ALL}


def goes_by_queues(name: str) -> bool:
    """Whether the policy of that name counts with how long a project's jobs run in the mean (`Board.queue_means`)."""
    return name == Cornucopia.name


def policy_names() -> tuple[str, ...]:
    """Every name that `policy_named` knows, sorted."""
    return tuple(sorted(_POLICIES))


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises InvalidInput that lists the known names."""
    if name not in _POLICIES:
        known = ", ".join(policy_names())
        raise InvalidInput(f"policy {name!r} is not known; take one of: {known}", param="policy")
    return _POLICIES[name]()
