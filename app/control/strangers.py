"""Machines on our accounts that are not ours: left alone, and told once."""

from __future__ import annotations

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)

_MOST_NAMED = 5


class Strangers:
    """One per process. Another installation's machines come and go: what is new is told, not what is there."""

    def __init__(self) -> None:
        self._told: dict[str, frozenset[str]] = {}

    def tell(self, provider: str, machines: Mapping[str, str | None]) -> None:
        """What a listing shows beside our own machines: labels by reference. Whoever finds one here that nobody needs
        ends it in the provider's console, for it is paid for."""
        new = sorted(machines.keys() - self._told.get(provider, frozenset()))
        self._told[provider] = frozenset(machines)
        if new:
            named = ", ".join(f"{ref} ({machines[ref]})" for ref in new[:_MOST_NAMED])
            more = f" and {len(new) - _MOST_NAMED} more" if len(new) > _MOST_NAMED else ""
            log.warning("%s lists machines that this installation did not rent: %s%s; they are left alone", provider,
                        named, more)  # fmt: skip
