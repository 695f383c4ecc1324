"""The whole agent in one process: put together, started, and left in good order."""

from __future__ import annotations

import os
import pkgutil
import select
import time
import zipfile
from pathlib import Path
from types import FrameType
from typing import List, Optional, Tuple

from workers.agent.api import Api
from workers.agent.build import library_files
from workers.agent.config import Config, archive
from workers.agent.environment import CHECK
from workers.agent.machine import Machine
from workers.agent.process import GUARD
from workers.agent.sync import Sync
from workers.agent.transport import Transport

FORGOTTEN = 3
_AFTER_GRACE_S = 300.0  # a host that takes the machine away will not wait longer for uploads
_JOIN_S = 10.0


class Agent:
    """Made, it has its folders; `run` serves until the end."""

    def __init__(self, config: Config, token: str) -> None:
        self._transport = Transport()
        self._machine = Machine(
            config=config,
            api=Api(config.url, token, self._transport),
            transport=self._transport,
            guard=config.root / "programs" / GUARD,
            check=config.root / "programs" / CHECK,
        )
        self._bell_in, self._bell_out = os.pipe()  # rung by signal handlers, where taking a lock could deadlock
        self._forgotten = False
        _unpack(self._machine)
        self._sync = Sync(self._machine, own_uids=os.getuid() == 0, on_forgotten=self._forget)

    def run(self) -> int:
        """Serve until SIGTERM or until the server forgets us; then leave nothing running. The exit code."""
        self._sync.start()
        os.read(self._bell_in, 1)
        if not self._forgotten:
            self._drain()
        self._transport.close()
        self._sync.stop(_JOIN_S)
        self._sync.roster.close(_JOIN_S)
        return FORGOTTEN if self._forgotten else 0

    def leave(self, _number: int, _frame: Optional[FrameType]) -> None:
        """SIGTERM: let the runs save and leave. A second one: leave now."""
        os.write(self._bell_out, b"!")

    def _forget(self) -> None:
        self._forgotten = True
        os.write(self._bell_out, b"!")

    def _drain(self) -> None:
        """The machine is being taken away: save and report what can be, until the bell rings again."""
        deadline = time.monotonic() + self._sync.roster.drain() / 1000 + _AFTER_GRACE_S
        self._sync.notify(urgent=True)
        while not self._sync.roster.is_drained() and time.monotonic() < deadline:
            if select.select([self._bell_in], [], [], 0.05)[0]:
                return


def _unpack(machine: Machine) -> None:
    """Write out what other processes need: our small programs, and what user code may import."""
    root = machine.config.root
    for folder in (root, root / "runs", root / "spool", root / "programs", root / "lib", machine.config.cache):
        folder.mkdir(parents=True, exist_ok=True)
    root.chmod(0o711)
    (root / "runs").chmod(0o711)
    (root / "spool").chmod(0o700)
    for program in (machine.guard, machine.check):
        source = pkgutil.get_data("workers.agent", program.name)
        if source is None:
            raise FileNotFoundError(f"{program.name} is missing from the agent")
        _write(program, source)
    for name, content in _library():
        _write(root / "lib" / name, content)


def _library() -> List[Tuple[str, bytes]]:
    packed = archive()
    if packed is None:
        return library_files()
    with zipfile.ZipFile(packed) as bundle:
        names = [name for name in bundle.namelist() if name.startswith("lib/")]
        return [(name[len("lib/") :], bundle.read(name)) for name in names]


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.chmod(0o644)
    part.replace(path)
