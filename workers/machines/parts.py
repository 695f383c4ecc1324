"""Command lines that start a part of this program: a keeper, a warden of users; from sources, or from the zipapp that
we run from."""

from __future__ import annotations

import sys
from pathlib import Path

KEEP, SWEEP = "keep", "sweep"
HOME = Path(__file__).resolve().parents[2]
_KEEPER = "import sys; from workers.machines.keeper import main; sys.exit(main())"  # `-m` would load a lot more


def keeper_command() -> list[str]:
    """What takes the file of an order behind it. Standard library only: neither site-packages nor the folder it happens
    to stand in."""
    packed = archive()
    if packed is None:
        return [sys.executable, "-S", "-P", "-c", _KEEPER]
    return [sys.executable, "-I", "-S", packed, KEEP]


def sweep_command() -> list[str]:
    """What takes the numbers of a block and its users behind it."""
    packed = archive()
    if packed is None:
        return [sys.executable, "-I", "-S", str(HOME / "workers" / "agent" / "sweep.py")]
    return [sys.executable, "-I", "-S", packed, SWEEP]


def archive() -> str | None:
    """The zipapp that we run from, if we do."""
    found = getattr(getattr(__spec__, "loader", None), "archive", None)
    return found if isinstance(found, str) else None
