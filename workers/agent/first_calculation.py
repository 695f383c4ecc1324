"""Has each GPU calculate something before user code may run: a card that answers may still compute wrongly, or hang.

Beside all else: calls home and downloads do not wait for it, the first process of a run does. What says nothing of the
GPU (no torch, one that was built for other cards or drivers, memory that is taken) is told, and is no failure. A
failure is for the server to judge; until it has heard of it, nothing runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, NamedTuple, Optional

from workers.agent.config import Config
from workers.agent.errors import Aborted
from workers.agent.gpus import ANSWERS, Gpus, host_index

RIGHT, FAILED, UNCHECKED = "right", "failed", "unchecked"
LOAD_S = 90.0  # torch may come from a slow disk
DEVICE_S = 60.0  # eight cards at once, each with a driver that wakes up; the work itself takes a second
MOST_GPUS = 16
_MOST_BYTES = 16 * 1024
_LONGEST = 300
_LOOK_S = 0.05
# What torch says of a card that is at fault. All else may be the image's: that bars no host.
_OF_THE_CARD = (
    "uncorrectable",
    "ecc error",
    "hardware",
    "unspecified launch failure",
    "illegal memory access",
    "illegal instruction",
    "busy or unavailable",
    "gpu is lost",
    "fallen off the bus",
    "system not yet initialized",
    "nvlink",
)
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "HOME", "CUDA_HOME")


class CalculationResult(NamedTuple):
    """Of all GPUs together. `why`: in words, but for RIGHT. `ms`: of the slowest."""

    state: str
    why: str = ""
    ms: int = 0
    torch: str = ""

    def facts(self) -> Dict[str, Any]:
        """As the server is told."""
        return {"gpu_check": {"state": self.state, "message": self.why, "ms": self.ms, "torch": self.torch}}


class FirstCalculation:
    """`on_over` is called once, from its own thread, when the result is there. Thread-safe."""

    def __init__(self, config: Config, program: Path, gpus: Gpus, on_over: Callable[[CalculationResult], None]) -> None:
        self._config = config
        self._program = program
        self._gpus = gpus
        self._on_over = on_over
        self._result: Optional[CalculationResult] = None
        self._open = threading.Event()  # user code may run
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="calculation", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        if self._config.checks_gpus:
            self._thread.start()
        else:
            self._open.set()

    def stop(self) -> None:
        """Its processes end soon."""
        self._stopped.set()

    def wait(self, gone: threading.Event) -> None:
        """Until user code may run. Raises Aborted when `gone` is set."""
        while not self._open.wait(_LOOK_S):
            if gone.is_set():
                raise Aborted("no longer wanted")

    def facts(self) -> Dict[str, Any]:
        """What is known; nothing before it is over."""
        return {} if self._result is None else self._result.facts()

    def heard(self, host: Dict[str, Any]) -> None:
        """The server has answered to these facts, and lets this machine go on."""
        if "gpu_check" in host:
            self._open.set()

    def _work(self) -> None:
        try:
            result = check(self._config, self._program, self._gpus, self._stopped)
        except Exception as error:  # a mistake of ours keeps no machine from work
            result = CalculationResult(UNCHECKED, f"{type(error).__name__}: {error}")
        self._result = result
        try:
            self._on_over(result)
        finally:
            if result.state != FAILED:
                self._open.set()


def check(
    config: Config,
    program: Path,
    gpus: Gpus,
    stopped: threading.Event,
    *,
    device: str = "cuda",
    load_s: float = LOAD_S,
    device_s: float = DEVICE_S,
) -> CalculationResult:
    """All GPUs at once, each in a process of its own."""
    if config.shares_host and not config.torch_folder and config.own_gpus is None:
        return CalculationResult(UNCHECKED, "the machine is a process of a host whose GPUs are not its own")
    if gpus.state != ANSWERS:
        return CalculationResult(UNCHECKED, "nvidia-smi has not told which GPUs there are")
    indices = [int(gpu["index"]) for gpu in gpus.listed[:MOST_GPUS]]
    trials: List[_Trial] = []
    try:
        for index in indices:
            trials.append(_Trial(config, program, device, index, load_s, device_s))
        while [trial for trial in trials if not trial.is_over()]:
            if stopped.wait(_LOOK_S):
                return CalculationResult(UNCHECKED, "the agent left")
        return _together([trial.result(gpus.cuda) for trial in trials])
    finally:
        for trial in trials:
            trial.close()


def _together(results: List[CalculationResult]) -> CalculationResult:
    """The worst of them; that all were right, only if all were."""
    for state in (FAILED, UNCHECKED):
        found = [result for result in results if result.state == state]
        if found:
            return found[0]._replace(why="; ".join(dict.fromkeys(result.why for result in found))[:_LONGEST])
    slowest = max((result.ms for result in results), default=0)
    return results[0]._replace(ms=slowest) if results else CalculationResult(UNCHECKED, "it has no GPUs")


class _Trial:
    """One GPU's process."""

    def __init__(self, config: Config, program: Path, device: str, index: int, load_s: float, device_s: float) -> None:
        self._index = index
        self._load_s, self._device_s = load_s, device_s
        self._until = time.monotonic() + load_s
        self._on_device = False
        self._overdue = False
        self._output: IO[bytes] = tempfile.TemporaryFile(dir=str(config.root))  # noqa: SIM115 - closed by `close`
        folder = [config.torch_folder] if config.torch_folder else []
        try:
            self._process = subprocess.Popen(
                [config.python, "-I", str(program), device, *folder],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                cwd=str(program.parent),
                env=_environ(host_index(config, index)),
                start_new_session=True,
            )
        except OSError:
            self._output.close()
            raise

    def is_over(self) -> bool:
        """Whether it has ended, or had its time."""
        if self._overdue or self._process.poll() is not None:
            return True
        if not self._on_device and any("stage" in line for line in self._said()):
            self._on_device = True
            self._until = time.monotonic() + self._device_s
        self._overdue = time.monotonic() >= self._until
        return self._overdue

    def result(self, driver_cuda: str) -> CalculationResult:
        """What to make of it."""
        said = self._said()
        last = said[-1] if said else {}
        torch = str(last.get("torch") or "")[:60]
        state, why = self._judged(last, "stage" in last, driver_cuda)
        ms = last.get("ms")
        told = why if state == UNCHECKED else f"GPU {self._index}: {why}" if why else ""
        return CalculationResult(state, _plain(told)[:_LONGEST], ms if isinstance(ms, int) else 0, _plain(torch))

    def close(self) -> None:
        """End it with all that it has started; one that hangs in the kernel is left to itself."""
        self._output.close()
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, 9)
                self._process.wait(1.0)
            except (OSError, subprocess.TimeoutExpired):
                pass

    def _judged(self, last: Dict[str, Any], on_device: bool, driver_cuda: str) -> "tuple[str, str]":
        result, why = last.get("result"), str(last.get("why") or "")
        if result in ("right", "wrong"):
            return (RIGHT if result == "right" else FAILED), why
        if not on_device and result != "error":
            return UNCHECKED, why or f"torch {self._how_it_ended(self._load_s)} before it was loaded"
        other = _made_for_others(last.get("cuda"), driver_cuda)
        if other:
            return UNCHECKED, other
        if result == "error":
            of_the_card = any(words in why.lower() for words in _OF_THE_CARD)
            return (FAILED if of_the_card else UNCHECKED), why
        return FAILED, f"a first calculation {self._how_it_ended(self._device_s)}"

    def _how_it_ended(self, limit_s: float) -> str:
        code = self._process.poll()
        if self._overdue or code is None:
            return f"had not ended after {limit_s:g} s"
        return f"ended its process by signal {-code}" if code < 0 else f"ended its process with exit code {code}"

    def _said(self) -> List[Dict[str, Any]]:
        data = os.pread(self._output.fileno(), _MOST_BYTES, 0)
        lines: List[Dict[str, Any]] = []
        for line in data.split(b"\n")[:-1]:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict):
                lines.append(told)
        return lines


def _made_for_others(torch_cuda: Any, driver_cuda: str) -> str:
    """Why this torch cannot use any GPU here; empty where it should."""
    if not isinstance(torch_cuda, str):
        return "its torch was built without CUDA"
    try:
        needs, knows = (tuple(int(part) for part in text.split(".")[:2]) for text in (torch_cuda, driver_cuda))
    except ValueError:  # the driver does not say
        return ""
    return f"its torch is for CUDA {torch_cuda}, its driver knows {driver_cuda}" if needs > knows else ""


def _environ(index: int) -> Dict[str, str]:
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {**kept, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(index)}


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
