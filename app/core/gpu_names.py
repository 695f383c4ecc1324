"""Which GPU a name means: companies, drivers and price lists write the same card in many ways.

"A100", "NVIDIA A100-SXM4-80GB" and "A100 PCIE" are one family; what tells its members apart is their memory. "RTX 4090"
and "NVIDIA GeForce RTX 4090 Laptop GPU" are two. A name that is not known is no family, and is never compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_LONGEST = 200
_MEMORY = re.compile(r"\b\d+ ?gi?b\b|\bhbm\d?e?\b")
_MAKERS = ("nvidia", "tesla", "geforce", "quadro")
_DATA_CENTRE = (
    *("p4", "p40", "p100", "v100", "t4", "t4g", "a2", "a10", "a10g", "a16", "a30", "a40", "a100", "a800"),
    *("l4", "l20", "l40", "l40s", "h20", "h100", "h200", "h800", "gh200", "b200", "b300", "gb200", "gb300"),
)
_WORKSTATION = (
    *("a2000", "a4000", "a4500", "a5000", "a5500", "a6000", "rtx4000", "rtx5000", "rtx6000", "rtx8000"),
    *("rtx4000ada", "rtx4500ada", "rtx5000ada", "rtx5880ada", "rtx6000ada"),
    *("rtxpro4000", "rtxpro4500", "rtxpro5000", "rtxpro6000", "titanv", "titanxp", "titanrtx"),
)
_GAMING = tuple(
    f"{line}{number}"
    for line, numbers in (
        ("gtx", ("1060", "1070", "1080", "1650", "1660")),
        ("rtx", ("2060", "2070", "2080", "3060", "3070", "3080", "3090")),
        ("rtx", ("4060", "4070", "4080", "4090", "5060", "5070", "5080", "5090")),
    )
    for number in numbers
)
_FAMILIES = sorted({*_DATA_CENTRE, *_WORKSTATION, *_GAMING}, key=len, reverse=True)
_VARIANT = re.compile(r"tisuper|ti|super|d(?![a-z])")  # of a gaming card: a card of its own
_AS_GOOD: Mapping[str, frozenset[str]] = {
    "a10": frozenset({"a10g"}),
    "a10g": frozenset({"a10"}),
    "l40": frozenset({"l40s"}),
    "h100": frozenset({"h200", "gh200"}),
    "b200": frozenset({"b300"}),
}
"""Cards that companies give in place of the one that was ordered: the same chip, no worse."""


def family_of(name: str) -> str | None:
    """The family that a card's name means; None for one that is not known, and for a share of a card."""
    plain = re.sub(r"[^a-z0-9]", "", _MEMORY.sub(" ", re.sub(r"[_\-]", " ", name[:_LONGEST].casefold())))
    for maker in _MAKERS:
        plain = plain.removeprefix(maker)
    if plain.startswith("rtxa"):
        plain = plain.removeprefix("rtx")
    for family in _FAMILIES:
        rest = plain.removeprefix(family)
        if plain.startswith(family) and not rest[:1].isdigit():
            return family + _variant(family, rest)
    return None


def is_as_promised(promised: str, found: str) -> bool:
    """Whether a machine with a GPU named `found` may be what was rented as `promised`."""
    ordered, given = family_of(promised), family_of(found)
    if ordered is None or given is None:
        return True
    return given == ordered or given in _AS_GOOD.get(ordered, ())


def _variant(family: str, rest: str) -> str:
    laptop = "laptop" if "laptop" in rest or "mobile" in rest or rest.startswith("maxq") else ""
    found = _VARIANT.match(rest) if family in _GAMING else None
    return (found.group() if found else "") + laptop
