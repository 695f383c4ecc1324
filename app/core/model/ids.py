"""Prefixed identifiers that sort by the time they were made.

An id is `<prefix>_` + 10 characters of time (milliseconds) + 10 characters of chance, in Crockford's base 32.
Time and chance are arguments: this module has neither.
"""

from __future__ import annotations

import re
from typing import Literal

Prefix = Literal["proj", "key", "app", "ver", "job", "swp", "run", "node", "aloc", "op", "ckpt", "led", "tick", "req"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHAPE = re.compile(r"^[a-z]{2,5}_[0-9A-HJKMNP-TV-Z]{20}\Z")
ENTROPY_BITS = 50


def make_id(prefix: Prefix, time_ms: int, entropy: int) -> str:
    """Build an id. `entropy` is any non-negative integer; its lowest 50 bits are used."""
    return f"{prefix}_{_base32(time_ms, 10)}{_base32(entropy, 10)}"


def is_id(text: str, prefix: Prefix) -> bool:
    """Whether `text` has the shape of an id of this kind (it may still name nothing)."""
    return text.startswith(prefix + "_") and _SHAPE.match(text) is not None


def _base32(value: int, width: int) -> str:
    """The lowest `width` digits (an even number), two at a time: ids are made on the hot path."""
    pairs = []
    for _ in range(width // 2):
        pairs.append(_PAIRS[value & 1023])
        value >>= 10
    return "".join(reversed(pairs))
