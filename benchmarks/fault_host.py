"""A host of a pool in the fault matrix: the real program of a host, with an emulated GPU, in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from app.stack.binding import die_with_parent
from app.stack.here import program_of
from providers.emulators.nvidia_smi import EmulatedGpus
from workers.machines.order import MACHINE_ID_VARIABLE
from workers.machines.parts import HOME
from workers.machines.processes import ProcessIdentity, descendants, marked, process_table, send_signal

HOST_GPU = "L4"  # which no company rents out here
_MEMORY_MIB = 24 * 1024
_JOIN_WITHIN_S = 90.0
_PROGRAM = """\
import sys
from pathlib import Path
sys.path.insert(0, {home!r})
from benchmarks.full_disk import fill_when
from workers.host.command import main
fill_when(Path({flag!r}), Path({root!r}))
sys.exit(main(sys.argv[1:]))
"""


class PoolHost:
    """Start it from the main thread. What runs on it goes on without its program."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(mode=0o711, exist_ok=True)
        self.root = folder / name
        self._name = name
        self._flag = folder / f"{name}-is-full"
        self._smi = folder / f"{name}-nvidia-smi"
        self._process: subprocess.Popen[bytes] | None = None
        self._smi.write_text(EmulatedGpus(HOST_GPU, 1, _MEMORY_MIB).script())
        self._smi.chmod(0o755)

    def join(self, url: str, token: str) -> None:
        """Become one of the token's pool. Raises CalledProcessError."""
        words = ["join", url, "--no-start", "--name", self._name, "--keep-free-gb", "0.1"]
        command = [*program_of(self.root), *words, "--nvidia-smi", str(self._smi)]
        subprocess.run(
            command, input=token, env=_plain(), capture_output=True, text=True, check=True, timeout=_JOIN_WITHIN_S
        )

    def start(self) -> None:
        code = _PROGRAM.format(home=str(HOME), flag=str(self._flag), root=str(self.root))
        command = [sys.executable, "-P", "-c", code, "--root", str(self.root), "run"]
        with (self.root / "host.log").open("ab") as log:
            end = die_with_parent(signal.SIGTERM)
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=_plain(), preexec_fn=end)

    def has(self, machine_id: str) -> bool:
        return (self.root / "machines" / machine_id).is_dir()

    def machine_ids(self) -> set[str]:
        folder = self.root / "machines"
        return {one.name for one in folder.iterdir()} if folder.is_dir() else set()

    def stand_still(self) -> None:
        """Its program alone."""
        self._signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Its program alone."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def unplug(self) -> None:
        """Everything at once, its program first."""
        self.kill()
        for machine_id in self.machine_ids():
            kill_machine(machine_id)

    def fill(self, is_full: bool) -> None:
        """Whether its program finds its disk full."""
        self._flag.touch() if is_full else self._flag.unlink(missing_ok=True)

    def come_back(self) -> None:
        """Whatever was done to its program."""
        self.fill(is_full=False)
        self._signal(signal.SIGCONT)
        if self._process is None or self._process.poll() is not None:
            self.start()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def processes_of(machine_id: str) -> list[ProcessIdentity]:
    """All that runs on the machine: what carries its mark, and what is below that."""
    table = process_table()
    own = marked(table, MACHINE_ID_VARIABLE, machine_id)
    return [*own, *(each for one in own for each in descendants(table, one.pid) if each not in own)]


def kill_machine(machine_id: str) -> None:
    for one in processes_of(machine_id):
        send_signal(one, signal.SIGKILL)


def _plain() -> dict[str, str]:
    """Our environment without settings of Allpass; python is found in its path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")} | {"PATH": path}
