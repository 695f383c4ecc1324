"""What a sandbox of ours runs, and what it asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.core.images.logins import RegistryLogin
from app.core.model.offer import Offer
from app.ports.provider import MachineRequest
from providers.bootstrap import bootstrap_script
from providers.modal.reading import tags_of
from providers.modal.sdk import modal

LONGEST_LIFE_MS = 24 * 3_600_000
SHORTEST_LIFE_S = 10
_MIB = 1024**2
# All the script needs to find and prove the agent. A definition can be read in Modal's dashboard, a Secret cannot.
_PUBLIC = frozenset({"ALLPASS_URL", "ALLPASS_AGENT_SHA256"})


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, and the environment that goes into a Secret of Modal."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def launch_of(request: MachineRequest) -> Launch:
    """The bootstrap script as entry point. Raises InvalidRequest for a request that cannot be bootstrapped."""
    public = tuple((name, value) for name, value in request.bootstrap if name in _PUBLIC)
    script = bootstrap_script(replace(request, bootstrap=public))
    return Launch(("sh", "-c", script), dict(request.bootstrap))


def registry_secret(login: RegistryLogin | None) -> modal.Secret | None:
    """What Modal fetches an image of a private registry with. It belongs to the image: no sandbox sees it."""
    if login is None:
        return None
    return modal.Secret.from_dict({"REGISTRY_USERNAME": login.user, "REGISTRY_PASSWORD": login.password})


def asked_for(request: MachineRequest, offer: Offer, gpu: str, now_ms: int) -> dict[str, Any]:
    """What the create call says beside the program: everything that would otherwise be a default of Modal's.

    Without `timeout` a sandbox lives 300 s; without `cpu` and `memory` it gets a sliver of a busy host.
    """
    return {
        "gpu": gpu,
        "cpu": float(offer.cpus),
        "memory": offer.memory_bytes // _MIB,
        "timeout": lifetime_s(request.lifetime_ms),
        "tags": tags_of(request, price_per_hour=offer.price_per_hour, now_ms=now_ms),
    }


def lifetime_s(lifetime_ms: int | None) -> int:
    """Whole seconds, at most the 24 hours that Modal allows."""
    wanted_ms = LONGEST_LIFE_MS if lifetime_ms is None else min(lifetime_ms, LONGEST_LIFE_MS)
    return max(SHORTEST_LIFE_S, math.ceil(wanted_ms / 1_000))
