"""Prefixed identifiers that sort by the time they were made.

An id is `<prefix>_` + 10 characters of time (milliseconds) + 10 characters of chance, in Crockford's base 32.
Time and chance are arguments: this module has neither.
"""

from __future__ import annotations

import re
from typing import Literal

Prefix = Literal[
    "proj",
    "key",
    "app",
    "ver",
    "job",
    "swp",
    "run",
    "node",
    "aloc",
    "op",
    "ckpt",
    "led",
    "tick",
    "req",
    "move",
    "chk",
    "merge",
    "cal",
    "inst",
    "bud",
    "sess",
    "door",
    "host",
    "mach",
    "stby",
    "stbw",
    "resv",
    "dfrg",
]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHAPE = re.compile(r"^[a-z]{2,5}_[0-9A-HJKMNP-TV-Z]{20}\Z")
ENTROPY_BITS = 50
_MARK = 5  # characters of an installation that its nodes' ids carry: one in 33 million is the same by chance


def make_id(prefix: Prefix, time_ms: int, entropy: int) -> str:
    """Build an id. `entropy` is any non-negative integer; its lowest 50 bits are used."""
    return f"{prefix}_{_ten_digits(time_ms)}{_ten_digits(entropy)}"


def is_id(text: str, prefix: Prefix) -> bool:
    """Whether `text` has the shape of an id of this kind (it may still name nothing)."""
    return text.startswith(prefix + "_") and _SHAPE.match(text) is not None


def marked(node_id: str, installation_id: str) -> str:
    """The node's id as this installation names it: the installation's last characters in place of the first of chance.

    Companies bring this id back in their listings, as a machine's label. So the create call itself tells whose the
    machine is, and to a release that knows nothing of marks it is an id like any other.
    """
    time_ends = len(node_id) - 10
    return node_id[:time_ends] + installation_id[-_MARK:] + node_id[time_ends + _MARK :]


def is_marked(label: str | None, installation_id: str) -> bool:
    """Whether a machine with this label was rented by this installation. False also for ids from before there were
    marks, of which nothing tells whose they are."""
    return label is not None and is_id(label, "node") and marked(label, installation_id) == label


def _ten_digits(value: int) -> str:
    """The lowest ten digits, two at a time and without a loop: ids are made on the hot path."""
    pairs = _PAIRS
    return (
        f"{pairs[value >> 40 & 1023]}{pairs[value >> 30 & 1023]}{pairs[value >> 20 & 1023]}"
        f"{pairs[value >> 10 & 1023]}{pairs[value & 1023]}"
    )
