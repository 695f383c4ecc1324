"""The rows of the fault matrix: what goes wrong, at which company, in which call, and whether we die of it as well."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.fault_gang_rows import gang_rows
from benchmarks.fault_own_rows import ALWAYS, LASTS_S, joined_rows, kubernetes_rows, slurm_rows
from benchmarks.fault_row import Json, Moment, Outage, Row

COMPANIES = ("modal", "vast", "lambda", "runpod", "kubernetes")  # played by emulators
PLACES = (*COMPANIES, "joined", "slurm")

# The four operations of a provider, as each company's emulator names them.
_OPS: Mapping[str, Mapping[str, str]] = {
    "modal": {"create": "create", "get": "get", "list": "list", "terminate": "terminate"},
    "vast": {"create": "create", "get": "show", "list": "list", "terminate": "destroy"},
    "lambda": {"create": "launch", "get": "get", "list": "list", "terminate": "terminate"},
    "runpod": {"create": "create", "get": "get", "list": "list", "terminate": "delete"},
    "kubernetes": {"create": "create_jobs", "get": "get_jobs", "list": "list_jobs", "terminate": "delete_jobs"},
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
_NOT_COMPUTING: Mapping[str, str] = {"computes": "a GPU computes wrongly", "crashes": "a GPU ends what computes on it"}


def matrix(places: Iterable[str] = PLACES) -> list[Row]:
    """Every row, those without a crash first: each generic fault in each operation, then the company's own."""
    calm = [row for place in places for row in _of_place(place)]
    return calm + [replace(row, crash=True) for row in calm if not _restarts(row)]


def _of_place(place: str) -> list[Row]:
    if place not in COMPANIES:
        return [*(joined_rows() if place == "joined" else slurm_rows()), *gang_rows(place)]
    return [*_generic(place), *_own(place), *outages(place)]


def _restarts(row: Row) -> bool:
    """Its server is started anew as it is, which is as good as a crash."""
    return bool(row.settings or (row.outage and row.outage.settings))


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
        "runpod": {"kind": "error", "args": {"status": 429, "retry_after_s": _WAIT_MS / 1000}},
        "kubernetes": {"kind": "error", "args": {"status": 429, "retry_after_s": _WAIT_MS / 1000}},
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
    own = {"modal": _modal, "vast": _vast, "lambda": _lambda, "runpod": _runpod, "kubernetes": _kubernetes}
    return [*own[company](), *_wrong_clocks(company), _beside(company), *gang_rows(company)]


def _wrong_clocks(company: str) -> Iterator[Row]:
    """What the machine tells of times is of a clock that was never set, or of one in another zone."""
    yield Row(company, "own", "a clock that is an hour ahead", switches={"clock_ahead_s": 3_600})
    yield Row(company, "own", "a clock that is years behind", switches={"clock_behind_s": 10 * 31_536_000})


def _beside(company: str) -> Row:
    """Nothing goes wrong but the answer to our own create: the listing then shows two machines, one of them ours."""
    lost = {"op": _OPS[company]["create"], "kind": "drop", "when": "after"}
    return Row(company, "own", "another installation on the account", (lost,), neighbour=True)


def _other_gpus(company: str, wrongs: Mapping[str, str]) -> Iterator[Row]:
    """The machine comes up, and its GPUs are not those that were rented, or do not work; or they fail later."""
    op = _OPS[company]["create"]
    for wrong, name in wrongs.items():
        fault = {"op": op, "kind": "bad_gpus", "args": {"wrong": wrong}}
        yield Row(company, "own", f"another machine than was rented: {name}", (fault,))
    yield Row(company, "own", "a GPU falls off the bus", action=("gpus", {"wrong": "lost"}), moment=Moment.RUNNING)


def _late(company: str) -> Iterator[Row]:
    """A create whose effect comes when we have given up on the call: while we wait for it to appear, or after that."""
    op = _OPS[company]["create"]
    for name, ms in (("takes effect while we look for it", 4_000), ("takes effect after the grace", 9_000)):
        yield Row(company, "own", name, ({"op": op, "kind": "slow", "when": "before", "ms": ms},), late_ms=ms)


_WITHOUT: Mapping[str, Mapping[str, str]] = {
    "modal": {"ALLPASS_MODAL_TOKEN_ID": "", "ALLPASS_MODAL_TOKEN_SECRET": ""},
    "vast": {"ALLPASS_VAST_API_KEY": ""},
    "lambda": {"ALLPASS_LAMBDA_API_KEY": ""},
    "runpod": {"ALLPASS_RUNPOD_API_KEY": ""},
    "kubernetes": {"ALLPASS_KUBERNETES_SHAPES": "[]"},
}
_REFUSED_KEY: Mapping[str, Json] = {
    "modal": {"status": "UNAUTHENTICATED"},
    "vast": {"status": 401, "code": "auth_error"},
    "lambda": {"code": "global/invalid-api-key"},
    "runpod": {"status": 401},
    "kubernetes": {"status": 401},
}
_HIDDEN: Json = {"op": "list", "kind": "partial_list", "args": {"hide": 1_000}}
_EMPTY_LISTS: Mapping[str, tuple[Json, ...]] = {
    "modal": ({"op": "list", "kind": "empty_list"},),
    "vast": ({"op": "list", "kind": "empty_list"},),
    "lambda": (_HIDDEN,),
    "runpod": (_HIDDEN,),
    "kubernetes": ({**_HIDDEN, "op": "list_jobs"}, {**_HIDDEN, "op": "list_pods"}),
}
_NO_CREDIT: Mapping[str, Json] = {"vast": {"credit_micros": 1}, "lambda": {"account_inactive": True}}


def outages(company: str) -> Iterator[Row]:
    """What goes on for minutes: nobody may lose a job by it that still runs, nor a machine that is still there."""

    def row(name: str, *faults: Json, moment: Moment = Moment.RUNNING, outage: Outage, **fields: Any) -> Row:
        return Row(company, "own", name, faults, moment=moment, outage=outage, **fields)

    lost = {"op": _OPS[company]["create"], "kind": "drop", "when": "after"}
    down: Json = {"op": "any", "kind": "drop", "count": ALWAYS}
    refused: Json = {"op": "any", "kind": "error", "count": ALWAYS, "args": _REFUSED_KEY[company]}
    unlisted = tuple({**one, "count": ALWAYS} for one in _EMPTY_LISTS[company])
    yield row("down for minutes", outage=Outage(LASTS_S, (down,)))
    yield row("down after a lost create", lost, moment=Moment.SUBMIT, outage=Outage(LASTS_S, (down,)))
    yield row("down with all the others", outage=Outage(LASTS_S, (down,), everywhere=True))
    yield row("the key is refused for minutes", outage=Outage(LASTS_S, (refused,)))
    # Nobody takes an order and refuses the key of it: the answer is lost, and the key refused from then on.
    yield row("the key is refused after a lost create", lost, moment=Moment.SUBMIT, outage=Outage(LASTS_S, (refused,)))
    yield row("the listing is empty for minutes", outage=Outage(LASTS_S, unlisted))
    yield row("taken out of the settings for minutes", outage=Outage(LASTS_S, settings=_WITHOUT[company]))
    yield row("the object store is down for minutes", outage=Outage(LASTS_S, paused="objects"))
    if company in _NO_CREDIT:
        gone = company == "vast"  # Lambda's machines go on: only calls are refused
        outage = Outage(LASTS_S, switches=_NO_CREDIT[company], takes_the_machine=gone)
        yield row("without credit for minutes", outage=outage)


def _modal() -> list[Row]:
    def row(name: str, *faults: Json, **fields: Any) -> Row:
        return Row("modal", "own", name, faults, **fields)

    lost_once = {"op": "create", "kind": "drop", "when": "after"}
    cut_off = {"op": "image", "kind": "build_failure", "ms": 1_000, "args": {"status": "TERMINATED"}}
    failed = ("finish", {"status": "INTERNAL_FAILURE", "exitcode": 0, "exception": "host failure"})
    return [
        row("never scheduled", {"op": "create", "kind": "never_scheduled"}),
        row("scheduled, and never starts", {"op": "create", "kind": "never_starts"}),
        row("fails while it starts, exit code 0", {"op": "create", "kind": "init_failure"}),
        row("dead on arrival", {"op": "create", "kind": "dead_on_arrival"}),
        _silenced(row("a terminate that does nothing", {"op": "terminate", "kind": "ignored"})),
        row("its name is taken", lost_once, switches={"dedupe": False, "strike_each_attempt": True}),
        row("INTERNAL_FAILURE, exit code 0", action=failed, moment=Moment.RUNNING),
        row("an image is built for a while", {"op": "image", "kind": "build_slow", "ms": 6_000}, new_image=True),
        row("the build of an image is cut off", cut_off, new_image=True),
        row("preempted", action=("preempt", {"notice_ms": 500}), moment=Moment.RUNNING),
        row(
            "preempted without a trace",
            action=("preempt", {"notice_ms": 0}),
            moment=Moment.RUNNING,
            switches={"preempted_as": "SILENCE"},
            traceless=True,
        ),
        *_other_gpus("modal", _WRONG_GPUS),
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
        *_other_gpus("vast", {**_WRONG_GPUS, **_NOT_COMPUTING}),
        row("the host goes offline", action=("offline", {}), moment=Moment.RUNNING),
        row("the lease ends", action=("expire", {}), moment=Moment.RUNNING),
        row(
            "outbid, and resumed when the job is elsewhere",
            action=("outbid", {}),
            moment=Moment.RUNNING,
            settings={"ALLPASS_VAST_BIDS": "true"},
            spot=True,
            outage=Outage(LASTS_S, then=("win", {}), takes_the_machine=True),
        ),
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
        *_other_gpus("lambda", {**_WRONG_GPUS, **_NOT_COMPUTING}),
        *_late("lambda"),
    ]


def _runpod() -> list[Row]:
    def row(name: str, *faults: Json, **fields: Any) -> Row:
        return Row("runpod", "own", name, faults, **fields)

    return [
        row("no instances available, whatever the catalog says", {"op": "create", "kind": "no_capacity"}),
        row("not enough disk space", {"op": "create", "kind": "no_capacity", "args": {"words": "disk"}}),
        row("a pod that never exists", {"op": "create", "kind": "ghost"}),
        row("the price moves", {"op": "create", "kind": "price_moves"}),
        row("provisioning for ever", {"op": "create", "kind": "never_ready"}),
        row("comes up as ERROR", {"op": "create", "kind": "fails"}),
        row("another card than was rented", {"op": "create", "kind": "bad_gpus", "args": {"wrong": "kind"}}),
        row("missing from the listing", {"op": "list", "kind": "partial_list", "count": 2}, moment=Moment.RENTED),
        row("its host is taken down", action=("exit", {}), moment=Moment.RUNNING),
        row("a GPU falls off the bus", action=("gpus", {"wrong": "lost"}), moment=Moment.RUNNING),
        *_late("runpod"),
    ]


def _kubernetes() -> list[Row]:
    missing = tuple({**each, "count": 2} for each in _EMPTY_LISTS["kubernetes"])
    return [
        *kubernetes_rows(),
        Row("kubernetes", "own", "missing from the lists", missing, moment=Moment.RENTED),
        *_other_gpus("kubernetes", _WRONG_GPUS),
        *_late("kubernetes"),
    ]
