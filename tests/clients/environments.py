"""Where the environments are that `./allpass test clients` has made."""

from __future__ import annotations

import runpy
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
made_by = runpy.run_path(str(REPOSITORY / "scripts" / "clients.py"))


def python_of(family: str) -> str:
    """The Python of an environment."""
    return str(made_by["ENVIRONMENTS"] / family / "bin" / "python")
