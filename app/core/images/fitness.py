"""Whether machines can be rented with an image, and what would go wrong where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.core.images.facts import AMD64, ImageContents, ImageFacts, contents_of, shown

LEAST_PYTHON = (3, 9)
_BITS_PER_BYTE, _BITS_PER_MEGABIT = 8, 1_000_000


class Severity(StrEnum):
    """`refused`: no machine comes up with it. `warning`: some may not, or only part of it works."""

    REFUSED = "refused"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class ImageFinding:
    """`where`: the provider; empty: everywhere."""

    severity: Severity
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What images meet: how fast a machine's line is, how long a machine may take to come up, by provider, and the
    oldest CUDA that its offers promise."""

    bandwidth_mbps: int
    deadline_s: Mapping[str, float]
    promised_cuda: Mapping[str, float]


def download_s(facts: ImageFacts, bandwidth_mbps: int) -> float:
    """How long the bare bytes take; unpacking comes on top."""
    return facts.download_bytes * _BITS_PER_BYTE / (bandwidth_mbps * _BITS_PER_MEGABIT)


def judge(facts: ImageFacts, around: Circumstances) -> list[ImageFinding]:
    """What would go wrong, the worst first. Lambda is not in it: its machines are no containers."""
    contents = contents_of(facts)
    found = [*_of_platforms(facts), *_of_contents(contents), *_of_start(facts), *_of_cuda(contents, around)]
    found += _of_download(facts, around)
    return sorted(found, key=lambda one: one.severity is not Severity.REFUSED)


def _of_platforms(facts: ImageFacts) -> Iterator[ImageFinding]:
    if AMD64 not in facts.platforms:
        there = ", ".join(facts.platforms) or "no platform"
        yield ImageFinding(Severity.REFUSED, "", f"it is built for {there}; rented machines need {AMD64}")
    if facts.reference.can_change:
        text = "its name has no fixed version: the next machine may get another image; give it a tag, or its digest"
        yield ImageFinding(Severity.WARNING, "", text)


def _of_contents(contents: ImageContents) -> Iterator[ImageFinding]:
    if contents.python is None:
        text = "nothing in it speaks of Python: the agent needs 3.9 or newer, as python3 or python"
        yield ImageFinding(Severity.WARNING, "", text)
    elif contents.python and contents.python < LEAST_PYTHON:
        text = f"its Python is {shown(contents.python)}: the agent needs 3.9 or newer"
        yield ImageFinding(Severity.REFUSED, "", text)
    if not contents.has_shell:
        text = "nothing in it speaks of a shell: machines start with /bin/sh"
        yield ImageFinding(Severity.WARNING, "", text)
    if not contents.has_pip:
        text = "nothing in it speaks of pip, which Modal's own build expects; jobs do without (uv is sent along)"
        yield ImageFinding(Severity.WARNING, "modal", text)


def _of_start(facts: ImageFacts) -> Iterator[ImageFinding]:
    if facts.entrypoint:
        words = " ".join(facts.entrypoint)
        text = f"its entry point ({words}) must run its arguments; at Vast.ai ours takes its place"
        yield ImageFinding(Severity.WARNING, "modal", text)
    if not facts.runs_as_root:
        text = f"it runs as {facts.user}: the agent can give code no user of its own, so jobs of a machine share one"
        yield ImageFinding(Severity.WARNING, "", text)


def _of_cuda(contents: ImageContents, around: Circumstances) -> Iterator[ImageFinding]:
    if contents.cuda is None:
        return
    for provider, promised in sorted(around.promised_cuda.items()):
        if contents.cuda[0] > int(promised):
            text = f"its CUDA is {shown(contents.cuda)}, and hosts of CUDA {promised:g} are rented: raise that setting"
            yield ImageFinding(Severity.WARNING, provider, text)


def _of_download(facts: ImageFacts, around: Circumstances) -> Iterator[ImageFinding]:
    took_s = download_s(facts, around.bandwidth_mbps)
    for provider, deadline_s in sorted(around.deadline_s.items()):
        told = f"{took_s:.0f} s of download at {around.bandwidth_mbps} Mbit/s"
        if took_s >= deadline_s:
            text = f"{told}, and a machine is given up after {deadline_s:g} s: faster hosts, or a longer deadline"
            yield ImageFinding(Severity.REFUSED, provider, text)
        elif took_s >= deadline_s / 2:
            text = f"{told} leave little of the {deadline_s:g} s after which a machine is given up"
            yield ImageFinding(Severity.WARNING, provider, text)
