"""Where the environments are that `./allpass test clients` has made, and how scripts run in them."""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

from tests.training.scripts import DEADLINE_S, HOOKED, Machine

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
made_by = runpy.run_path(str(REPOSITORY / "scripts" / "clients.py"))
Done = subprocess.CompletedProcess[str]


def python_of(family: str) -> str:
    """The Python of an environment."""
    return str(made_by["ENVIRONMENTS"] / family / "bin" / "python")


def run(
    family: str, script: Path, folder: Path, resume: Path | None = None, *, environ: dict[str, str], **parameters: Any
) -> tuple[Machine, Done]:
    """A script on a machine of its own, as a job."""
    machine = Machine(folder, parameters, resume, environ)
    full = {**os.environ, **HOOKED, **machine.environment, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python_of(family), str(script)],
        cwd=folder,
        env=full,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    return machine, done
