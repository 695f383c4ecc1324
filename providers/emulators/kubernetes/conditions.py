"""Conditions of objects, owners, and ages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.emulators.kubernetes.store import KubeObject


def has(found: Mapping[str, Any], kind: str) -> bool:
    """Whether a condition of this type holds."""
    told = (found.get("status") or {}).get("conditions") or []
    return any(each["type"] == kind and each["status"] == "True" for each in told)


def note(found: KubeObject, kind: str, reason: str, message: str = "", *, now: str, holds: bool = True) -> None:
    """Set a condition in the object's status."""
    status = found.setdefault("status", {})
    others = [each for each in status.get("conditions") or [] if each["type"] != kind]
    told = {"type": kind, "status": "True" if holds else "False", "reason": reason, "lastTransitionTime": now}
    status["conditions"] = [*others, {**told, **({"message": message} if message else {})}]


def is_over(found: Mapping[str, Any]) -> bool:
    """Whether a job has finished, or a pod's program has."""
    phase = (found.get("status") or {}).get("phase")
    return phase in {"Succeeded", "Failed"} or has(found, "Complete") or has(found, "Failed")


def owner_uids(found: Mapping[str, Any]) -> set[str]:
    return {str(each.get("uid")) for each in found["metadata"].get("ownerReferences") or []}


def is_leaving(found: Mapping[str, Any]) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))
