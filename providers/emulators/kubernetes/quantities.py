"""Quantities as Kubernetes writes them, and what pods ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from providers.emulators.kubernetes.answers import KubeError

_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")
_FACTORS = {
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
}


def quantity(text: Any) -> Fraction:
    """Raises KubeError for what is none."""
    found = _QUANTITY.match(str(text))
    if found is None:
        raise KubeError(400, f"quantities must match the regular expression: {text!r}")
    return Fraction(found[1]) * _FACTORS.get(found[2] or "", Fraction(1))


def asked_of(pod_spec: Mapping[str, Any], what: str = "requests") -> dict[str, Fraction]:
    """The sum over the pod's containers of what they request (a limit stands for a request that is not told)."""
    total: dict[str, Fraction] = {}
    for container in pod_spec.get("containers", []):
        told = container.get("resources") or {}
        limits, requests = told.get("limits") or {}, told.get("requests") or {}
        for name, value in ({**limits, **requests} if what == "requests" else limits).items():
            total[name] = total.get(name, Fraction(0)) + quantity(value)
    return total


def added(each: Iterable[Mapping[str, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for one in each:
        for name, value in one.items():
            total[name] = total.get(name, Fraction(0)) + value
    return total


def shown(value: Fraction) -> str:
    return str(int(value)) if value.denominator == 1 else f"{int(value * 1000)}m"
