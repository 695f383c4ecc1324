"""Faults that a test or a demonstration asks for: the next call of a kind goes wrong in a named way.

A fault is JSON: {"op": "create", "kind": "error", "when": "after", "count": 1, "ms": 0, "args": {"status": 500}}.
Each emulator has its own operations, and may add kinds of its own to the four that all know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

ANY_OP = "any"
LONGEST_MS = 3_600_000
_FIELDS = ("op", "kind", "when", "count", "ms", "args")


class When(StrEnum):
    """Whether the call has taken effect when the fault strikes."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """What a kind of fault is good for. Empty `ops`: every operation.

    `sided`: it may strike before or after the effect; else it shapes the call itself, and `when` makes no sense.
    `args` names what it takes, each with its type (a type, or a tuple of them); `needed` those it cannot do without.
    """

    ops: frozenset[str] = frozenset()
    sided: bool = False
    needs_ms: bool = False
    args: Mapping[str, type | tuple[type, ...]] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()


DROP, ERROR, HANG, SLOW = "drop", "error", "hang", "slow"
GENERIC: Mapping[str, FaultKind] = {
    DROP: FaultKind(sided=True),  # the connection breaks without an answer
    ERROR: FaultKind(
        sided=True, args={"status": (int, str), "code": str, "message": str, "retry_after_s": (int, float)}
    ),
    HANG: FaultKind(sided=True),  # no answer ever; the caller has to leave
    SLOW: FaultKind(sided=True, needs_ms=True),  # the answer comes `ms` late
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes the next `count` calls of `op`. `ms` and `args` are for the kinds that use them."""

    op: str
    kind: str
    when: When = When.BEFORE
    count: int = 1
    ms: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)


class FaultScript:
    """The faults still to come, in the order they were asked for."""

    def __init__(self, ops: Collection[str], kinds: Mapping[str, FaultKind] | None = None) -> None:
        """`ops` are the emulator's operations; `kinds` its own kinds of faults."""
        self.ops = tuple(ops)
        self.kinds: dict[str, FaultKind] = {**GENERIC, **(kinds or {})}
        self._waiting: list[Fault] = []

    def parse(self, body: Mapping[str, Any]) -> Fault:
        """From a request body. A field that is wrong or makes no sense with the others is a ValueError saying so."""
        unknown = sorted(set(body) - set(_FIELDS))
        if unknown:
            raise ValueError(f"{unknown[0]} is not a field of a fault; the fields are {', '.join(_FIELDS)}")
        op = _choice(body, "op", (*self.ops, ANY_OP))
        name = _choice(body, "kind", tuple(self.kinds))
        kind = self.kinds[name]
        if kind.ops and op not in kind.ops:
            raise ValueError(f"kind {name} goes with op {' or '.join(sorted(kind.ops))}, not with {op}")
        if "when" in body and not kind.sided:
            raise ValueError(f"kind {name} shapes the call itself; leave `when` out")
        if kind.needs_ms and "ms" not in body:
            raise ValueError(f"kind {name} needs ms, e.g. 500")
        return Fault(
            op=op,
            kind=name,
            when=When(_choice(body, "when", tuple(When), default=When.BEFORE)),
            count=_integer(body, "count", 1, 1_000_000, default=1),
            ms=_integer(body, "ms", 0, LONGEST_MS, default=0),
            args=_arguments(body, name, kind),
        )

    def add(self, fault: Fault) -> None:
        self._waiting.append(fault)

    def clear(self) -> None:
        self._waiting.clear()

    def waiting(self) -> list[Fault]:
        return list(self._waiting)

    def take(self, op: str, *kinds: str) -> Fault | None:
        """The fault that strikes this call, if one does (with `kinds`: one of these); used up by asking."""
        for index, fault in enumerate(self._waiting):
            if fault.op in {op, ANY_OP} and (not kinds or fault.kind in kinds):
                if fault.count > 1:
                    self._waiting[index] = replace(fault, count=fault.count - 1)
                else:
                    del self._waiting[index]
                return fault
        return None


def fault_json(fault: Fault) -> dict[str, Any]:
    """As it is asked for."""
    return asdict(fault)


def _arguments(body: Mapping[str, Any], name: str, kind: FaultKind) -> dict[str, Any]:
    given = body.get("args", {})
    if not isinstance(given, dict):
        raise ValueError(f"args is {given!r}; it must be an object")  # noqa: TRY004 - wrong input, not a wrong call
    for argument, value in given.items():
        if argument not in kind.args:
            known = ", ".join(kind.args) or "none"
            raise ValueError(f"args.{argument} is not an argument of kind {name}; they are: {known}")
        if not isinstance(value, kind.args[argument]) or (isinstance(value, bool) and kind.args[argument] is not bool):
            raise ValueError(f"args.{argument} is {value!r}, which is of the wrong type for kind {name}")
    missing = sorted(kind.needed - set(given))
    if missing:
        raise ValueError(f"kind {name} needs args.{missing[0]}")
    return dict(given)


def _choice(body: Mapping[str, Any], name: str, choices: Collection[str], default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")
    return str(value)


def _integer(body: Mapping[str, Any], name: str, least: int, most: int, default: int) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {least} to {most}")
    return value
