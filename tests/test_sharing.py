"""How the tests share a machine: stacks stand in one line, and the rest gives way to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import conftest

ROOT = Path(__file__).resolve().parents[1]
COMMON = """
import json, os
import pytest

def told(kind):
    with open("told", "a") as file:
        file.write(json.dumps([kind, os.environ["PYTEST_XDIST_WORKER"], os.nice(0)]) + "\\n")
"""
STACKS = """
import pytest
from common import told

@pytest.mark.stack
@pytest.mark.parametrize("number", range(6))
def test_of_a_stack(number):
    told("stack")

def test_beside_them():
    told("stack")
"""
OTHERS = """
import pytest
from common import told

@pytest.mark.parametrize("number", range(60))
def test_that_calculates(number):
    told("other")
"""


def test_stacks_run_in_one_process_and_what_calculates_gives_way_to_them(tmp_path: Path) -> None:
    """Once a process has given way no stack comes to it; the process of the stacks does not give way before the end."""
    (tmp_path / "common.py").write_text(COMMON)
    (tmp_path / "test_others.py").write_text(OTHERS)
    (tmp_path / "test_stacks.py").write_text(STACKS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = stack: as ours\npythonpath = .\n")
    command = ["-P", "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "3", "--dist", "loadgroup"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env={**environment, "PYTHONPATH": path}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    stacks = [(worker, nice) for kind, worker, nice in told if kind == "stack"]
    others = [(worker, nice) for kind, worker, nice in told if kind == "other"]
    assert (len(stacks), len(others)) == (7, 60)
    assert len({worker for worker, _ in stacks}) == 1
    assert {nice for _, nice in stacks} == {os.nice(0)}
    assert {nice for _, nice in others} == {max(os.nice(0), conftest._GIVES_WAY)}
