"""The fault matrix's rows of a team's own machines: what only a cluster does, and only a host that has joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.fault_row import Json, Moment, Outage, Row

ALWAYS = 1_000_000  # calls: as long as the outage lasts
LASTS_S = 20.0  # longer than any grace here, as minutes are longer than those of production
_QUOTA = "exceeded quota: gpus, requested: count/jobs.batch=1, used: count/jobs.batch=8, limited: count/jobs.batch=8"
_NOTHING: Json = {}


def kubernetes_rows() -> Iterator[Row]:
    """What others do to pods, to nodes and to the API server, and what stands before a create."""
    yield from _creating()
    yield from _leaving()
    yield from _api_server()


def _row(name: str, *faults: Json, **fields: Any) -> Row:
    return Row("kubernetes", "own", name, faults, **fields)


def _create(kind: str, *, op: str = "create_jobs", **fields: Any) -> Json:
    return {"op": op, "kind": kind, **fields}


def _creating() -> Iterator[Row]:
    quota = {"status": 403, "message": f'jobs.batch "allpass" is forbidden: {_QUOTA}'}
    yield _row("the quota has no room", _create("error", args=quota))
    yield _row("an admission webhook refuses", _create("denied"))
    yield _row("a pod that is never scheduled", _create("never_ready"))
    yield _row("an image that cannot be pulled", _create("pull_error"))
    for when, name in (("after", "lost after the effect"), ("before", "lost before it")):
        drop = _create("drop", op="create_secrets", when=when)
        yield _row(f"the answer to its secret is {name}", drop)
    yield _row("its secret is refused", _create("denied", op="create_secrets"))


def _leaving() -> Iterator[Row]:
    actions = {
        "its pod is evicted": "evict",
        "its pod is preempted": "preempt_pod",
        "its node is short of memory": "pressure",
        "Kueue takes its place back": "suspend",
        "its pod's program is killed": "kill",
    }
    for name, action in actions.items():
        yield _row(name, action=(action, _NOTHING), moment=Moment.RUNNING)
    away = Outage(LASTS_S)
    yield _row("its node is not heard of", action=("node_lost", _NOTHING), moment=Moment.RUNNING, outage=away)
    gone = Outage(LASTS_S, takes_the_machine=True)
    halted = ("node_lost", {"halts": True})
    yield _row("its node stands still", action=halted, moment=Moment.RUNNING, outage=gone)


def _api_server() -> Iterator[Row]:
    yield _row("watches cannot go on", action=("compact", _NOTHING), moment=Moment.RUNNING)
    malformed = tuple({"op": f"list_{plural}", "kind": "malformed", "count": 3} for plural in ("jobs", "pods"))
    yield _row("an object that makes no sense", *malformed, moment=Moment.RENTED)
    expired = tuple({"op": f"list_{plural}", "kind": "expired", "count": 3} for plural in ("jobs", "pods"))
    yield _row("a list expires between its pages", *expired, moment=Moment.RENTED)
    yield _row("a list has a page for each object", switches={"page_limit": 1, "crowd": 20})
    for verb in ("list", "get", "create"):
        outage = Outage(LASTS_S, switches={"forbidden": f"{verb} jobs"})
        yield _row(f"the right to {verb} is taken for minutes", moment=Moment.RUNNING, outage=outage)
