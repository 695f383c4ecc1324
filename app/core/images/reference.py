"""The name of an image, taken apart: `registry/repository:tag@digest`, of which only the repository has to be there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.errors import InvalidInput

DOCKER_HUB = "docker.io"
_HUB_NAMES = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})
_LONGEST = 1024
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:]+\])(?::\d{1,5})?", re.IGNORECASE)
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """`digest` names one content for ever; a `tag` can be moved to another."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    @property
    def version(self) -> str:
        """What a registry is asked for."""
        return self.digest or self.tag or "latest"

    @property
    def can_change(self) -> bool:
        """Whether the same name may mean something else tomorrow without anybody having broken a promise."""
        return self.digest is None and self.tag in {None, "latest"}


def parse_image(text: str) -> ImageReference:
    """As Docker reads it: a first part without a dot or a port is no registry, and Docker Hub's own images have none.

    Raises InvalidInput naming what is wrong with it.
    """
    if len(text) > _LONGEST:
        raise _wrong(text[:80] + "...", f"it has {len(text)} characters, at most {_LONGEST} are possible")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _wrong(text, "what follows @ must be sha256: and 64 hexadecimal digits")
    head, slash, tail = rest.partition("/")
    named = bool(slash) and ("." in head or ":" in head or head == "localhost")
    registry, path = (head, tail) if named else (DOCKER_HUB, rest)
    repository, colon, tag = path.partition(":")
    if not _HOST.fullmatch(registry):
        raise _wrong(text, f"{registry!r} is no host of a registry")
    if colon and not _TAG.fullmatch(tag):
        raise _wrong(text, f"{tag!r} is no tag: letters, digits, '_', '.' and '-'")
    if not all(map(_PART.fullmatch, repository.split("/"))):
        raise _wrong(text, f"{repository!r} is no repository: small letters and digits, with '.', '_' or '-' between")
    if registry.lower() in _HUB_NAMES:
        registry = DOCKER_HUB
        repository = repository if "/" in repository else f"library/{repository}"
    return ImageReference(registry.lower(), repository, tag or None, digest or None)


def _wrong(text: str, why: str) -> InvalidInput:
    return InvalidInput(f"{text!r} is no image: {why}; an image looks like ghcr.io/team/node:1", param="image")
