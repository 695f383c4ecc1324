"""Which node a pod gets: selectors, taints, and what is left there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from providers.emulators.kubernetes.quantities import added, asked_of, quantity
from providers.emulators.kubernetes.store import KubeObject

_BARS = frozenset({"NoSchedule", "NoExecute"})


def fitting_node(pod: KubeObject, nodes: Sequence[KubeObject], placed: Sequence[KubeObject]) -> tuple[str, str]:
    """The name of a node, or an empty one and the scheduler's words for why there is none."""
    why: Counter[str] = Counter()
    for node in nodes:
        reason = _bar(pod["spec"], node, placed)
        if reason is None:
            return node["metadata"]["name"], ""
        why[reason] += 1
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
    return "", f"0/{len(nodes)} nodes are available: {reasons}."


def _bar(spec: Mapping[str, Any], node: KubeObject, placed: Sequence[KubeObject]) -> str | None:
    name, about = node["metadata"]["name"], node.get("spec") or {}
    if about.get("unschedulable"):
        return "node(s) were unschedulable"
    if not _is_ready(node):
        return "node(s) had untolerated taint {node.kubernetes.io/unreachable: }"
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in about.get("taints") or []:
        if taint.get("effect") in _BARS and not any(_tolerates(each, taint) for each in spec.get("tolerations") or []):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    there = [asked_of(pod["spec"]) for pod in placed if pod["spec"].get("nodeName") == name]
    used, has = added(there), node["status"]["allocatable"]
    for resource, value in sorted(asked_of(spec).items()):
        if used.get(resource, Fraction(0)) + value > quantity(has.get(resource, 0)):
            return f"Insufficient {resource}"
    return None


def _is_ready(node: KubeObject) -> bool:
    return all(each["status"] == "True" for each in node["status"]["conditions"] if each["type"] == "Ready")


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return not toleration.get("key") or toleration["key"] == taint.get("key")
    return (toleration.get("key"), toleration.get("value", "")) == (taint.get("key"), taint.get("value", ""))
