"""Label and field selectors, as list, watch and delete take them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from providers.emulators.kubernetes.answers import KubeError

Matches = Callable[[Mapping[str, Any]], bool]
Labels = Mapping[str, str]

_SET = re.compile(r"^\s*(\S+)\s+(in|notin)\s*\(([^()]*)\)\s*$")
_PARTS = re.compile(r",(?![^(]*\))")
_EQUAL = re.compile(r"^\s*([^\s=!]+)\s*(==|=|!=)\s*([^\s=!]*)\s*$")
_BARE = re.compile(r"^\s*(!?)\s*([^\s=!()]+)\s*$")


def selected(label_selector: str, field_selector: str) -> Matches:
    """Whether an object is chosen by both. Raises KubeError for a text that is no selector."""
    tests = [_label_test(part) for part in _PARTS.split(label_selector) if part.strip()]
    fields = [_field_test(part) for part in field_selector.split(",") if part.strip()]

    def matches(found: Mapping[str, Any]) -> bool:
        labels = found["metadata"].get("labels") or {}
        return all(test(labels) for test in tests) and all(test(found) for test in fields)

    return matches


def _label_test(part: str) -> Callable[[Labels], bool]:
    chosen = _SET.match(part)
    if chosen:
        key, values = chosen[1], {value.strip() for value in chosen[3].split(",")}
        if chosen[2] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    equal = _EQUAL.match(part)
    if equal:
        key, value = equal[1], equal[3]
        if equal[2] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    bare = _BARE.match(part)
    if bare is None:
        raise KubeError(400, f"unable to parse requirement: {part!r}")
    key, wanted = bare[2], not bare[1]
    return lambda labels: (key in labels) is wanted


def _field_test(part: str) -> Matches:
    equal = _EQUAL.match(part)
    if equal is None:
        raise KubeError(400, f"invalid field selector: {part!r}")
    path, differs, value = equal[1].split("."), equal[2] == "!=", equal[3]

    def matches(found: Mapping[str, Any]) -> bool:
        at: Any = found
        for name in path:
            at = at.get(name) if isinstance(at, Mapping) else None
        return (str(at or "") == value) is not differs

    return matches
