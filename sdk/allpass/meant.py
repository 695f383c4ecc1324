"""What people mean by what a template refuses: values with units, one text for a list, fields in another place."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timezone
from typing import Any

from allpass.wire.deadlines import parse_deadline

_GPU = re.compile(r"(?:(?P<many>\d+)\s*[x:]\s*)?(?P<type>[A-Za-z][^:,]*?)(?:\s*[x:]\s*(?P<count>\d+))?")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[MGT])i?B?", re.IGNORECASE)
_GB = {"m": 1e-3, "g": 1.0, "t": 1e3}
_LISTS = frozenset({"secrets", "outputs"})
_OBJECTS = frozenset({"env", "labels", "affinity", "anti_affinity"})
_SPOT = frozenset({"low", "besteffort", "best-effort", "preemptible", "interruptible", "scavenger", "true"})
_NAMED = frozenset({"model", "dataset"})
_PLACES: Mapping[str, tuple[str, ...]] = {
    "budget": ("caps", "max_cost_usd"),
    "timeout": ("caps", "max_duration_s"),
    **dict.fromkeys(("num_nodes", "nnodes", "n_nodes", "machines"), ("nodes",)),
    "num_gpus": ("gpu", "count"),
    "n_gpus": ("gpu", "count"),
    "cmd": ("command",),
    "script": ("command",),
    "entrypoint": ("command",),
    "docker_image": ("image",),
    "container": ("image",),
    "environment": ("env",),
    "variables": ("env",),
    "tags": ("labels",),
    **dict.fromkeys(("spot", "use_spot", "preemptible", "interruptible", "qos"), ("priority_class",)),
}
_OF_THE_JOB: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("parameters", "params", "args", "arguments"), ("parameters are", "--param lr=0.1")),
    **dict.fromkeys(("pip", "packages", "requirements", "dependencies"), ("packages are", "--pip transformers")),
}
_IN_A_REQUEST = "   (in a request: soft_deadline beside template)"
_DEADLINES = frozenset({"deadline", "soft_deadline", "due", "due_at"})


def values(field: str, given: Any) -> Iterator[Any]:
    """What the field may have been meant to be, as far as it can be told."""
    if isinstance(given, str):
        yield from _from_text(field, given.strip())
    if field == "priority_class" and given is True:
        yield "spot"
    if field == "gpu" and isinstance(given, int) and not isinstance(given, bool):
        yield {"count": given}
    if field in _OBJECTS and isinstance(given, list):
        pairs = [one.partition("=") for one in given if isinstance(one, str) and "=" in one]
        if pairs and len(pairs) == len(given):
            yield {name: value for name, _, value in pairs}
    if isinstance(given, (int, float, date)) and not isinstance(given, bool):
        yield str(given)


def _from_text(field: str, text: str) -> Iterator[Any]:
    if field.endswith("_s") and text[-1:].isalpha():
        now = datetime.now(timezone.utc)
        try:
            yield round((parse_deadline(text, now=now) - now).total_seconds())
        except ValueError:
            return
    number = text.strip("$€ ").replace(",", "").removesuffix("USD").strip()
    if field.endswith("_usd") and re.fullmatch(r"\d+(\.\d+)?", number):
        yield float(number)
    size = _SIZE.fullmatch(text)
    if field.endswith("_gb") and size is not None:
        yield float(size["number"]) * _GB[size["unit"].lower()]
    gpu = _GPU.fullmatch(text)
    if field == "gpu" and gpu is not None:
        yield {"type": gpu["type"], "count": int(gpu["count"] or gpu["many"] or 1)}
    if field == "command":
        yield _words(text)
    if field in _LISTS and text:
        yield [text.replace("\\", "/")]
    if re.fullmatch(r"\d{1,15}", text):
        yield int(text)
    if field == "priority_class" and text.casefold() in _SPOT:
        yield "spot"
    if field in _NAMED and text:
        yield {"name": text}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def of_the_job(name: str, given: Any) -> tuple[str, str] | None:
    """What is wrong, and the mend, for what belongs to the job and not to its template."""
    if name in _DEADLINES:
        return _deadline(given)
    told = _OF_THE_JOB.get(name)
    if told is None:
        return None
    return f"{told[0]} no part of a template: they are given with the job", told[1]


def _deadline(given: Any) -> tuple[str, str]:
    told = "a deadline is no part of a template: it is given with the job"
    try:
        parse_deadline(str(given), now=datetime.now(timezone.utc))
    except ValueError as error:
        return f"{error}; and {told}", f"--deadline 6h{_IN_A_REQUEST}"
    return told, f"--deadline {given}{_IN_A_REQUEST}"


def place(name: str, where: tuple[Any, ...], models: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """Where the field is that was written at `where`. `models`: the names in each object of a template; its own under
    the empty name."""
    if name in _PLACES and not where:
        return _PLACES[name]
    if where and name in models[""]:
        return (name,)
    for model, names in models.items():
        if not model or where == (model,):
            continue
        own = name.removeprefix(f"{model}_")
        found = next((one for one in names if one in (name, own, f"{name}_s", f"{name}_usd", f"{name}_gb")), None)
        if found is not None and found not in models[""]:
            return model, found
    return None


def written(path: tuple[str, ...], value: Any) -> str:
    """`"caps": {"max_wait_s": 7200}`."""
    inner = "..." if value is ... else json.dumps(value)
    for name in reversed(path[1:]):
        inner = f'{{"{name}": {inner}}}'
    return f'"{path[0]}": {inner}'
