"""A folder in which every name that we, our packages or the standard library import is a trap."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

_TRAP = """\
import os
with open({marker!r}, "a") as marker:
    marker.write({name!r} + " in process %d\\n" % os.getpid())
raise ImportError("this is not the module that was meant")
"""
_OURS = ("allpass", "app", "migrations", "providers", "workers", "tests", "sitecustomize", "usercustomize")
_SETTINGS = {
    ".env": "ALLPASS_PORT=1\nALLPASS_DATABASE_URL=postgresql://nowhere/\nALLPASS_ROLE=none\n",
    "alembic.ini": "[alembic]\nscript_location = nowhere\n",
    "allpass.toml": "port = = 1",
    "pyproject.toml": "[tool.allpass]\nport = = 1",
    "logging.conf": "[loggers]\nkeys=nothing\n",
}


def lay_traps(folder: Path) -> Path:
    """Fill the folder; the file that names each trap that was stepped into, which is not there as long as none was."""
    marker = folder.parent / "stepped-into"
    names = {*_OURS, *sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
    folder.mkdir(exist_ok=True)
    for name in sorted(names):
        if name.isidentifier():
            (folder / f"{name}.py").write_text(_TRAP.format(marker=str(marker), name=name))
    for package in ("workers", "providers", "app", "allpass"):  # a package wins over a module of its name
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text((folder / f"{package}.py").read_text())
    for name, text in _SETTINGS.items():
        (folder / name).write_text(text)
    return marker
