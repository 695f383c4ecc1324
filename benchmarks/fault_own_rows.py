"""The fault matrix's rows of a team's own machines: what only a cluster does, and only a host that has joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.fault_row import Json, Moment, Outage, Row

ALWAYS = 1_000_000  # calls: as long as the outage lasts
LASTS_S = 20.0  # longer than any grace here, as minutes are longer than those of production
_QUOTA = "exceeded quota: gpus, requested: count/jobs.batch=1, used: count/jobs.batch=8, limited: count/jobs.batch=8"
_NOTHING: Json = {}
_BROKEN_CALLS: dict[str, Json] = {
    "reply lost after the effect": {"kind": "drop", "when": "after"},
    "error after the effect": {"kind": "error", "when": "after", "args": {"status": 500}},
    "dropped before the effect": {"kind": "drop", "when": "before"},
    "error before the effect": {"kind": "error", "when": "before", "args": {"status": 503}},
    "hang": {"kind": "hang", "when": "before", "count": 1},
    "slow": {"kind": "slow", "when": "after", "ms": 3_000},
}
_COMMANDS: dict[str, dict[str, str]] = {
    "sbatch": {
        "accepts, and its answer is lost": "lost after",
        "accepts, and says an error": "error after",
        "accepts, and never answers": "hangs after",
        "is killed before it does anything": "lost before",
        "says an error": "error before",
        "finds all nodes busy": "busy",
        "makes a job that is held": "held",
        "makes a job that waits for long": "late",
    },
    "squeue": {
        "is killed": "lost before",
        "says an error": "error before",
        "never answers": "hangs",
        "shows nothing": "says nothing",
    },
    "scancel": {"works, and is killed": "lost after", "says an error": "error before", "never answers": "hangs"},
}
_REFUSALS: dict[str, Json] = {
    "a proxy refuses its host": {"kind": "error", "args": {"status": 403}},
    "a proxy asks its host for a login": {"kind": "error", "args": {"status": 401}},
}


def kubernetes_rows() -> Iterator[Row]:
    """What others do to pods, to nodes and to the API server, and what stands before a create."""
    yield from _creating()
    yield from _leaving()
    yield from _api_server()


def joined_rows() -> Iterator[Row]:
    """What becomes of a host, of its program, of its way to the service, and of what runs on it."""
    yield from _on_the_way()
    yield from _of_the_host()
    stops = Outage(LASTS_S, settings={"ALLPASS_JOINED_ENABLED": "false"})
    yield _host_row("taken out of the settings for minutes", moment=Moment.RUNNING, outage=stops)


def _host_row(name: str, *faults: Json, **fields: Any) -> Row:
    return Row("joined", "own", name, faults, **fields)


def _on_the_way() -> Iterator[Row]:
    for name, fault in _BROKEN_CALLS.items():
        yield _host_row(f"calls of its host: {name}", {"op": "sync", "count": 4, **fault})
    for name, fault in {"no way to the service": {"kind": "drop"}, **_REFUSALS}.items():
        cut = Outage(LASTS_S, ({"op": "any", "count": ALWAYS, **fault},))
        yield _host_row(f"{name}, for minutes", moment=Moment.RUNNING, outage=cut)


def _of_the_host() -> Iterator[Row]:
    for name, switch in {"the disks of all hosts are full": "is_full", "all hosts stand still": "away"}.items():
        begins = Outage(LASTS_S, takes_the_machine=True)
        yield _host_row(f"{name} as its machine begins", switches={switch: True}, outage=begins, moment=Moment.SUBMIT)
    away = {"stands still": "stand_still", "is killed, and comes back": "kill_program"}
    for name, does in away.items():
        action = (does, _NOTHING)
        yield _host_row(f"its host's program {name}", action=action, moment=Moment.RUNNING, outage=Outage(LASTS_S))
        over = Outage(LASTS_S, takes_the_machine=True)  # of a short job, whose end comes while nobody can obey
        late = f"its host's program {name} when the job is over"
        yield _host_row(late, action=action, moment=Moment.RUNNING, outage=over)
    full = Outage(LASTS_S, switches={"is_full": True})
    yield _host_row("the disks of all hosts are full", moment=Moment.RUNNING, outage=full)
    gone = Outage(LASTS_S, takes_the_machine=True)
    yield _host_row("its host is unplugged", action=("unplug", _NOTHING), moment=Moment.RUNNING, outage=gone)
    yield _host_row("its host's program is updated", action=("restart_program", _NOTHING), moment=Moment.RUNNING)
    yield _host_row("its machine's processes are killed", action=("kill", _NOTHING), moment=Moment.RUNNING)


def slurm_rows() -> Iterator[Row]:
    """What becomes of commands, of the controller, and of jobs that others need the place of."""
    for op, kinds in _COMMANDS.items():
        moment = Moment.RENTED if op == "squeue" else Moment.SUBMIT
        for name, kind in kinds.items():
            yield _slurm_row(f"{op} {name}", {"op": op, "kind": kind}, moment=moment)
    yield _slurm_row("its job's processes are killed", action=("kill", _NOTHING), moment=Moment.RUNNING)
    others = Outage(LASTS_S, takes_the_machine=True)  # so long the more urgent job has all nodes
    yield _slurm_row("its job is preempted", action=("preempt", _NOTHING), moment=Moment.RUNNING, outage=others)
    away = Outage(LASTS_S, switches={"away": True})
    yield _slurm_row("slurmctld is down for minutes", moment=Moment.RUNNING, outage=away)
    stops = Outage(LASTS_S, settings={"ALLPASS_SLURM_SHAPES": "[]"})
    yield _slurm_row("taken out of the settings for minutes", moment=Moment.RUNNING, outage=stops)


def _slurm_row(name: str, *faults: Json, **fields: Any) -> Row:
    return Row("slurm", "own", name, faults, **fields)


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
