"""What a contract at Vast.ai is in our words, and what has been seen of each."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from app.core.billing import accrued
from app.core.model.money import ZERO, Money
from app.core.model.node import Tier
from app.errors import Transient
from app.ports.clock import Clock
from app.ports.provider import Machine, MachineStatus
from providers.vast.numbers import Row, dollars, number, text
from providers.vast.search import NAME

_MOST_REMEMBERED = 4096
_STARTING = frozenset({"", "created", "loading", "scheduling", "rebooting"})
_AWAY = frozenset({"offline", "unknown"})
# What is written into status_msg when a container will not come up, whatever the status says.
_BROKEN = (
    "oci runtime",
    "error response from daemon",
    "failed to create",
    "pull access denied",
    "manifest unknown",
    "no space left on device",
)


@dataclass(slots=True)
class Sighting:
    """A contract as this process has come to know it. The API does not tell when a container ran: the first and the
    last look that found it running stand for it."""

    machine: Machine
    host: str
    first_seen_ms: int
    ran_from_ms: int | None = None
    ran_to_ms: int | None = None  # seen not running since then; None while it runs
    paused: bool = False  # it has run in more than one stretch
    is_bid: bool = False
    outbid: bool = False  # it does not run because somebody else has the host, if it does not
    ended_ms: int | None = None
    billed: Money | None = None

    def certain_cost(self) -> Money:
        """What its time must have cost at least; nothing when it did not run all the time."""
        if self.ran_from_ms is None or self.ended_ms is None or self.paused:
            return ZERO
        return accrued(self.machine.price_per_hour, self.ran_from_ms, self.ran_to_ms or self.ended_ms)


class SeenContracts:
    """The contracts seen lately, by reference. Forgets the oldest when there are thousands."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sightings: OrderedDict[str, Sighting] = OrderedDict()

    def see(self, row: Row) -> Sighting:
        """Take in what the API says of a contract. Raises Transient for a row that says too little.

        A label that is missing for a moment is the one that was seen before.
        """
        ref, now_ms = text(row, "id"), self._clock.now_ms()
        known = self._sightings.get(ref)
        price = _price(row, known)
        if not ref or price is None:
            said = f"id {row.get('id')!r}, dph_total {row.get('dph_total')!r}"
            raise Transient(f"vast: a contract cannot be read: {said}")
        status, detail = _status(row, ran=known is not None and known.ran_from_ms is not None)
        begun_s, over_s = number(row, "start_date"), number(row, "end_date")
        first_seen_ms = now_ms if known is None else known.first_seen_ms
        machine = Machine(
            provider=NAME,
            ref=ref,
            label=text(row, "label") or (None if known is None else known.machine.label),
            tier=Tier.MARKETPLACE,
            status=status,
            price_per_hour=price,
            created_ms=first_seen_ms if begun_s is None else int(begun_s * 1000),
            billed_from_ms=None,
            billed_to_ms=None,
            detail=detail,
            ends_ms=None if over_s is None else int(over_s * 1000),
        )
        sighting = known or Sighting(machine, text(row, "machine_id"), first_seen_ms)
        _run_time(sighting, status, now_ms)
        sighting.outbid = _is_outbid(row)
        sighting.is_bid = row["is_bid"] is True if isinstance(row.get("is_bid"), bool) else sighting.is_bid
        interrupted = sighting.is_bid and (sighting.outbid or sighting.paused)
        sighting.machine = replace(machine, billed_from_ms=sighting.ran_from_ms, interrupted=interrupted)
        sighting.ended_ms = None  # it is listed: an end that was noted has not come yet
        self._keep(ref, sighting)
        return sighting

    def end(self, ref: str) -> Sighting | None:
        """The contract has been destroyed. None when it was never seen."""
        sighting = self._sightings.get(ref)
        if sighting is not None and sighting.ended_ms is None:
            now_ms = self._clock.now_ms()
            sighting.ended_ms = now_ms
            over_ms = None
            if sighting.ran_from_ms is not None:
                over_ms = now_ms if sighting.ran_to_ms is None else sighting.ran_to_ms
            sighting.machine = replace(
                sighting.machine, status=MachineStatus.ENDED, billed_to_ms=over_ms, detail="destroyed"
            )
        return sighting

    def get(self, ref: str) -> Sighting | None:
        """What is known of it; None when it was never seen, or long ago."""
        return self._sightings.get(ref)

    def _keep(self, ref: str, sighting: Sighting) -> None:
        self._sightings[ref] = sighting
        self._sightings.move_to_end(ref)
        while len(self._sightings) > _MOST_REMEMBERED:
            self._sightings.popitem(last=False)


def _price(row: Row, known: Sighting | None) -> Money | None:
    """As billed while it runs: GPUs and disk. A row may lack it for a moment; it does not change."""
    whole, base = number(row, "dph_total"), number(row, "dph_base")
    if whole is None and base is not None:
        whole = base + (number(row, "storage_total_cost") or 0)
    if whole is None:
        return None if known is None else known.machine.price_per_hour
    return dollars(whole)


def _run_time(sighting: Sighting, status: MachineStatus, now_ms: int) -> None:
    if status is MachineStatus.RUNNING:
        if sighting.ran_from_ms is None:
            sighting.ran_from_ms = now_ms
        elif sighting.ran_to_ms is not None:
            sighting.ran_to_ms, sighting.paused = None, True
    elif sighting.ran_from_ms is not None and sighting.ran_to_ms is None:
        sighting.ran_to_ms = now_ms


def _is_outbid(row: Row) -> bool:
    return {text(row, name) for name in ("cur_state", "next_state", "intended_status")} == {"stopped"}


def _status(row: Row, *, ran: bool) -> tuple[MachineStatus, str]:
    """Nothing that is listed has ended: whatever state it is in, at least its disk is paid for."""
    said, message = text(row, "actual_status").lower(), text(row, "status_msg")
    detail = f"{said or 'provisioning'}: {message}" if message else said or "provisioning"
    if said == "running":
        return MachineStatus.RUNNING, detail
    if _is_outbid(row):
        return MachineStatus.STOPPED, f"outbid, or never started ({detail})"
    if said in _STARTING:
        broken = any(sign in message.lower() for sign in _BROKEN)
        return (MachineStatus.STOPPED if broken else MachineStatus.BOOTING), detail
    if said in _AWAY and ran:
        return MachineStatus.RUNNING, f"{detail}: its host does not answer; it may come back"
    return MachineStatus.STOPPED, detail
