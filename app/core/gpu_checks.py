"""What came of a machine's first calculation, which its agent makes before user code may run.

A failure gives the machine back and bars its host, so it has to be the machine's: where one image has failed on
several machines and succeeded on none, it is the image that does not compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

IMAGES_FAULT = 3
"""So many machines in a row failing with one image, and none computing, speak against the image."""

_LONGEST = 300


class Checked(StrEnum):
    """How it went."""

    RIGHT = "right"
    FAILED = "failed"  # a wrong result, none in time, an end of the process, or what torch says of a broken card
    UNCHECKED = "unchecked"  # nothing was learnt: no torch, or one that is made for other cards or drivers


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """`why`: in words, where it was not right."""

    result: Checked
    why: str = ""


def gpu_check_of(host: Mapping[str, Any]) -> GpuCheck | None:
    """What the agent's facts say; None where they do not, or in words that are not known here."""
    told = host.get("gpu_check")
    state = told.get("state") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(state, str) or state not in set(Checked):
        return None
    why = told.get("message")
    words = why[:_LONGEST] if isinstance(why, str) else ""
    return GpuCheck(Checked(state), "".join(letter if letter.isprintable() else " " for letter in words))


def is_the_images(others: Iterable[Checked]) -> bool:
    """Whether one more failure is the image's. `others`: of other machines with this image, the newest first."""
    known = [result for result in others if result is not Checked.UNCHECKED]
    return len(known) >= IMAGES_FAULT - 1 and Checked.RIGHT not in known
