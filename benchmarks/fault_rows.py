"""The rows of the fault matrix: what goes wrong, at which company, in which call, and whether we die of it as well."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

COMPANIES = ("modal", "vast", "lambda")
Json = Mapping[str, Any]


class Moment(StrEnum):
    """When the fault is set up."""

    SUBMIT = "submit"  # before there is a machine, so that it strikes the first call of its kind
    RENTED = "rented"  # while the company has a machine of the job
    RUNNING = "running"  # while the job's code runs


@dataclass(frozen=True, slots=True)
class Row:
    """One experiment. `faults` and `switches` are bodies of the admin port; `action` is done to the job's machine.

    `op` is what the row is about: one of the four operations of a provider, or `own` for what only this company does.
    `crash`: the control plane is killed (SIGKILL) when the first fault has struck, or the action was done.
    `traceless`: the company tells nothing of the machine's end, so that it is booked until it was first missed.
    `neighbour`: another installation has a machine on the same account, older than ours; it must outlive the row.
    `late_ms`: so long after the strike the company does what it was asked for; nothing is judged before that.
    """

    company: str
    op: str
    name: str
    faults: tuple[Json, ...] = ()
    switches: Json = field(default_factory=dict)
    action: tuple[str, Json] | None = None
    moment: Moment = Moment.SUBMIT
    crash: bool = False
    traceless: bool = False
    late_ms: int = 0
    neighbour: bool = False

    @property
    def key(self) -> str:
        """Its name in reports."""
        return f"{self.company} {self.op}: {self.name}{' + crash' if self.crash else ''}"

    @property
    def strikes(self) -> int:
        """How many calls its faults strike, when all have their turn."""
        return sum(int(fault.get("count", 1)) for fault in self.faults)


# The four operations of a provider, as each company's emulator names them.
_OPS: Mapping[str, Mapping[str, str]] = {
    "modal": {"create": "create", "get": "get", "list": "list", "terminate": "terminate"},
    "vast": {"create": "create", "get": "show", "list": "list", "terminate": "destroy"},
    "lambda": {"create": "launch", "get": "get", "list": "list", "terminate": "terminate"},
}
# A listing is asked for again and again, a look at a machine now and then: one fault would hardly be noticed.
_COUNTS = {"create": 1, "get": 2, "list": 3, "terminate": 1}
_WAIT_MS = 1_500
_WRONG_GPUS: Mapping[str, str] = {
    "missing": "a GPU is missing",
    "kind": "another card",
    "memory": "half of the memory",
    "driver": "an old driver",
    "ecc": "memory with errors",
    "silent": "nvidia-smi hangs",
}


def matrix(companies: Iterable[str] = COMPANIES) -> list[Row]:
    """Every row, those without a crash first: each generic fault in each operation, then the company's own."""
    calm = [row for company in companies for row in (*_generic(company), *_own(company))]
    return calm + [replace(row, crash=True) for row in calm]


def sample(rows: list[Row], count: int | None, seed: int) -> list[Row]:
    """So many of them, drawn by the seed, in their order; all of them for None."""
    if count is None or count >= len(rows):
        return rows
    drawn = set(random.Random(seed).sample(range(len(rows)), count))
    return [row for place, row in enumerate(rows) if place in drawn]


def _generic(company: str) -> Iterator[Row]:
    for op, wire in _OPS[company].items():
        for name, body in _faults(company).items():
            row = Row(company, op, name, ({"op": wire, "count": _COUNTS[op], **body},))
            if op == "list":
                row = replace(row, moment=Moment.RENTED)
            yield _silenced(row) if (company, op) == ("modal", "terminate") else row


def _silenced(row: Row) -> Row:
    """A sandbox ends with its program, before anybody has to end it: unless that hangs, and nothing is heard of it."""
    return replace(row, action=("signal", {"signal": "SIGSTOP"}), moment=Moment.RUNNING)


def _faults(company: str) -> dict[str, Json]:
    """What can go wrong with any call anywhere."""
    error: Json = {"kind": "error", "args": {"status": "INTERNAL" if company == "modal" else 500}}
    limited: Mapping[str, Json] = {
        "modal": {"kind": "throttle", "ms": _WAIT_MS},
        "vast": {"kind": "rate_limited", "args": {"retry_after_ms": _WAIT_MS}},
        "lambda": {"kind": "error", "args": {"status": 429, "retry_after_s": _WAIT_MS / 1000}},
    }
    return {
        "reply lost after the effect": {"kind": "drop", "when": "after"},
        "error after the effect": {**error, "when": "after"},
        "dropped before the effect": {"kind": "drop", "when": "before"},
        "error before the effect": {**error, "when": "before"},
        "hangs beyond our patience": {"kind": "hang", "when": "before"},
        "rate limited": limited[company],
    }


def _own(company: str) -> list[Row]:
    return [*{"modal": _modal, "vast": _vast, "lambda": _lambda}[company](), _beside(company)]


def _beside(company: str) -> Row:
    """Nothing goes wrong but the answer to our own create: the listing then shows two machines, one of them ours."""
    lost = {"op": _OPS[company]["create"], "kind": "drop", "when": "after"}
    return Row(company, "own", "another installation on the account", (lost,), neighbour=True)


def _late(company: str) -> Iterator[Row]:
    """A create whose effect comes when we have given up on the call: while we wait for it to appear, or after that."""
    op = _OPS[company]["create"]
    for name, ms in (("takes effect while we look for it", 4_000), ("takes effect after the grace", 9_000)):
        yield Row(company, "own", name, ({"op": op, "kind": "slow", "when": "before", "ms": ms},), late_ms=ms)


def _modal() -> list[Row]:
    def row(name: str, *faults: Json, **fields: Any) -> Row:
        return Row("modal", "own", name, faults, **fields)

    lost_once = {"op": "create", "kind": "drop", "when": "after"}
    failed = ("finish", {"status": "INTERNAL_FAILURE", "exitcode": 0, "exception": "host failure"})
    return [
        row("never scheduled", {"op": "create", "kind": "never_scheduled"}),
        row("scheduled, and never starts", {"op": "create", "kind": "never_starts"}),
        row("fails while it starts, exit code 0", {"op": "create", "kind": "init_failure"}),
        row("dead on arrival", {"op": "create", "kind": "dead_on_arrival"}),
        _silenced(row("a terminate that does nothing", {"op": "terminate", "kind": "ignored"})),
        row("its name is taken", lost_once, switches={"dedupe": False, "strike_each_attempt": True}),
        row("INTERNAL_FAILURE, exit code 0", action=failed, moment=Moment.RUNNING),
        row("preempted", action=("preempt", {"notice_ms": 500}), moment=Moment.RUNNING),
        row(
            "preempted without a trace",
            action=("preempt", {"notice_ms": 0}),
            moment=Moment.RUNNING,
            switches={"preempted_as": "SILENCE"},
            traceless=True,
        ),
    ]


def _vast() -> list[Row]:
    def row(name: str, *faults: Json, **fields: Any) -> Row:
        return Row("vast", "own", name, faults, **fields)

    lost = {"op": "create", "kind": "drop", "when": "after"}
    return [
        row("the offer is gone", {"op": "create", "kind": "no_such_ask"}),
        row("the price moves", {"op": "create", "kind": "price_moves"}),
        row("an error that names a contract", {"op": "create", "kind": "error_with_contract"}),
        row("two rents of one offer", lost, switches={"double_rent": True, "stale_search_ms": 60_000}),
        row("loads for ever", {"op": "create", "kind": "stuck"}),
        row("fails to boot, status_msg says why", {"op": "create", "kind": "boot_fails"}),
        row("runs, and its GPU cannot be used", {"op": "create", "kind": "broken_gpu"}),
        *(
            row(
                f"another machine than was rented: {name}",
                {"op": "create", "kind": "bad_gpus", "args": {"wrong": wrong}},
            )
            for wrong, name in _WRONG_GPUS.items()
        ),
        row("a GPU falls off the bus", action=("gpus", {"wrong": "lost"}), moment=Moment.RUNNING),
        row("the host goes offline", action=("offline", {}), moment=Moment.RUNNING),
        row("the lease ends", action=("expire", {}), moment=Moment.RUNNING),
        *_late("vast"),
    ]


def _lambda() -> list[Row]:
    def row(name: str, *faults: Json, **fields: Any) -> Row:
        return Row("lambda", "own", name, faults, **fields)

    return [
        row("insufficient capacity after all", {"op": "launch", "kind": "no_capacity"}),
        row("boots for ever", {"op": "launch", "kind": "never_ready"}),
        row("active, and never runs its user data", {"op": "launch", "kind": "cloud_init_fails"}),
        row("runs its user data late", {"op": "launch", "kind": "cloud_init_slow", "ms": 3_000}),
        row("missing from the listing", {"op": "list", "kind": "partial_list", "count": 2}, moment=Moment.RENTED),
        row("refuses to terminate", {"op": "terminate", "kind": "refuse_terminate", "count": 2}),
        row("unhealthy", action=("unhealthy", {}), moment=Moment.RUNNING),
        row("preempted, and still listed", action=("preempt", {"notice_ms": 0}), moment=Moment.RUNNING),
        *_late("lambda"),
    ]
