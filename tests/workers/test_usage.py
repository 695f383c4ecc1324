"""What a run uses of its machine: seen while it goes on, and never in its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpass.wire.agent import DesiredRun
from providers.emulators.nvidia_smi import EmulatedGpus
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.test_first_calculation import shown
from workers.agent import gpus, usage
from workers.agent.api import Writer
from workers.agent.config import load
from workers.agent.errors import Refused, Unreachable
from workers.agent.usage import MOST_UNSENT, UsageGauge, below, pause_after

Start = Callable[..., AgentProcess]
BUSY = """
import os, pathlib, time
held = bytearray(os.urandom(1 << 20) * 80)
end = pathlib.Path(os.environ["ALLPASS_OUTPUT_DIR"]).parent / "end"
until = time.monotonic() + 30
while time.monotonic() < until and not pathlib.Path(CONTROL).exists():
    sum(range(10_000))
"""


def program(folder: Path, text: str) -> Path:
    path = folder / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)
    return path


def config(path: Path | None, **more: str) -> Any:
    own = {} if path is None else {"ALLPASS_AGENT_NVIDIA_SMI": str(path)}
    return load({"ALLPASS_URL": "http://x", "ALLPASS_TOKEN": "t", **own, **more})


def phase_of(plane: Plane, run: DesiredRun) -> str | None:
    report = plane.report(run.run_id)
    return None if report is None else report.phase


def test_a_run_is_seen_while_it_goes_on(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """Processor and memory of its processes, whatever starts them; and what nvidia-smi says of its own GPUs alone."""
    control = open_folder / "end"
    bundle = tar_gz({"train.py": BUSY.replace("CONTROL", repr(str(control)))})
    run = desired(plane, bundle, gpu_indices=[1])
    plane.want(run)
    start_agent(open_folder / "machine", ALLPASS_AGENT_NVIDIA_SMI=str(shown(open_folder, 2)))
    plane.wait(lambda: plane.samples.get(run.run_id), "its first sample")
    values = plane.samples[run.run_id][0].values
    assert values["system/cpu_percent"] > 5
    assert values["system/memory_bytes"] > 80 * 2**20
    assert {name for name in values if "gpu" in name} == {"system/gpu1/util_percent", "system/gpu1/memory_bytes"}
    assert plane.metrics.get(run.run_id, {}) == {}
    control.touch()
    plane.wait(lambda: phase_of(plane, run) == "exited", "its end")


def test_a_server_that_knows_nothing_of_it_is_left_alone(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """One of an older release: the run goes on as ever, and it is asked once."""
    plane.takes_samples = False
    control = open_folder / "end"
    run = desired(plane, tar_gz({"train.py": BUSY.replace("CONTROL", repr(str(control)))}))
    plane.want(run)
    start_agent(open_folder / "machine")
    plane.wait(lambda: phase_of(plane, run) == "running", "its start")
    plane.wait(lambda: plane.refused_samples, "its first sample")
    control.touch()
    plane.wait(lambda: phase_of(plane, run) == "exited", "its end")
    assert plane.samples == {}


def test_the_processes_below_one_are_found_and_measured() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as parent:
        try:
            until = time.monotonic() + 20
            while not (found := below(parent.pid)) and time.monotonic() < until:
                time.sleep(0.02)
            assert found is not None
            assert len(found) == 1
            assert all(one.memory_bytes > 0 for one in found.values())
            assert parent.pid not in found
        finally:
            os.killpg(parent.pid, 9)
    assert below(parent.pid) is None
    assert below(2**30) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo '0, 97, 40000'; echo '1, [N/A], 12'", {0: (97, 40000 * 2**20), 1: (None, 12 * 2**20)}),
        ("echo '0, 250, x'", {0: (100, None)}),
        ("echo 'Unable to determine the device handle'; exit 15", {}),
        ("echo 'nonsense'; echo ',,'; echo '0, 1'", {}),
        ("exec sleep 60", {}),
        ("yes 0000000000000000000000000000000000", {}),
        ("kill -9 $$", {}),
    ],
)
def test_whatever_nvidia_smi_does_is_over_in_time(tmp_path: Path, text: str, expected: Any) -> None:
    began = time.monotonic()
    assert gpus.ask_use(config(program(tmp_path, f"#!/bin/sh\n{text}\n")), 1.0) == expected
    assert time.monotonic() - began < 5


def test_an_emulated_one_tells_as_well(tmp_path: Path) -> None:
    told = gpus.ask_use(config(program(tmp_path, EmulatedGpus("A100 SXM4", 2, 40_960).script())), 10.0)
    assert {index: util for index, (util, _) in told.items()} == {0: 60, 1: 61}


def test_without_one_nothing_is_asked() -> None:
    assert gpus.ask_use(config(None, ALLPASS_AGENT_SHARES_HOST="1"), 1.0) == {}


class FakeApi:
    def __init__(self) -> None:
        self.error: Exception | None = None
        self.sent: list[Any] = []

    def system(self, writer: Writer, samples: Any) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(json.loads(json.dumps(samples)))


class FakeMachine:
    def __init__(self, path: Path | None) -> None:
        self.config = config(path)
        self.api = FakeApi()


def gauge(machine: FakeMachine, gone: threading.Event | None = None) -> UsageGauge:
    return UsageGauge({"gpu_indices": [0]}, Writer(run_id="r", job_id="j", epoch=1), machine, gone or threading.Event())  # type: ignore[arg-type]


def test_one_that_hangs_is_asked_three_times_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    machine = FakeMachine(program(tmp_path, f"#!/bin/sh\necho x >> {count}\nexec sleep 60\n"))
    monkeypatch.setattr(usage, "LIMIT_S", 0.2)
    one = gauge(machine)
    for _ in range(6):
        assert set(one._sample({})["values"]) == {"system/cpu_percent", "system/memory_bytes"}
    assert count.read_text().split() == ["x"] * 3


def test_samples_wait_for_a_server_that_is_away_and_are_bounded() -> None:
    machine = FakeMachine(None)
    one = gauge(machine)
    one._unsent = [{"at_ms": number, "values": {}} for number in range(MOST_UNSENT)]
    machine.api.error = Unreachable("away")
    assert one._send()
    assert len(one._unsent) == MOST_UNSENT
    machine.api.error = None
    assert one._send()
    assert (len(machine.api.sent[0]), one._unsent) == (MOST_UNSENT, [])
    machine.api.error = Refused(404, "not_found", "no such path")
    assert not one._send()


def test_long_runs_are_looked_at_less_often() -> None:
    assert [pause_after(passed_s) for passed_s in (0, 3599, 3600, 50_000, 10**9)] == [10, 10, 30, 120, 120]
