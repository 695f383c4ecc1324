"""The samples of sweeps: parts of them, never empty, the same ones each time, and all with `--sweep`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sweeps import sample, swept

ROOT = Path(__file__).resolve().parents[1]
# How many cases of each file are in the sample, and in all.
SWEPT = {
    "tests/crashes/test_move_deaths.py": (4, 15),
    "tests/e2e/test_gang_moves.py": (1, 2),
    "tests/e2e/test_gang_resizes.py": (1, 2),
    "tests/e2e/test_kill.py": (4, 10),
    "tests/e2e/test_moves.py": (4, 11),
    "tests/e2e/test_slurm.py": (5, 6),
    "tests/control/test_both_enactments.py": (9, 10),
}


def _collected(*words: str) -> list[str]:
    """What pytest would run."""
    command = [sys.executable, "-P", "-m", "pytest", "--collect-only", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture(scope="module")
def played() -> list[str]:
    return _collected(*SWEPT)


@pytest.fixture(scope="module")
def whole() -> list[str]:
    return _collected("--sweep", *SWEPT)


def test_a_sweep_plays_its_sample_and_on_demand_all(played: list[str], whole: list[str]) -> None:
    """Everything that has a sample: in the order of the whole, nothing twice."""
    assert [case for case in whole if case in played] == played
    counts = {file: tuple(sum(case.startswith(file) for case in one) for one in (played, whole)) for file in SWEPT}
    assert counts == SWEPT
    assert len(set(whole)) == len(whole)


def test_every_file_whose_cases_are_swept_is_held_to_it() -> None:
    """A sweep that is added is added to the test above."""
    uses = re.compile(r"^from tests\.sweeps import .*\bswept$", re.MULTILINE)
    tests = [path for path in ROOT.glob("tests/**/test_*.py") if path != Path(__file__)]
    assert {path.relative_to(ROOT).as_posix() for path in tests if uses.search(path.read_text())} == set(SWEPT)


def test_a_case_beyond_the_sample_runs_when_it_is_asked_for_by_name(played: list[str], whole: list[str]) -> None:
    """As it is printed where it failed."""
    beyond = next(case for case in whole if case not in played)
    assert _collected(beyond) == [beyond]


def test_a_test_that_plays_a_sweep_itself_is_told_to(sweep: bool, pytestconfig: pytest.Config) -> None:
    assert sweep is pytestconfig.getoption("--sweep")


@given(st.lists(st.integers(), min_size=1, unique=True), st.integers(1, 50), st.data())
def test_a_sample_is_a_part_that_holds_what_it_must(cases: list[int], every: int, data: st.DataObject) -> None:
    """In order, the first case among them, and no more than asked for; every single one is all."""
    always = data.draw(st.lists(st.sampled_from(cases), unique=True))
    found = sample(cases, every=every, always=always)
    assert found == [case for case in cases if case in found]
    assert {cases[0], *always} <= set(found)
    assert len(found) <= -(-len(cases) // every) + len(always)
    assert sample(cases, every=1) == cases
    assert [one.values for one in swept(cases, found)] == [(case,) for case in cases]
    assert [not one.marks for one in swept(cases, found)] == [case in found for case in cases]


def test_a_sample_that_would_play_nothing_is_refused() -> None:
    """Also one that names a case which is not there any more."""
    for wrong in ({"cases": [], "every": 1}, {"cases": [1], "every": 0}, {"cases": [1], "every": 1, "always": [2]}):
        with pytest.raises(ValueError, match="none of them"):
            sample(**wrong)  # type: ignore[arg-type]  # of several types
    for sampled in ([], [3]):
        with pytest.raises(ValueError, match="none of the sweep's"):
            swept([1, 2], sampled)
