"""What is tried once more, and what is not: a rerun must not hide a race."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest
tried = []

def first(name):
    tried.append(name)
    return tried.count(name) == 1

@pytest.mark.stack
def test_misses_a_deadline():
    assert not first("deadline"), "waited 90 s"

@pytest.mark.stack
def test_is_slow():
    if first("slow"):
        raise TimeoutError

@pytest.mark.stack
def test_reads_what_is_gone():
    if first("gone"):
        raise FileNotFoundError("data/cloud/machines/m-1/root")

@pytest.mark.stack
def test_signals_what_is_gone():
    if first("process"):
        raise ProcessLookupError

def test_that_is_alone():
    assert not first("alone")
"""


def _outcomes(folder: Path, *words: str) -> dict[str, list[str]]:
    """What is told of each test, in the order of its tries."""
    (folder / "test_them.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = stack: as ours\n")
    command = [sys.executable, "-P", "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-v", *words]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=folder, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    told: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("test_them.py::") and "%" in line:
            name, outcome = line.split()[:2]
            told.setdefault(name.partition("::")[2], []).append(outcome)
    assert len(told) == TESTS.count("def test_"), done.stdout + done.stderr
    return told


def test_a_stack_that_missed_a_deadline_is_tried_once_more_and_nothing_else(tmp_path: Path) -> None:
    """An error of another kind is no stall of the machine; and without a stack there is no deadline to miss."""
    assert _outcomes(tmp_path) == {
        "test_misses_a_deadline": ["RERUN", "PASSED"],
        "test_is_slow": ["RERUN", "PASSED"],
        "test_reads_what_is_gone": ["FAILED"],
        "test_signals_what_is_gone": ["FAILED"],
        "test_that_is_alone": ["FAILED"],
    }


def test_nothing_is_tried_again_without_reruns(tmp_path: Path) -> None:
    """`--reruns 0` is for whoever looks for a race."""
    assert {told for tries in _outcomes(tmp_path, "--reruns", "0").values() for told in tries} == {"FAILED"}


def test_a_rerun_is_told_at_the_end(pytestconfig: pytest.Config) -> None:
    """With its traceback, in every run."""
    assert {"R", "f", "E"} <= set(pytestconfig.getoption("reportchars"))
    assert pytestconfig.getoption("rerun_show_tracebacks")
