"""Allpass: start fine-tuning in seconds, finish it where it is cheap.

    import allpass as aps
    app = aps.build(app_name="LLM-finetune", user_name="ada", code="train.py")
    job = app.run(app_name="Fine-tuning", template="template.json", soft_deadline="6hr")

Names are loaded on first use, so that `allpass.training` works on a machine that has only the standard library.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

LEAST_PYTHON = (3, 10)  # of the client and the command line; sdk/pyproject.toml says the same of their libraries
_HOMES = {
    "build": "allpass.app",  # not a module called build: importing it would hide the function
    "App": "allpass.app",
    "finetune": "allpass.recipe.run",
    "Job": "allpass.job",
    "Sweep": "allpass.sweep",
    "Client": "allpass.client",
    "AsyncClient": "allpass.client",
    "AllpassError": "allpass.errors",
}
__all__ = ["AllpassError", "App", "AsyncClient", "Client", "Job", "Sweep", "__version__", "build", "finetune"]

if TYPE_CHECKING:
    from allpass.app import App, build
    from allpass.client import AsyncClient, Client
    from allpass.errors import AllpassError
    from allpass.job import Job
    from allpass.recipe.run import finetune
    from allpass.sweep import Sweep


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'allpass' has no attribute {name!r}")
    check_python()
    return getattr(importlib.import_module(_HOMES[name]), name)


def check_python() -> None:
    """Raises ImportError where this Python is too old for the client, whose libraries were not installed then."""
    if sys.version_info < LEAST_PYTHON:
        least, here = (".".join(map(str, version)) for version in (LEAST_PYTHON, sys.version_info[:2]))
        raise ImportError(
            f"Allpass needs Python {least} or newer, and this is {here} ({sys.executable}). "
            f"With {here} only allpass.training works, in the script of a job."
        )
