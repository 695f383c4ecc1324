"""The images that the emulated Lambda offers, in every region; machines run the same whatever their image."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_URL, uuid5

from providers.emulators.lambda_cloud.answers import invalid, missing
from providers.emulators.lambda_cloud.goods import REGIONS, region

_MADE = "2026-06-01T00:00:00+00:00"
_FAMILIES = {
    "lambda-stack-22-04": ("Lambda Stack 22.04", "22.4.5", "x86_64"),
    "lambda-stack-24-04": ("Lambda Stack 24.04", "24.4.2", "x86_64"),
    "ubuntu-24-04": ("Ubuntu 24.04", "24.4.1", "x86_64"),
    "ubuntu-24-04-arm64": ("Ubuntu 24.04 (arm64)", "24.4.1", "arm64"),
}


def images() -> list[dict[str, Any]]:
    """Each family in each region, with an id of its own there."""
    return [
        {
            "id": uuid5(NAMESPACE_URL, f"{family}/{place}").hex,
            "created_time": _MADE,
            "updated_time": _MADE,
            "name": name,
            "description": name,
            "family": family,
            "version": version,
            "architecture": architecture,
            "region": region(place),
        }
        for place in REGIONS
        for family, (name, version, architecture) in _FAMILIES.items()
    ]


def check_image(wanted: Any, place: str) -> None:
    """What a launch names: {"family"} or {"id"}, of an image of this region. Raises LambdaError."""
    if wanted is None:
        return
    if not isinstance(wanted, dict) or set(wanted) not in ({"family"}, {"id"}):
        raise invalid("image must have either an id or a family.")
    ((field, value),) = wanted.items()
    if not any(each[field] == value and each["region"]["name"] == place for each in images()):
        raise missing("image")
