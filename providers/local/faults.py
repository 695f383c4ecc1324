"""Faults that a test or a demonstration asks for: the next call of a kind goes wrong in a named way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Operation(StrEnum):
    CREATE = "create"
    GET = "get"
    LIST = "list"
    TERMINATE = "terminate"
    OFFERS = "offers"


class When(StrEnum):
    """Whether the call has taken effect when the fault strikes."""

    BEFORE = "before"
    AFTER = "after"


class FaultKind(StrEnum):
    DROP_CONNECTION = "drop_connection"
    ERROR_500 = "error_500"
    HANG_MS = "hang_ms"  # answers `ms` late
    RATE_LIMITED = "rate_limited"  # come back after `ms`
    NO_CAPACITY = "no_capacity"
    OFFER_GONE = "offer_gone"
    PRICE_MOVED = "price_moved"
    NEVER_READY = "never_ready"  # the machine is created, and boots for ever
    BOOT_SLOW_MS = "boot_slow_ms"  # the machine boots `ms` longer


REFUSALS = frozenset({FaultKind.RATE_LIMITED, FaultKind.NO_CAPACITY, FaultKind.OFFER_GONE, FaultKind.PRICE_MOVED})
BOOT_FAULTS = frozenset({FaultKind.NEVER_READY, FaultKind.BOOT_SLOW_MS})
_CREATE_ONLY = BOOT_FAULTS | (REFUSALS - {FaultKind.RATE_LIMITED})
_WITH_MS = frozenset({FaultKind.HANG_MS, FaultKind.BOOT_SLOW_MS, FaultKind.RATE_LIMITED})
_FIELDS = {"op", "when", "kind", "count", "ms"}
LONGEST_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes the next `count` calls of `op`. `ms` belongs to the kinds that last."""

    op: Operation
    kind: FaultKind
    when: When = When.BEFORE
    count: int = 1
    ms: int = 0

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Fault:
        """From a request body. A field that is wrong or makes no sense with the others is a ValueError saying so."""
        unknown = sorted(set(body) - _FIELDS)
        if unknown:
            raise ValueError(f"{unknown[0]} is not a field of a fault; the fields are {', '.join(sorted(_FIELDS))}")
        fault = cls(
            op=Operation(_choice(body, "op", Operation)),
            kind=FaultKind(_choice(body, "kind", FaultKind)),
            when=When(_choice(body, "when", When, default=When.BEFORE)),
            count=_integer(body, "count", 1, 1_000_000, default=1),
            ms=_integer(body, "ms", 0, LONGEST_MS, default=0),
        )
        if fault.kind in _CREATE_ONLY and fault.op is not Operation.CREATE:
            raise ValueError(f"kind {fault.kind} goes with op create only, not with {fault.op}")
        if fault.kind in REFUSALS | BOOT_FAULTS and fault.when is When.AFTER:
            raise ValueError(f"kind {fault.kind} strikes before the effect only; leave `when` out")
        if fault.kind in _WITH_MS and "ms" not in body:
            raise ValueError(f"kind {fault.kind} needs ms, e.g. 500")
        return fault


class FaultScript:
    """The faults still to come, in the order they were asked for."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._waiting.append(fault)

    def clear(self) -> None:
        self._waiting.clear()

    def waiting(self) -> list[Fault]:
        return list(self._waiting)

    def take(self, op: Operation) -> Fault | None:
        """The fault that strikes this call, if one does; used up by asking."""
        for index, fault in enumerate(self._waiting):
            if fault.op is op:
                if fault.count > 1:
                    self._waiting[index] = replace(fault, count=fault.count - 1)
                else:
                    del self._waiting[index]
                return fault
        return None


def _choice(body: Mapping[str, Any], name: str, choices: type[StrEnum], default: str | None = None) -> str:
    value = body.get(name, default)
    if value not in [choice.value for choice in choices]:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
    return str(value)


def _integer(body: Mapping[str, Any], name: str, least: int, most: int, default: int) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {least} to {most}")
    return value
