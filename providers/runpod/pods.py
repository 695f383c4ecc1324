"""What a pod at RunPod is in our words, and what has been seen of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.core.model.ids import is_id
from app.core.model.money import Money
from app.core.model.node import Tier
from app.errors import Transient
from app.ports.clock import Clock
from app.ports.provider import Machine, MachineStatus
from providers.runpod.catalogue import NAME, TIERS, disk_per_hour, dollars

_STATUS = {
    "PROVISIONING": MachineStatus.BOOTING,
    "STARTING": MachineStatus.BOOTING,
    "RUNNING": MachineStatus.RUNNING,
    "EXITED": MachineStatus.STOPPED,  # it is listed until it is deleted, and costs nothing without a volume
    "ERROR": MachineStatus.STOPPED,
    "TERMINATED": MachineStatus.ENDED,
}
_MOST_REMEMBERED = 4096


@dataclass(slots=True)
class _Sighting:
    """A pod as this process knows it. RunPod tells when one started, and not when it ended."""

    machine: Machine
    seen: bool = False  # by a look: a create call may name a pod that never comes to be
    ran: bool = False
    stopped_ms: int | None = None
    deleted_ms: int | None = None


class Pods:
    """The pods seen lately, by reference. Forgets the oldest when there are thousands."""

    def __init__(self, clock: Clock, *, create_grace_ms: int) -> None:
        self._clock = clock
        self._create_grace_ms = create_grace_ms
        self._sightings: OrderedDict[str, _Sighting] = OrderedDict()

    def created(self, row: Mapping[str, Any], *, label: str, price: Money) -> Machine:
        """The answer to a create call. What it does not tell is as it was ordered."""
        machine = self.see({"createdAt": None, **row, "name": label}, price=price)
        self._sightings[machine.ref].seen = False
        return machine

    def see(self, row: Mapping[str, Any], *, price: Money | None = None) -> Machine:
        """Take in what the API says of a pod. Raises Transient for a row that says too little."""
        ref, word = row.get("id"), row.get("status")
        if not isinstance(ref, str) or not ref or not isinstance(word, str):
            raise Transient(f"runpod: a pod cannot be read, it has no id or status: {sorted(row)}")
        known, now_ms = self._sightings.get(ref), self._clock.now_ms()
        before = None if known is None else known.machine
        created_ms = _instant_ms(row.get("createdAt"))
        usual_ms = now_ms if before is None else before.created_ms
        machine = Machine(
            provider=NAME,
            ref=ref,
            label=_text(row, "name") or (None if before is None else before.label),
            tier=TIERS.get(_text(row, "cloud") or "", Tier.CONVENTIONAL if before is None else before.tier),
            status=_STATUS.get(word, MachineStatus.RUNNING),  # a word of later days: it is there, and may cost
            price_per_hour=_price(row) or price or (Money(0) if before is None else before.price_per_hour),
            created_ms=usual_ms if created_ms is None else created_ms,
            billed_from_ms=None,
            billed_to_ms=None,
            detail="" if word in {"STARTING", "RUNNING"} else word.lower(),
        )
        sighting = known or _Sighting(machine)
        self._note_run(sighting, machine, _instant_ms(row.get("startedAt")), before)
        sighting.seen = True
        return self._keep(sighting)

    def deleted(self, ref: str) -> None:
        """A deletion was accepted: nothing is charged from now on."""
        sighting = self._sightings.get(ref)
        if sighting is not None and sighting.deleted_ms is None:
            sighting.deleted_ms = self._clock.now_ms()

    def missing(self, ref: str) -> Machine | None:
        """RunPod knows no such pod: ended, if it was ever seen. None: there never was such a one.

        Raises Transient for one that was created a moment ago and not seen since: it may be on its way.
        """
        sighting = self._sightings.get(ref)
        if sighting is None:
            return None
        age_ms = self._clock.now_ms() - sighting.machine.created_ms
        if not sighting.seen and sighting.deleted_ms is None and age_ms < self._create_grace_ms:
            raise Transient(f"runpod: pod {ref} was created and cannot be seen yet")
        over_ms = sighting.stopped_ms or sighting.deleted_ms or self._clock.now_ms()
        sighting.stopped_ms = over_ms
        machine = sighting.machine
        billed_to_ms = None if machine.billed_from_ms is None else max(over_ms, machine.billed_from_ms)
        sighting.machine = replace(machine, status=MachineStatus.ENDED, billed_to_ms=billed_to_ms)
        return sighting.machine

    def is_over(self, ref: str) -> bool:
        """Whether it was deleted by us."""
        sighting = self._sightings.get(ref)
        return sighting is not None and sighting.deleted_ms is not None

    def _note_run(self, sighting: _Sighting, machine: Machine, started_ms: int | None, before: Machine | None) -> None:
        now_ms = self._clock.now_ms()
        runs = machine.status is MachineStatus.RUNNING
        sighting.ran = sighting.ran or runs or (started_ms is not None and machine.status is MachineStatus.STOPPED)
        if machine.status in {MachineStatus.STOPPED, MachineStatus.ENDED}:
            sighting.stopped_ms = sighting.stopped_ms or sighting.deleted_ms or now_ms
        elif runs:
            sighting.stopped_ms = None
        begun_ms = before.billed_from_ms if before is not None else None
        if begun_ms is None and sighting.ran:
            begun_ms = now_ms if started_ms is None else started_ms
        over_ms = None
        if begun_ms is not None and sighting.stopped_ms is not None:
            over_ms = max(begun_ms, sighting.stopped_ms)
        sighting.machine = replace(machine, billed_from_ms=begun_ms, billed_to_ms=over_ms)

    def _keep(self, sighting: _Sighting) -> Machine:
        ref = sighting.machine.ref
        self._sightings[ref] = sighting
        self._sightings.move_to_end(ref)
        while len(self._sightings) > _MOST_REMEMBERED:
            self._sightings.popitem(last=False)
        return sighting.machine


def is_ours(machine: Machine) -> bool:
    """Whether its name is a node's id."""
    return machine.label is not None and is_id(machine.label, "node")


def _price(row: Mapping[str, Any]) -> Money | None:
    """As billed while it runs: GPUs, and the container's disk. None where it is not told, as of a pod that is over."""
    cost, disk_gb = dollars(row.get("cost")), row.get("disk")
    if cost is None or cost.micros == 0:
        return None
    return cost + disk_per_hour(disk_gb if isinstance(disk_gb, int) and disk_gb > 0 else 0)


def _instant_ms(text: Any) -> int | None:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    return value if isinstance(value, str) and value else None
