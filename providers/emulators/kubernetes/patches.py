"""Patches: JSON merge, strategic merge as far as its lists are known, and JSON patch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from providers.emulators.kubernetes.answers import KubeError

MERGE, STRATEGIC, JSON = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
)
_LIST_KEYS = {"containers": "name", "env": "name", "conditions": "type", "taints": "key", "ownerReferences": "uid"}


def patched(found: Mapping[str, Any], patch: Any, how: str) -> dict[str, Any]:
    """The object with the patch; raises KubeError for one that cannot be done."""
    after = copy.deepcopy(dict(found))
    if how == JSON and isinstance(patch, list):
        for step in patch:
            _step(after, step)
    elif isinstance(patch, Mapping) and how in {MERGE, STRATEGIC}:
        _merge(after, patch, is_strategic=how == STRATEGIC)
    else:
        raise KubeError(415, f"the body of the request was in an unknown format: {how}")
    return after


def _merge(target: dict[str, Any], patch: Mapping[str, Any], *, is_strategic: bool) -> None:
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            target.pop(name, None)
        elif isinstance(value, Mapping):
            if not isinstance(target.get(name), dict):
                target[name] = {}
            _merge(target[name], value, is_strategic=is_strategic)
        elif is_strategic and isinstance(value, list) and name in _LIST_KEYS:
            target[name] = _merged_list(target.get(name) or [], value, _LIST_KEYS[name])
        else:
            target[name] = value


def _merged_list(before: Sequence[Any], patch: Sequence[Any], key: str) -> list[Any]:
    rows = {each.get(key): dict(each) for each in before}
    for each in patch:
        if each.get("$patch") == "delete":
            rows.pop(each.get(key), None)
        else:
            _merge(rows.setdefault(each.get(key), {}), each, is_strategic=True)
    return list(rows.values())


def _step(target: dict[str, Any], step: Mapping[str, Any]) -> None:
    parts = [part.replace("~1", "/").replace("~0", "~") for part in str(step.get("path", "")).split("/")[1:]]
    at: Any = target
    for part in parts[:-1]:
        at = at.setdefault(part, {}) if isinstance(at, dict) else at[int(part)]
    if step.get("op") in {"add", "replace"}:
        if isinstance(at, list):
            at.insert(len(at) if parts[-1] == "-" else int(parts[-1]), step.get("value"))
        else:
            at[parts[-1]] = step.get("value")
    elif step.get("op") == "remove" and isinstance(at, dict):
        at.pop(parts[-1], None)
    else:
        raise KubeError(422, f"the operation {step.get('op')} is not played here")
