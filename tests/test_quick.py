"""`./allpass test quick`: which files it leaves out, and that the list is of files that are there."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lines import starts_stacks

ROOT = Path(__file__).resolve().parents[1]
LISTED = (ROOT / "tests/not_quick.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/quick_tests.py"))


def _collected(*words: str) -> set[str]:
    """The files of tests that pytest would run."""
    command = [sys.executable, "-P", "-m", "pytest", "--collect-only", "--quick", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}


def test_what_is_listed_is_there_and_the_rest_is_most() -> None:
    """Whole stacks and trainings take long and are listed; most files are not."""
    assert sorted(LISTED) == LISTED
    assert [file for file in LISTED if not (ROOT / file).is_file()] == []
    every = [path for path in ROOT.glob("tests/**/test_*.py") if "clients" not in path.parts]
    assert 0 < len(LISTED) < len(every) / 2


def test_a_listed_file_runs_when_it_is_asked_for() -> None:
    """In its folder it is left out; by its name it runs, or one test of it."""
    file = next(file for file in LISTED if file.startswith("tests/core/"))
    beside = "tests/core/test_money.py"
    assert _collected("tests/core/test_money.py", file) == {beside, file}
    found = _collected("tests/core")
    assert beside in found
    assert not found & set(LISTED)


def test_what_starts_whole_stacks_is_never_quick() -> None:
    """Also before it has been measured."""
    found = _collected("tests/stack")
    assert found
    assert not [file for file in found if starts_stacks(file)]


def test_the_shortest_files_stay_in(script: dict[str, Any]) -> None:
    assert script["left_out"]({"a": 1.0, "b": 5.0, "c": 2.0}, 3.5) == ["b"]
    assert script["left_out"]({"a": 1.0, "b": 5.0, "c": 2.0}, 0.5) == ["a", "b", "c"]
    assert script["left_out"]({"a": 1.0, "b": 5.0}, 6.0) == []


def test_what_a_report_does_not_know_stays_listed(script: dict[str, Any]) -> None:
    """A quick run measures only what is quick."""
    first, second = LISTED[:2]
    assert script["listed_before"]({first: 1.0}) == {*LISTED} - {first}
    assert second in script["listed_before"]({"tests/core/test_money.py": 1.0})


@given(st.dictionaries(st.text("abc", min_size=1), st.floats(0, 100)), st.floats(0, 500))
def test_what_stays_in_has_room(seconds: dict[str, float], room_s: float) -> None:
    """And nothing is left out that is shorter than what stays."""
    left_out = set(runpy.run_path(str(ROOT / "scripts/quick_tests.py"))["left_out"](seconds, room_s))
    kept = {file: taken for file, taken in seconds.items() if file not in left_out}
    assert sum(kept.values()) <= room_s + 1e-6
    assert all(taken <= seconds[file] for taken in kept.values() for file in left_out)


def test_a_report_is_read_by_file(script: dict[str, Any], tmp_path: Path) -> None:
    """Classes and vanished files included; what is no report is refused in one line."""
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.core.test_money.TestSums" time="1.5"/>'
        '<testcase classname="tests.core.test_money" time="0.5"/><testcase classname="tests.gone" time="9"/>'
        "</testsuite></testsuites>"
    )
    assert script["seconds_by_file"](report) == {"tests/core/test_money.py": 2.0}
    for wrong in (tmp_path / "none.xml", ROOT / "README.md"):
        with pytest.raises(SystemExit, match="is no report"):
            script["seconds_by_file"](wrong)
