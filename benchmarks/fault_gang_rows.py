"""The fault matrix's rows of jobs on several machines: all come or none, and who goes takes no step along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.fault_row import Json, Moment, Row

_LAUNCHES: dict[str, Json] = {
    "the answer to one launch is lost": {"kind": "drop", "when": "after"},
    "one launch fails before its effect": {"kind": "error", "when": "before", "args": {"status": 500}},
    "one has no capacity after all": {"kind": "no_capacity"},
    "one boots for ever": {"kind": "never_ready"},
    "one never runs its user data": {"kind": "cloud_init_fails"},
    "one has another card": {"kind": "bad_gpus", "args": {"wrong": "kind"}},
}
_CREATES: dict[str, Json] = {
    "the answer to one create is lost": {"kind": "drop", "when": "after"},
    "one create fails before its effect": {"kind": "error", "when": "before", "args": {"status": 500}},
    "one is refused by an admission webhook": {"kind": "denied"},
    "one pod is never scheduled": {"kind": "never_ready"},
}
_BEGINS: dict[str, tuple[str, dict[str, Json]]] = {
    "lambda": ("launch", _LAUNCHES),
    "kubernetes": ("create_jobs", _CREATES),
}
_LOST: dict[str, dict[str, str]] = {
    "lambda": {"one is preempted, and still listed": "preempt", "one is unhealthy": "unhealthy"},
    "kubernetes": {"one pod is evicted": "evict", "one pod is preempted": "preempt_pod", "one is killed": "kill"},
    "joined": {"one is killed": "kill", "the program of one's host is updated": "restart_program"},
    "slurm": {"one is killed": "kill"},
}


def gang_rows(place: str) -> Iterator[Row]:
    """None where there is no private network."""
    op, faults = _BEGINS.get(place, ("", {}))
    for name, fault in faults.items():
        yield _row(place, name, {"op": op, **fault})
    for name, action in _LOST.get(place, {}).items():
        body = {"notice_ms": 0} if action == "preempt" else {}
        yield _row(place, name, action=(action, body), moment=Moment.RUNNING)


def _row(place: str, name: str, *faults: Json, **fields: Any) -> Row:
    return Row(place, "own", f"of two machines {name}", faults, nodes=2, **fields)
