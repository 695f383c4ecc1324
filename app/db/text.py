"""Text from outside, made fit for PostgreSQL: it stores neither NUL nor half a surrogate pair.

Such characters come from user code (its output, its metric names). Refusing them would lose a report; they become
U+FFFD instead.
"""

from __future__ import annotations

import math
from typing import Any

_REPLACEMENT = "\ufffd"


def storable_text(text: str) -> str:
    """The same text with every character that the database refuses replaced by U+FFFD."""
    return text.replace("\x00", _REPLACEMENT).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable_json(value: Any) -> Any:
    """The same JSON value with every string and key made storable, and numbers that are none (NaN) as None."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable_text(str(key)): storable_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [storable_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
