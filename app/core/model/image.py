"""A container image at a provider that builds a copy of its own before any machine there can run it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ImageState(StrEnum):
    WANTED = "wanted"  # nobody has begun to build it yet, or it is to be built again
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ImageView:
    """Of one provider and image, as a decision sees it. `image` is empty for the usual one; `name` is its real name.

    `since_ms`: when this state began. `ready_ms`: when a build is expected to be done. `why`: of one that failed.
    `again_ms`: when that is tried again; None: only when somebody asks for it.
    """

    provider: str
    image: str
    name: str = ""
    state: ImageState = ImageState.WANTED
    since_ms: int = 0
    ready_ms: int | None = None
    why: str = ""
    again_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WantedImage:
    """A job waits for this image at this provider, and nobody builds it yet. Empty: the usual one."""

    provider: str
    image: str
