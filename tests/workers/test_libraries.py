"""The versions that a run computes with are told, and those of another machine are only used where they can compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.wire.agent import RunReport
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from tests.workers.test_environments import LIKE_FIRST, PINNED, wheel
from workers.agent import requirements_check
from workers.agent.environment import Builder, EnvironmentNeed
from workers.agent.facts import libraries_of
from workers.agent.process import Ended
from workers.agent.requirements_check import runs_on, why_not_on_gpus

Start = Callable[..., AgentProcess]
TOLD = {"torch": "2.6.0+cu124", "transformers": "4.57.1"}


def test_the_newest_are_told_with_every_report(plane: Plane, start_agent: Start) -> None:
    """But for those with a secret in them."""
    lines = [{"libraries": {"torch": "1.0"}}, {"libraries": TOLD}, {"libraries": {"torch": "hf-A1b2C3d4"}}]
    script = (
        f"import json, os, time\nfile = open(os.environ['ALLPASS_METRICS_FILE'], 'a')\nlines = {json.dumps(lines)}\n"
    )
    script += "for line in lines:\n    file.write(json.dumps({'step': 0, 'training': line}) + '\\n')\n"
    script += "file.write('{\"step\": 1}\\n')\nfile.close()\ntime.sleep(600)\n"
    run = desired(plane, script, secrets={"KEY": "hf-A1b2C3d4"}, template={"secrets": ["KEY"]})
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 1)
    assert plane.told(run.run_id).libraries == TOLD


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=70), inner, max_size=30),
    max_leaves=20,
)


@given(st.fixed_dictionaries({"libraries": json_values}) | json_values)
def test_whatever_a_script_tells_is_taken_by_the_server(told: Any) -> None:
    found = libraries_of(told)
    report = {"run_id": "run_1", "job_id": "job_1", "epoch": 1, "phase": "running"}
    assert RunReport.model_validate({**report, "libraries": found}).libraries == found


def test_good_ones_pass_as_they_are() -> None:
    assert libraries_of({"libraries": TOLD}) == TOLD
    assert len(libraries_of({"libraries": {f"n{index}": "1.0" for index in range(99)}})) == 16


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((7, 5), ["sm_70", "sm_75", "sm_80"], True),
        ((7, 0), ["sm_75", "sm_80", "sm_90"], False),  # V100, left behind by CUDA 13
        ((8, 9), ["sm_80", "sm_86"], True),
        ((8, 0), ["sm_86"], False),
        ((10, 0), ["sm_80", "sm_90"], False),  # B200, newer than the version
        ((10, 0), ["sm_90", "compute_90"], True),
        ((12, 0), ["sm_100", "sm_120"], True),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100a"], False),
        ((10, 3), ["sm_100f"], True),
        ((9, 0), ["gfx942", "sm_", "nonsense"], False),
        ((9, 0), [], True),
    ],
)
def test_which_gpus_a_build_runs_on(capability: tuple[int, int], built_for: list[str], runs: bool) -> None:
    assert runs_on(capability, built_for) is runs


def fake_torch(*, available: bool = True, capability: tuple[int, int] = (7, 0)) -> SimpleNamespace:
    cuda = SimpleNamespace(
        is_available=lambda: available,
        device_count=lambda: 1,
        get_device_capability=lambda number: capability,
        get_device_name=lambda number: "V100",
        get_arch_list=lambda: ["sm_75", "sm_90"],
    )
    return SimpleNamespace(__version__="2.9.0", cuda=cuda)


@pytest.mark.parametrize(
    ("torch", "why"),
    [
        (fake_torch(capability=(7, 5)), None),
        (fake_torch(), "torch 2.9.0 was built for sm_75, sm_90, and not for V100"),
        (fake_torch(available=False), "torch 2.9.0 finds no GPU that it can use: its CUDA is not this driver's"),
        (SimpleNamespace(), "torch cannot be asked: AttributeError"),
        (None, "torch cannot be asked: ModuleNotFoundError"),
    ],
)
def test_why_a_version_cannot_compute_here(monkeypatch: pytest.MonkeyPatch, torch: Any, why: str | None) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    told = why_not_on_gpus()
    assert told is None if why is None else (told or "").startswith(why)


def test_a_machine_without_gpus_is_not_asked() -> None:
    """Nor is torch imported there, which takes seconds."""
    program = requirements_check.__file__
    ended = subprocess.run([sys.executable, "-I", program, "[]", "gpus"], capture_output=True, check=True)
    assert json.loads(ended.stdout)["gpus"] is None or Path(requirements_check.GPUS).exists()


CHECK = """
import json, runpy, sys
if sys.argv[2:] == ["gpus"]:
    print(json.dumps({"missing": [], "site": [], "gpus": "torch 2.6.0 was built for sm_90, and not for B200"}))
else:
    runpy.run_path(PROGRAM, run_name="__main__")
"""


def test_a_version_that_cannot_compute_here_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was installed, and is removed again; the job goes on with what it asks for, which nobody doubts."""
    wheel(tmp_path, "allpass_test_extra", "2.5", "VALUE = 5")
    wheel(tmp_path, "allpass_test_extra", "2.9", "VALUE = 9")
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path)), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    check, said = tmp_path / "check.py", list[str]()
    check.write_text(f"PROGRAM = {requirements_check.__file__!r}{CHECK}")

    def run(argv: Sequence[str], environ: dict[str, str], output: Callable[[bytes], None]) -> Ended:
        ended = subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, check=False)
        output(ended.stdout + ended.stderr)
        return Ended(ended.returncode, None)

    builder = Builder(
        python=sys.executable,
        check=check,
        cache=tmp_path / "cache",
        uid=None,
        run=run,
        log=lambda data: None,
        say=said.append,
        gone=threading.Event(),
    )
    python = builder.python_for(EnvironmentNeed.of(PINNED))
    version = "import importlib.metadata as m; print(m.version('allpass-test-extra'))"
    assert subprocess.run([python, "-c", version], capture_output=True, text=True, check=True).stdout == "2.9\n"
    (remark,) = [line for line in said if LIKE_FIRST in line]
    assert remark.endswith("it cannot compute here: torch 2.6.0 was built for sm_90, and not for B200")
    assert len(list((tmp_path / "cache").glob("*/venv"))) == 1
