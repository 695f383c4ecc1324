"""Rules of image builds: how long one takes, when one that failed is tried again, and what its owner can do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

# What Modal needs for CUDA and torch, as users tell; replaced by what builds have taken here.
USUAL_BUILD_MS = 120_000
_CUT_OFF_FIRST_MS, _CUT_OFF_LONGEST_MS, _CUT_OFF_TRIES = 30_000, 30 * 60_000, 10
# The registry may only lag behind a push: the same build is worth trying again, but not for ever.
_REFUSED_MS = (5 * 60_000, 30 * 60_000)
_LAST_LINES, _MOST_CHARS, _LONGEST_LINE_CHARS = 12, 1_500, 200

_FIXES = (
    (
        r"unauthorized|authentication required|access.{0,20}denied|denied: |forbidden|\b40[13]\b",
        "its registry wants a login, or has no such image for others: use an image that anybody can pull",
    ),
    (
        r"manifest.{0,20}unknown|name.{0,20}unknown|not found: manifest|no such image|no such tag|repository.{0,60}not"
        r".{0,10}(found|exist)|\b404\b|invalid reference",
        "there is no such image: compare its name and tag with the registry",
    ),
    (
        r"(python3?|pip3?)['\"]?:? .{0,40}not found|no module named pip|no such file or directory.{0,40}python",
        "the image has no python or no pip: take one that has both",
    ),
)


def expected_ms(past_ms: Iterable[int]) -> int:
    """How long a build takes, by those that were done."""
    known = sorted(past_ms)
    return round(median(known)) if known else USUAL_BUILD_MS


def next_try_ms(failures: int, now_ms: int, *, cut_off: bool) -> int | None:
    """When a build is tried again after so many failures in a row; None: only when somebody asks for it.

    `cut_off`: the builder itself was in the way, so the next try may well succeed.
    """
    if cut_off:
        if failures > _CUT_OFF_TRIES:
            return None
        return now_ms + min(_CUT_OFF_LONGEST_MS, _CUT_OFF_FIRST_MS << (failures - 1))
    return now_ms + _REFUSED_MS[failures - 1] if failures <= len(_REFUSED_MS) else None


def fix_for(words: str) -> str:
    """What the owner of the image can do, by what the builder says."""
    found = (fix for pattern, fix in _FIXES if re.search(pattern, words, re.IGNORECASE))
    return next(found, "correct the image, or take another one")


def told_why(said: str, log: str) -> str:
    """Why an image cannot be built, in one sentence: what its provider says, the last line of the log, and the fix."""
    last = log.splitlines()[-1].strip()[:_LONGEST_LINE_CHARS] if log.strip() else ""
    shown = f"{said}: {last}" if last and last not in said else said
    return f"{shown}; {fix_for(f'{said} {log}')}"


def last_lines(text: str) -> str:
    """What is worth keeping of a builder's log."""
    lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return "\n".join(lines[-_LAST_LINES:])[-_MOST_CHARS:]
