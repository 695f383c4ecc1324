"""The whole agent in one process: put together, started, and left in good order.

It calls home first and loads what runs need while the answer is on its way: a machine that boots is paid for.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, Tuple

from workers.agent.api import Api
from workers.agent.config import Config, Credential, archive
from workers.agent.contents import ContentCache
from workers.agent.errors import Aborted, Refused
from workers.agent.first_calculation import RIGHT, UNCHECKED, CalculationResult, FirstCalculation
from workers.agent.gpu_watch import GpuWatch
from workers.agent.identity import machine_nonce
from workers.agent.machine import Machine
from workers.agent.models import Models
from workers.agent.patience import patiently
from workers.agent.probe import Probe
from workers.agent.shipped import Shipped
from workers.agent.solitude import Solitude, end_machine
from workers.agent.sync import Sync
from workers.agent.transport import Transport
from workers.agent.users import Users

if TYPE_CHECKING:
    from types import FrameType

FORGOTTEN, ALONE = 3, 5
_GUARD = "guard.py"
_CHECK = "requirements_check.py"
_WARM = "warm.py"
_GPU_CHECK = "gpu_check.py"
_OF_THE_GUARD = ("asking.py", "sweep.py", "views.py")  # which lie beside it
_HUB_AHEAD = "hub_ahead.py"
_AFTER_GRACE_S = 300.0  # a host that takes the machine away will not wait longer for uploads
_JOIN_S = 10.0


class Agent:
    """Made, it has its folders; `run` serves until the end."""

    def __init__(self, config: Config, credential: Credential) -> None:
        self._transport = Transport()
        _make_folders(config)
        self._users = Users(config, lambda: self._sync.notify(urgent=True))
        api = Api(config.url, credential.token, self._transport)
        gpus = GpuWatch(config, self._lose_gpus)
        self._machine = Machine(
            config=config,
            api=api,
            transport=self._transport,
            guard=config.root / "programs" / _GUARD,
            check=config.root / "programs" / _CHECK,
            warm=config.root / "programs" / _WARM,
            hub_ahead=config.root / "programs" / _HUB_AHEAD,
            contents=ContentCache(config.root / "contents", config.contents_bytes),
            models=Models(config.root / "models", config.models_bytes),
            users=self._users,
            shipped=Shipped(api, config.root / "programs"),
            gpus=gpus,
            calculation=FirstCalculation(
                config, config.root / "programs" / _GPU_CHECK, gpus.at_first, self._tell_calculation
            ),
            probe=Probe(config.probe_bytes, lambda words: self._users.notice("node_download_measured", words)),
        )
        # Rung by the interpreter as soon as a signal comes: a handler might wait for the one who waits for the bell.
        self._bell_in, self._bell_out = os.pipe()
        os.set_blocking(self._bell_out, False)
        signal.set_wakeup_fd(self._bell_out, warn_on_full_buffer=False)
        self._forgotten = False
        self._solitude = Solitude(config.alone_idle_s, config.alone_training_s)
        self._sync = Sync(self._machine, on_forgotten=self._forget, on_answer=self._solitude.heard)
        self._nonce = machine_nonce(config.root) if credential.joins else None
        self._leaving = threading.Event()

    def run(self) -> int:
        """Serve until SIGTERM, until the server does not let us in (any more), or until it is gone for good; then leave
        nothing running. The exit code."""
        opening = threading.Thread(target=self._call_home, name="opening", daemon=True)
        opening.start()
        self._get_ready_for_runs()
        is_alone = not self._rings_in_time()
        if is_alone:
            print("allpass agent: nobody has answered for too long: this machine ends by itself", file=sys.stderr)
        elif not self._forgotten:
            self._drain()
        self._leaving.set()
        self._machine.gpus.stop()
        self._machine.calculation.stop()
        self._transport.close()
        opening.join(_JOIN_S)
        self._sync.stop(_JOIN_S)
        self._sync.roster.close(_JOIN_S)
        if is_alone or self._forgotten:
            end_machine()
        if is_alone:
            return ALONE
        return FORGOTTEN if self._forgotten else 0

    def leave(self, _number: int, _frame: "Optional[FrameType]") -> None:
        """SIGTERM: let the runs save and leave. A second one: leave now. The bell has rung when this is called."""

    def _call_home(self) -> None:
        """Become the node, if we are not, and begin the conversation."""
        try:
            if self._nonce is not None:
                nonce = self._nonce
                patiently(lambda: self._machine.api.join(nonce), self._leaving)
        except Aborted:
            return
        except Refused as error:
            print(f"allpass agent: this machine is not let in: {error}", file=sys.stderr)
            self._forget()
            return
        self._machine.probe.start(self._machine.api)
        self._sync.start()

    def _get_ready_for_runs(self) -> None:
        """While the server makes up its mind. Raises what makes this machine useless, and so ends the agent."""
        _unpack(self._machine)
        self._machine.calculation.start()
        import workers.agent.companion  # noqa: F401 - the largest part, loaded for whoever begins a run

        self._machine.contents.open()
        self._machine.models.open()
        self._users.open()
        self._sync.roster.allow_runs()
        self._machine.gpus.start()

    def _rings_in_time(self) -> bool:
        """Wait for the bell. False: nobody has answered for too long, and nobody will."""
        while not select.select([self._bell_in], [], [], self._solitude.look_every_s)[0]:
            if self._solitude.is_over(trains=self._sync.roster.trains()):
                return False
        os.read(self._bell_in, 1)
        return True

    def _lose_gpus(self, why: str) -> None:
        """From a thread that looks at them, or of a run that has ended."""
        self._users.condemn(f"its GPUs cannot be used any more: {why}")

    def _tell_calculation(self, result: CalculationResult) -> None:
        """From the thread that had the GPUs calculate. A failure is told with the facts of the machine, at once."""
        if result.state == RIGHT:
            self._users.notice("node_gpus_checked", f"each GPU calculated rightly, within {result.ms} ms")
        elif result.state == UNCHECKED:
            self._users.notice("node_gpus_not_checked", f"no GPU was made to calculate: {result.why}")
        else:
            print(f"allpass agent: a GPU does not compute: {result.why}", file=sys.stderr, flush=True)
            self._sync.notify(urgent=True)

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


def _make_folders(config: Config) -> None:
    root = config.root
    for folder in (root, root / "runs", root / "spool", root / "programs", root / "lib", config.cache):
        folder.mkdir(parents=True, exist_ok=True)
    root.chmod(0o711)
    (root / "runs").chmod(0o711)
    (root / "spool").chmod(0o700)


def _unpack(machine: Machine) -> None:
    """Write out what other processes need: our small programs, and what user code may import."""
    import pkgutil

    check = machine.guard.with_name(_GPU_CHECK)
    own = (machine.guard, machine.check, machine.warm, machine.hub_ahead, check)
    for program in (*own, *(machine.guard.with_name(name) for name in _OF_THE_GUARD)):
        source = pkgutil.get_data("workers.agent", program.name)
        if source is None:
            raise FileNotFoundError(f"{program.name} is missing from the agent")
        _write(program, source)
    for name, content in _library():
        _write(machine.config.root / "lib" / name, content)


def _library() -> List[Tuple[str, bytes]]:
    packed = archive()
    if packed is None:
        from workers.agent.build import library_files

        return library_files()
    import zipfile

    with zipfile.ZipFile(packed) as bundle:
        names = [name for name in bundle.namelist() if name.startswith("lib/")]
        return [(name[len("lib/") :], bundle.read(name)) for name in names]


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.chmod(0o644)
    part.replace(path)
