"""A child of the stack is started again with other variables, and with those that it had."""

from __future__ import annotations

import sys
from pathlib import Path

from app.stack.child import Child

_SAYS = "import os; print(os.environ.get('A'), os.environ.get('B'), flush=True)"


def test_variables_are_given_for_the_next_start_and_taken_back(tmp_path: Path) -> None:
    """What it had is told, also that it had nothing: given back, it is as before."""
    log = tmp_path / "log"
    child = Child("says", [sys.executable, "-c", _SAYS], environment={"A": "1"}, log_file=log, port=1)

    def said() -> str:
        child.start()
        assert child._process is not None
        child._process.wait(60)
        return log.read_text().splitlines()[-1]

    assert said() == "1 None"
    had = child.give({"A": None, "B": "2"})
    assert (had, said()) == ({"A": "1", "B": None}, "None 2")
    child.give(had)
    assert said() == "1 None"
