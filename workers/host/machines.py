"""What runs on a host: for each node of its pool an agent with its own folder, GPUs and users."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workers.agent.blocks import NoneFree
from workers.host.kept import Kept
from workers.machines.launch import AgentSetup, KeeperProcess, MachineFiles, launch
from workers.machines.processes import (
    ProcessIdentity,
    descendants,
    is_alive,
    process_table,
    send_signal,
)

LOG_LINES, LOG_BYTES = 100, 12_000
_ID = re.compile(r"mach_[0-9A-Z]{1,60}")
_NAME = re.compile(r"ALLPASS_[A-Z0-9_]{1,60}")
_LARGEST_TEXT = 8192
_MOST_FORGOTTEN = 1000
_SIGTERM = 15
PROJECT = "ALLPASS_HOST_PROJECT"  # in an order, for us alone


@dataclass
class KeptMachine:
    """`keeper`: what holds it; None before it was started, and where it could not be. `detail`: why it has ended."""

    machine_id: str
    gpu_indices: list[int]
    keeper: ProcessIdentity | None = None
    ended: bool = False
    detail: str = ""


class HostMachines:
    """All that were ordered and are not forgotten. Not safe for several threads: the host's loop owns it."""

    def __init__(self, root: Path, *, python: str = "", nvidia_smi: str = "", die_with_host: bool = False) -> None:
        self._root = root
        self._kept = Kept(root)
        self._python = python or sys.executable
        self._nvidia_smi = nvidia_smi
        self._die_with_host = die_with_host
        self._known: dict[str, KeptMachine] = {}
        self._ours: dict[str, KeeperProcess] = {}
        self._logs_told: dict[str, str] = {}
        self._forgotten: dict[str, None] = {}
        self._find()

    @property
    def live(self) -> list[KeptMachine]:
        return [one for one in list(self._known.values()) if not one.ended]

    def knows(self, machine_id: str) -> bool:
        """Also of one that was forgotten lately: an order that comes late starts nothing again."""
        return machine_id in self._known or machine_id in self._forgotten

    def start(self, machine_id: str, gpu_indices: Sequence[int], environment: Mapping[str, str], agent: Path) -> None:
        """Start it; one that cannot be started has ended, and says why. Raises ValueError for an order that is none:
        what comes from outside never names a folder or a variable of ours."""
        _check(machine_id, gpu_indices, environment)
        machine = self._known.setdefault(machine_id, KeptMachine(machine_id, list(gpu_indices)))
        files = self._files(machine_id)
        try:
            self._lay_out(files, gpu_indices, environment, agent)
            process = launch(files)
        except (OSError, NoneFree) as error:
            self._over(machine, f"it could not be started: {error}")
            return
        self._ours[machine_id] = process
        machine.keeper = process.identity
        self._note(machine)

    def fail(self, machine_id: str, gpu_indices: Sequence[int], why: str) -> None:
        """It cannot even be begun."""
        if _ID.fullmatch(machine_id):
            self._over(self._known.setdefault(machine_id, KeptMachine(machine_id, list(gpu_indices))), why)

    def look(self) -> bool:
        """Whether any has ended since the last look."""
        changed = False
        for machine in self.live:
            if machine.keeper is None or not is_alive(machine.keeper):
                self._over(machine, self._why(machine))
                changed = True
        return changed

    def tell_end(self, machine_id: str) -> None:
        """Its agent saves what it can, and ends: as a machine that is taken away is told."""
        machine = self._known[machine_id]
        if machine.keeper is not None:
            for below in descendants(process_table(), machine.keeper.pid)[:1]:
                send_signal(below, _SIGTERM)

    def end(self, machine_id: str) -> bool:
        """Whether nothing of it is left."""
        machine = self._known.get(machine_id)
        if machine is None or machine.ended:
            return True
        if not self._files(machine_id).kill(machine.keeper):
            return False
        self._over(machine, "it was asked to end")
        return True

    def forget(self, keep: Sequence[str]) -> None:
        """Those that the service asks for no more: their folders go, logs included."""
        for machine in [one for one in self._known.values() if one.ended and one.machine_id not in keep]:
            files = self._files(machine.machine_id)
            files.wipe()
            files.remove()
            del self._known[machine.machine_id]
            self._forgotten[machine.machine_id] = None
            while len(self._forgotten) > _MOST_FORGOTTEN:
                del self._forgotten[next(iter(self._forgotten))]
            self._logs_told.pop(machine.machine_id, None)

    def reports(self) -> list[dict[str, Any]]:
        return [self._report(machine) for machine in list(self._known.values())]

    def is_ours(self, pid: int) -> bool:
        """Whether a process belongs to one of ours."""
        table = process_table()
        return any(
            pid == one.keeper.pid or any(below.pid == pid for below in descendants(table, one.keeper.pid))
            for one in self.live
            if one.keeper is not None
        )

    def largest(self) -> str | None:
        """The one whose disk takes most."""
        sizes = {one.machine_id: _size(self._files(one.machine_id).root) for one in self.live}
        return max(sizes, key=lambda name: sizes[name]) if sizes else None

    def release(self) -> None:
        """Let them go on without us: whoever runs this host next finds them."""
        for process in self._ours.values():
            process.forget()

    def _find(self) -> None:
        """Those that an earlier process of this host has started; what nobody can name is removed."""
        folder = self._root / "machines"
        for one in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not _ID.fullmatch(one.name) or one.is_symlink():
                continue
            machine = _read(one / "machine.json", one.name)
            self._known[one.name] = machine
            if machine.keeper is None and not machine.ended:
                self._over(machine, "this host was stopped as it was started")

    def _lay_out(
        self, files: MachineFiles, indices: Sequence[int], environment: Mapping[str, str], agent: Path
    ) -> None:
        files.root.parent.mkdir(parents=True, exist_ok=True)
        given = dict(environment)
        project = given.pop(PROJECT, "")
        given["ALLPASS_AGENT_OF_POOL"] = "1"
        if indices and self._nvidia_smi != "none":
            given["ALLPASS_AGENT_GPUS"] = ",".join(map(str, indices))
        if self._nvidia_smi and self._nvidia_smi != "none":
            given["ALLPASS_AGENT_NVIDIA_SMI"] = self._nvidia_smi
        cache = self._kept.environments(project, files.root / "environments")
        setup = AgentSetup([self._python, "-I", "-S", str(agent)], cache, self._python)
        files.prepare(given, setup, die_with_cloud=self._die_with_host)
        self._kept.lend_models(files.root)

    def _files(self, machine_id: str) -> MachineFiles:
        return MachineFiles(self._root, machine_id)

    def _over(self, machine: KeptMachine, detail: str) -> None:
        """Nothing of it runs, and its disk is given back; its log stays until the service has it."""
        process = self._ours.pop(machine.machine_id, None)
        files = self._files(machine.machine_id)
        if not files.kill(machine.keeper):
            return
        if process is not None:
            process.collect()
        self._kept.gather_models(files.root)
        files.wipe()
        machine.ended, machine.detail = True, detail[:300]
        self._note(machine)

    def _why(self, machine: KeptMachine) -> str:
        end = self._files(machine.machine_id).end()
        if end is None:
            return "it was killed, or the host went down"
        last = self._files(machine.machine_id).log_tail(1, 1000).strip()
        return f"its agent ended with code {end.exit_code}" + (f": {last}" if last else "")

    def _note(self, machine: KeptMachine) -> None:
        file = self._root / "machines" / machine.machine_id / "machine.json"
        part = file.with_suffix(".part")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(machine)))
            part.replace(file)
        except OSError as error:  # it goes on; only whoever runs this host next would not know of it
            print(f"allpass host: {file} cannot be written: {error}", file=sys.stderr, flush=True)

    def _report(self, machine: KeptMachine) -> dict[str, Any]:
        told: dict[str, Any] = {"id": machine.machine_id, "state": "ended" if machine.ended else "running"}
        if machine.detail:
            told["detail"] = machine.detail
        tail = self._files(machine.machine_id).log_tail(LOG_LINES, LOG_BYTES)
        if tail and tail != self._logs_told.get(machine.machine_id):
            told["log"] = self._logs_told[machine.machine_id] = tail
        return told


def _check(machine_id: str, gpu_indices: Sequence[int], environment: Mapping[str, str]) -> None:
    if not _ID.fullmatch(machine_id):
        raise ValueError(f"{machine_id!r:.80} is no machine's id")
    if not all(isinstance(index, int) and 0 <= index < 1024 for index in gpu_indices):
        raise ValueError(f"{machine_id} is to have GPUs that are none")
    for name, value in environment.items():
        if not _NAME.fullmatch(name) or not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{machine_id} is to be started with {name!r:.80}, which cannot be set here")
        if len(value) > _LARGEST_TEXT:
            raise ValueError(f"{machine_id} is to be started with a {name} of {len(value)} characters")


def _read(file: Path, machine_id: str) -> KeptMachine:
    """What is cut short or strange is a machine that nobody can name: it is cleared up by its mark."""
    try:
        told = json.loads(file.read_text())
        keeper = None if told["keeper"] is None else ProcessIdentity(**told["keeper"])
        indices = [int(index) for index in told["gpu_indices"]]
        return KeptMachine(machine_id, indices, keeper, bool(told["ended"]), str(told["detail"]))
    except (OSError, ValueError, TypeError, KeyError):
        return KeptMachine(machine_id, [])


def _size(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).lstat().st_blocks * 512
            except OSError:
                continue
    return total


def remove_all(root: Path) -> None:
    """What a host has kept, when nothing runs there any more."""
    for name in ("machines", "agents"):
        shutil.rmtree(root / name, ignore_errors=True)
    Kept(root).clear()
