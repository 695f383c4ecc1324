"""Runs example scripts as real processes, the way an agent does: environment in, metrics lines out, SIGTERM to stop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
DEADLINE_S = 300.0
LIBRARY = REPOSITORY / "sdk"
HOOKED = {  # what an agent adds to the environment of a script
    "PYTHONPATH": f"{LIBRARY / 'allpass' / 'hooks' / 'startup'}{os.pathsep}{LIBRARY}",
    "ALLPASS_JOB_ID": "job_test",
}


@dataclass
class Machine:
    """A fresh folder in which one run of a script lives: nothing reaches it but what is put there."""

    folder: Path
    parameters: dict[str, Any]
    resume_from: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "parameters.json").write_text(json.dumps(self.parameters))
        variables = {
            "ALLPASS_JOB_ID": "job_test",
            "ALLPASS_PARAMETERS_FILE": "parameters.json",
            "ALLPASS_CHECKPOINT_DIR": "checkpoints",
            "ALLPASS_OUTPUT_DIR": "output",
            "ALLPASS_METRICS_FILE": "metrics.jsonl",
            "ALLPASS_CHECKPOINT_INTERVAL_S": "3600",
        }
        self.environment = {name: self._inside(value) for name, value in variables.items()} | self.environment
        if self.resume_from is not None:
            there = self.folder / "resume"  # the name says nothing of the step
            shutil.copytree(self.resume_from, there)
            step = self.resume_from.name.rsplit("-", 1)[1].lstrip("0")
            self.environment |= {"ALLPASS_RESUME_DIR": str(there), "ALLPASS_RESUME_STEP": step}

    def lines(self) -> list[dict[str, Any]]:
        """The whole lines of the metrics file so far."""
        path = self.folder / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def losses(self) -> dict[int, str]:
        """Loss by step, in a form that tells every bit apart."""
        return {
            line["step"]: repr(line["loss"]) for line in self.lines() if "loss" in line and "checkpoint" not in line
        }

    def announced(self) -> list[Path]:
        """The checkpoint folders that the script has announced, in order."""
        names = [line["checkpoint"] for line in self.lines() if "checkpoint" in line]
        return [self.folder / "checkpoints" / name for name in names]

    def _inside(self, value: str) -> str:
        return str(self.folder / value) if not value.isdigit() and value != "job_test" else value


class Process:
    """A script in a process of its own."""

    def __init__(self, script: str, machine: Machine) -> None:
        self.machine = machine
        self._process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / script)],
            cwd=machine.folder,
            env=os.environ | machine.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        self.output, _ = self._process.communicate(timeout=DEADLINE_S)
        return self._process.returncode


class Host:
    """A process that has imported the heavy packages once and forks a child for each script it is asked to run.

    Two hosts with different hash seeds stand for two machines: importing torch and transformers for every run of a
    script would take most of the time of these tests.
    """

    def __init__(
        self,
        hash_seed: int,
        environ: Mapping[str, str] = MappingProxyType({}),
        python: str = sys.executable,
        *modules: str,
    ) -> None:
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("host.py")), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONHASHSEED": str(hash_seed),
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                **environ,
            },
        )

    def start(self, script: str, machine: Machine) -> HostedProcess:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "script": str((EXAMPLES / script).resolve()),
            "folder": str(machine.folder),
            "environment": machine.environment,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return HostedProcess(machine, int(self._process.stdout.readline()), self._process.stdout.readline)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class HostedProcess:
    """A forked script: a real process, with its own pid and signals."""

    machine: Machine
    pid: int
    _read_code: Callable[[], str]
    code: int | None = None  # once it was asked for

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def exit_code(self) -> int:
        return int(self._read_code())

    @property
    def output(self) -> str:
        return (self.machine.folder / "output.log").read_text()


def wait_for_step(machine: Machine, step: int) -> None:
    """Poll the metrics file until the step is reported."""
    end = time.monotonic() + DEADLINE_S
    while step not in machine.losses():
        assert time.monotonic() < end, f"step {step} was never reported; so far {machine.lines()[-3:]}"
        time.sleep(0.002)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
