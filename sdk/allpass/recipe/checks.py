"""Refusals of values: each names the field, what it was given, and what it would take. Runs on Python 3.9."""

from __future__ import annotations

import difflib
import math
from typing import Any, Optional, Tuple

from allpass.errors import InvalidInput


def check_text(name: str, value: Any) -> None:
    """Raises InvalidInput for what is no text, or an empty one."""
    if not isinstance(value, str) or not value.strip():
        raise wrong(name, value, "is no text", f'{name}="..."')


def check_choice(name: str, value: Any, allowed: Tuple[str, ...]) -> None:
    """Raises InvalidInput for what is none of those."""
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.3)
        raise wrong(name, value, "is not one of " + ", ".join(allowed), f'{name}="{(near or allowed)[0]}"')


def check_whole(name: str, value: Any, *, least: int) -> None:
    """Raises InvalidInput for what is no whole number, or too small a one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, value, "is not a whole number", f"{name}={max(1, least)}")
    if value < least:
        raise wrong(name, value, f"is less than {least}", f"{name}={max(1, least, -value)}")


def check_real(
    name: str,
    value: Any,
    *,
    least: Optional[float] = None,
    above: Optional[float] = None,
    below: Optional[float] = None,
) -> None:
    """Raises InvalidInput for what is no finite number, or out of its range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise wrong(name, value, "is not a finite number", f"{name}=0.1")
    if least is not None and value < least:
        raise wrong(name, value, f"is less than {least:g}", f"{name}={least:g}")
    if above is not None and value <= above:
        raise wrong(name, value, f"is not more than {above:g}", f"{name}={abs(value) or 1:g}")
    if below is not None and value >= below:
        raise wrong(name, value, f"is not below {below:g}", f"{name}={below / 2:g}")


def wrong(name: str, value: Any, what: str, hint: str) -> InvalidInput:
    """The refusal of a value: what is wrong with it, and what would be taken."""
    return InvalidInput(f"{name}: {value!r} {what}", hint=hint)
