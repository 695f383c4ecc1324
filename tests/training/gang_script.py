"""A job of the built-in recipe, as its script is, with followers that are forked. Its rows are where ROWS says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from allpass import training  # noqa: F401 - first: from here on SIGTERM is a request

# isort: split
from allpass.training.elastic import first_machine, further_machine, gang, stillness
from tests.training.forking import CLIENT
from tests.training.reducing import older_if_asked, reduce_if_asked
from workers.trainer import gathering
from workers.trainer.main import main

if __name__ == "__main__":
    gathering.COMMAND = CLIENT
    reduce_if_asked()
    older_if_asked()
    gang.LOSS_S = float(os.environ.get("LOSS_S", gang.LOSS_S))
    stillness.LEAST_S = float(os.environ.get("PATIENCE_S", stillness.LEAST_S))
    first_machine.QUIET_S = further_machine.QUIET_S = float(os.environ.get("QUIET_S", first_machine.QUIET_S))
    try:
        main(Path(os.environ["ROWS"]))
    except SystemExit as leaving:
        if isinstance(leaving.code, str):  # as the interpreter does, which its host is not
            print(leaving.code, file=sys.stderr)
            sys.exit(1)
        raise
