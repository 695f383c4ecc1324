"""Property tests try the same cases wherever and in whatever order they run, and new ones when they are asked to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
DRAWS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
import tests.conftest
from hypothesis import given, strategies as st
drawn = []

@given(st.lists(st.integers()), st.dictionaries(st.text(max_size=3), st.floats()))
def draw(numbers, words):
    drawn.append((numbers, words))

draw()
print(drawn)
"""


def _drawn(folder: Path, *before: str, profile: str | None = None, hash_seed: int = 0) -> str:
    """The cases of a process that imports those modules first."""
    script = folder / "draws.py"
    script.write_text(DRAWS)
    variables = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_PROFILE"}
    variables |= {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    variables |= {"HYPOTHESIS_PROFILE": profile} if profile else {}
    command = [sys.executable, "-P", str(script), *before]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    return done.stdout


def test_cases_depend_neither_on_the_process_nor_on_what_was_imported_before(tmp_path: Path) -> None:
    """As on another worker, which has other tests before it and another seed for its hashes; `explore` draws anew."""
    here = _drawn(tmp_path)
    assert len(here) > 1000
    assert _drawn(tmp_path, "app.errors", "hypothesis.stateful", hash_seed=7) == here
    assert _drawn(tmp_path, profile="explore") != here


def test_what_fails_can_be_made_to_fail_again() -> None:
    """No case is kept in a folder that another checkout has not; the failing one is printed instead."""
    for name in ("repeatable", "explore"):
        profile = settings.get_profile(name)
        assert (profile.print_blob, profile.deadline) == (True, None)
        assert profile.database is None
    assert settings.get_profile("repeatable").derandomize
    assert not settings.get_profile("explore").derandomize
