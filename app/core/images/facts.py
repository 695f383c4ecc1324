"""What a registry tells of an image without its layers being fetched, and what can be read out of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.images.reference import ImageReference

AMD64, ARM64 = "linux/amd64", "linux/arm64"
Version = tuple[int, ...]

_PYTHON_SET = re.compile(r"PYTHON_VERSION[= ]v?(\d+(?:\.\d+)+)")
_PYTHON_NAMED = re.compile(r"\bpython(3\.\d+)\b")
_PYTHON_BROUGHT = re.compile(r"\bpython3?\b|\b(?:mini|ana)?conda\d?\b|\bminiforge3?\b|\buv (?:venv|python|sync)\b")
_PIP_BROUGHT = re.compile(r"\bpip3? (?:install|download)\b|\bpython3?-pip\b|\bget-pip\b|conda|miniforge")
_CUDA_NAMED = re.compile(r"cuda-?(\d+\.\d+)|(?<![a-z])cu(1[1-9])(\d)(?!\d)")
_CUDA_REQUIRED = re.compile(r"cuda>=(\d+\.\d+)")
_SHELL_USED = re.compile(r"/bin/(?:ba|da)?sh\b")


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Of the image for `platform`; `platforms` are all there are. `steps`: the commands that it was made with."""

    reference: ImageReference
    digest: str
    platform: str
    platforms: tuple[str, ...]
    download_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    steps: tuple[str, ...] = ()

    @property
    def runs_as_root(self) -> bool:
        return self.user.partition(":")[0] in {"", "0", "root"}


@dataclass(frozen=True, slots=True)
class ImageContents:
    """What can be expected in an image. A version is empty where the thing is there, and not which; None: nothing
    speaks for it, which proves nothing, for files are not looked at."""

    python: Version | None
    has_pip: bool
    cuda: Version | None
    torch: str | None
    has_shell: bool


def contents_of(facts: ImageFacts) -> ImageContents:
    """By its variables, by the commands that it was made with, and by its tag."""
    steps = "\n".join(facts.steps)
    torch = facts.environment.get("PYTORCH_VERSION")
    python = _python(facts, steps)
    if python is None and torch is not None:
        python = ()
    return ImageContents(
        python=python,
        has_pip="PYTHON_PIP_VERSION" in facts.environment or torch is not None or bool(_PIP_BROUGHT.search(steps)),
        cuda=_cuda(facts, steps),
        torch=torch,
        has_shell=bool(_SHELL_USED.search("\n".join((steps, *facts.entrypoint, *facts.command)))),
    )


def _python(facts: ImageFacts, steps: str) -> Version | None:
    told = facts.environment.get("PYTHON_VERSION", "")
    if re.fullmatch(r"\d+(\.\d+)+", told):
        return version_of(told)
    for pattern in (_PYTHON_SET, _PYTHON_NAMED):
        found = pattern.findall(steps)
        if found:
            return version_of(found[-1])
    brought = _PYTHON_BROUGHT.search(steps) or "conda" in facts.environment.get("PATH", "")
    return () if brought else None


def _cuda(facts: ImageFacts, steps: str) -> Version | None:
    told = re.match(r"\d+\.\d+", facts.environment.get("CUDA_VERSION", ""))
    if told:
        return version_of(told[0])
    required = _CUDA_REQUIRED.search(facts.environment.get("NVIDIA_REQUIRE_CUDA", ""))
    if required:
        return version_of(required[1])
    for text in (facts.reference.tag or "", steps):
        named = _CUDA_NAMED.search(text)
        if named:
            return version_of(named[1] or f"{named[2]}.{named[3]}")
    return None


def version_of(text: str) -> Version:
    """`3.12.3` as numbers."""
    return tuple(int(part) for part in text.split("."))


def shown(version: Version) -> str:
    return ".".join(map(str, version))
