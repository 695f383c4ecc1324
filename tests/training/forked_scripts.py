"""`python SCRIPT` by a process that has loaded torch, also where the script starts further ones: see `forking.py`.

`forked_scripts.py SOCKET`. In the script, `sys.executable` is what FORKED_PYTHON says."""

from __future__ import annotations

import os
import random
import runpy
import sys
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # loaded by the first optimizer otherwise

from allpass.training import elastic  # noqa: F401 - imported here so that every child has it at once
from tests.training import forking


def run(argv: list[str]) -> None:
    """What differs from process to process does so here, too."""
    random.seed()
    np.random.seed()
    torch.seed()
    sys.executable = os.environ["FORKED_PYTHON"]
    sys.argv = argv
    script = Path(argv[0]).absolute()  # as the interpreter says it
    sys.path[0] = str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    torch.set_num_threads(1)
    forking.serve(sys.argv[1], run)
