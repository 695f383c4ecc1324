"""A machine whose clock is off by hours: all that runs there is told so, and nothing else on this host is."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

import pytest

from providers.emulators import wrong_clock
from providers.emulators.estate import Estate
from providers.emulators.rows import MachineProgram, MachineState, NewMachine
from providers.emulators.switches import Switches
from tests.providers.emulators.conftest import OpenEstate
from tests.providers.emulators.test_estate import reached

needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="a clock is wrapped with a C compiler")
PYTHON = "import datetime, time; print(int(time.time()), int(datetime.datetime.now().timestamp()))"
SCRIPT = f"date +%s\npython3 -I -S -c '{PYTHON}'\n"


@pytest.fixture
def switches() -> Switches:
    return Switches(wrong_clock.SWITCHES)


@needs_a_compiler
@pytest.mark.parametrize(
    ("told", "off_s"), [({wrong_clock.AHEAD: 3_600}, 3_600), ({wrong_clock.BEHIND: 10**8}, -(10**8))]
)
async def test_programs_there_are_told_another_time(
    open_estate: OpenEstate, tmp_path: Path, switches: Switches, told: dict[str, int], off_s: int
) -> None:
    """Shell and Python, however isolated, as of the switch at the machine's start."""
    switches.set(told)
    estate = await open_estate(surroundings=partial(wrong_clock.surroundings, switches, tmp_path))
    begun_s = int(time.time())
    estate.add(NewMachine("off", MachineProgram(script=SCRIPT)))
    await reached(estate, "off", MachineState.ENDED)
    times = [int(word) for word in estate.log_tail("off", 10).split()]
    assert len(times) == 3
    assert all(begun_s <= moment - off_s <= time.time() + 1 for moment in times)


async def test_the_clock_is_right_unless_it_is_switched(estate: Estate, switches: Switches, tmp_path: Path) -> None:
    """Nothing is set for machines whose clock is right."""
    assert wrong_clock.surroundings(switches, tmp_path) == {}
    begun_s = int(time.time())
    estate.add(NewMachine("right", MachineProgram(script=SCRIPT)))
    await reached(estate, "right", MachineState.ENDED)
    assert all(begun_s <= int(word) <= time.time() for word in estate.log_tail("right", 10).split())


def test_nothing_is_built_for_clocks_that_are_right(switches: Switches, tmp_path: Path) -> None:
    """A host without a compiler plays everything else."""
    wrong_clock.surroundings(switches, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler_it_says_what_is_missing(
    switches: Switches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine does not start with a right clock instead."""
    monkeypatch.setattr("providers.emulators.wrong_clock.shutil.which", lambda name: None)
    switches.set({wrong_clock.AHEAD: 1})
    with pytest.raises(OSError, match="install one called cc"):
        wrong_clock.surroundings(switches, tmp_path)
