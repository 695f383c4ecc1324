"""Hosts of one's own in stories: each the real program of a host, in a process and a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from app.stack.here import program_of
from providers.emulators.nvidia_smi import EmulatedGpus
from tests.e2e.service import environment, processes, until
from workers.machines.order import MACHINE_ID_VARIABLE


class OwnHostProcess:
    """A host with emulated GPUs (0: it gives its processors)."""

    def __init__(self, folder: Path, name: str, *, gpus: int = 1) -> None:
        self.name = name
        self.root = folder / name
        self._gpus = gpus
        self._smi = folder / f"{name}-nvidia-smi"
        self._process: subprocess.Popen[bytes] | None = None
        if gpus:
            self._smi.write_text(EmulatedGpus("A100 SXM4", gpus, 40_960).script())
            self._smi.chmod(0o755)

    def join(self, url: str, token: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Join and begin to work."""
        kind = ["--nvidia-smi", str(self._smi)] if self._gpus else ["--cpu"]
        argv = ["join", url, "--no-start", "--name", self.name, "--keep-free-gb", "0.1", *kind, *words]
        done = self._run(argv, token)
        if done.returncode == 0:
            self.start()
        return done

    def start(self) -> None:
        with (self.root / "host.log").open("ab") as log:
            self._process = subprocess.Popen([*program_of(self.root), "run"], stdout=log, stderr=log, env=_plain())

    def leave(self) -> subprocess.CompletedProcess[str]:
        return self._run(["leave"], "", within_s=90)

    def stop(self) -> None:
        """The host's process alone: what runs on it goes on."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)

    def unplug(self) -> None:
        """The power goes: everything at once, the host's process first."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for pid in self.machine_processes():
            _kill(pid)
        until(f"the end of all on {self.name}", lambda: not self.machine_processes())

    def machine_processes(self) -> list[int]:
        """All that runs on its machines: what carries their mark, and what is below that."""
        folder = self.root / "machines"
        marks = {one.name for one in folder.iterdir()} if folder.is_dir() else set()
        found = {pid for pid in processes() if environment(pid).get(MACHINE_ID_VARIABLE) in marks}
        above = {pid: _parent(pid) for pid in processes()}
        while True:
            below = {pid for pid, parent in above.items() if parent in found} - found
            if not below:
                return sorted(found)
            found |= below

    def log(self) -> str:
        file = self.root / "host.log"
        return file.read_text() if file.exists() else ""

    def clear(self) -> None:
        """After a story, however it went."""
        self.unplug()

    def _run(self, argv: Sequence[str], text: str, within_s: float = 60) -> subprocess.CompletedProcess[str]:
        command = [*program_of(self.root), *argv]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=within_s, check=False, env=_plain()
        )


def _plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")} | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    }


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0
