"""What has been seen of each instance. Lambda tells no times, and soon forgets what has ended: this remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.core.model.ids import is_id
from app.core.model.money import Money
from app.core.model.node import Tier
from app.errors import Transient
from app.ports.clock import Clock
from app.ports.provider import Machine, MachineStatus
from providers.lambda_cloud.catalogue import NAME, price_of

LABEL_TAG, CREATED_TAG = "allpass_node", "allpass_created_ms"
_STATUS = {
    "booting": MachineStatus.BOOTING,
    "active": MachineStatus.RUNNING,
    "unhealthy": MachineStatus.RUNNING,  # it is billed, and may recover; its agent's silence has a clock of its own
    "preempted": MachineStatus.STOPPED,
    "terminating": MachineStatus.STOPPED,  # nothing runs any more; over when it is terminated or gone
    "terminated": MachineStatus.ENDED,
}
_MOST_ENDED = 1_000


class Sightings:
    """Billing is told by our clock: from the moment an instance was first seen active, to that of its termination."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machines: dict[str, Machine] = {}
        self._terminated_ms: dict[str, int] = {}

    def launched(self, ref: str, label: str, price: Money, created_ms: int) -> Machine:
        """A launch was accepted: nothing is known yet but that."""
        return self._keep(
            Machine(NAME, ref, label, Tier.CONVENTIONAL, MachineStatus.BOOTING, price, created_ms, None, None)
        )

    def see(self, row: Mapping[str, Any]) -> Machine:
        """An instance as Lambda lists it now. Raises Transient when it lacks what cannot be done without."""
        ref, status_word = row.get("id"), row.get("status")
        if not isinstance(ref, str) or not ref or not isinstance(status_word, str):
            raise Transient(f"an instance in lambda's answer has no id or status: {sorted(row)}")
        before = self._machines.get(ref)
        price = price_of(row.get("instance_type")) or (before.price_per_hour if before else None)
        if price is None:
            raise Transient(f"instance {ref} in lambda's answer has no instance_type.price_cents_per_hour")
        now_ms = self._clock.now_ms()
        machine = Machine(
            provider=NAME,
            ref=ref,
            label=label_of(row),
            tier=Tier.CONVENTIONAL,
            status=_STATUS.get(status_word, MachineStatus.RUNNING),  # a word of later days: it is there, and may cost
            price_per_hour=price,
            created_ms=_created_ms(row) or (before.created_ms if before else now_ms),
            billed_from_ms=before.billed_from_ms if before else None,
            billed_to_ms=before.billed_to_ms if before else None,
            detail="" if status_word in {"booting", "active"} else status_word,
        )
        if status_word in {"active", "unhealthy"} and machine.billed_from_ms is None:
            machine = replace(machine, billed_from_ms=now_ms)
        if machine.status is MachineStatus.ENDED:
            machine = self._end(machine)
        return self._keep(machine)

    def terminated(self, ref: str) -> None:
        """A termination was accepted: billing ends."""
        self._terminated_ms.setdefault(ref, self._clock.now_ms())

    def gone(self, ref: str) -> Machine | None:
        """Lambda knows no such instance: ended, if it was ever seen. None: there never was such a one."""
        before = self._machines.get(ref)
        return None if before is None else self._keep(self._end(before))

    def _end(self, machine: Machine) -> Machine:
        if machine.billed_from_ms is None:  # it was never seen active; an earlier process may have
            return replace(machine, status=MachineStatus.ENDED)
        ended_ms = self._terminated_ms.get(machine.ref, self._clock.now_ms())
        billed_to_ms = machine.billed_to_ms or max(ended_ms, machine.billed_from_ms)
        return replace(machine, status=MachineStatus.ENDED, billed_to_ms=billed_to_ms)

    def _keep(self, machine: Machine) -> Machine:
        self._machines[machine.ref] = machine
        ended = [ref for ref, each in self._machines.items() if each.status is MachineStatus.ENDED]
        for ref in ended[:-_MOST_ENDED]:
            del self._machines[ref]
            self._terminated_ms.pop(ref, None)
        return machine


def label_of(row: Mapping[str, Any]) -> str | None:
    """Our node's id: from the tag, else from the name. For what is not ours, its name."""
    name = row.get("name")
    if isinstance(row.get("tags"), list):
        tag = _tag(row, LABEL_TAG)
        if tag is not None:
            return tag
    return name if isinstance(name, str) and name else None


def is_ours(machine: Machine) -> bool:
    """Whether its label is a node's id."""
    return machine.label is not None and is_id(machine.label, "node")


def _created_ms(row: Mapping[str, Any]) -> int | None:
    told = _tag(row, CREATED_TAG) or ""
    return int(told) if told.isdecimal() and len(told) < 16 else None


def _tag(row: Mapping[str, Any], key: str) -> str | None:
    tags = row.get("tags")
    for tag in tags if isinstance(tags, list) else []:
        if isinstance(tag, dict) and tag.get("key") == key and isinstance(tag.get("value"), str):
            return str(tag["value"])
    return None
