"""A machine's folder, and the process that starts what runs in it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workers.agent.blocks import Block
from workers.machines.keeping import MachineEnd
from workers.machines.order import MACHINE_ID_VARIABLE, MachineOrder
from workers.machines.parts import HOME, keeper_command
from workers.machines.processes import ProcessIdentity, identify, is_alive, kill_tree
from workers.machines.users import MachineUsers, claim

_DEFAULT_INTERPRETER = ["/bin/sh"]
_TORCH = Path(__file__).with_name("torch_double.py")
_COLLECT_S = 5.0
# A machine sees none of the cloud's environment but this: how to reach the network, speak, and find programs.
_PASSED_ON = re.compile(
    r"^(PATH|LANG|LC_\w+|TZ|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|LD_LIBRARY_PATH"
    r"|(https?|no|all)_proxy|PIP_\w+|UV_\w+|HF_HOME|HF_ENDPOINT|HF_HUB_OFFLINE)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class AgentSetup:
    """What a machine runs, and with what."""

    command: list[str]
    cache_dir: Path
    python: str = sys.executable


class MachineFiles:
    """The folder of one machine: `root` is its disk, the rest is the company's."""

    def __init__(self, data_dir: Path, machine_id: str, mark: str | None = None) -> None:
        self.mark = mark or machine_id
        self._folder = data_dir.resolve() / "machines" / machine_id
        self.root = self._folder / "root"
        self.order_file = self._folder / "order"
        self.log_file = self._folder / "machine.log"
        self._script_file = self._folder / "script"
        self._nvidia_smi = self._folder / "nvidia-smi"
        self._ended_file = self._folder / "ended.json"
        self.users = MachineUsers(self._folder / "users", self.root)

    def prepare(
        self,
        environment: Mapping[str, str],
        agent: AgentSetup,
        *,
        die_with_cloud: bool,
        script: str | None = None,
        nvidia_smi: str | None = None,
        torch_plays: str = "",
    ) -> None:
        """Make the folder and write down what is to run there. What the cloud adds wins over `environment`.

        `nvidia_smi`: a program that plays the machine's GPUs for the agent. `torch_plays`: how they compute, where a
        stand-in for torch is to play that.

        `script`, with its interpreter in a first line `#!...` (else /bin/sh), runs in place of the agent's command. A
        machine that has run before keeps its disk and log. The folders can be passed through, not listed, by everybody:
        an agent may run user code as another user.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        for folder in (self._folder.parent, self._folder, self.root):
            folder.chmod(0o711)
        self._ended_file.unlink(missing_ok=True)
        own = {
            "ALLPASS_AGENT_SHARES_HOST": "1",
            MACHINE_ID_VARIABLE: self.mark,
            "ALLPASS_AGENT_ROOT": str(self.root),
            "ALLPASS_AGENT_PYTHON": agent.python,
            "ALLPASS_AGENT_CACHE": str(agent.cache_dir),
            "HOME": str(self.root),
            # `python3` is the interpreter that we run on
            "PATH": os.pathsep.join([str(Path(agent.python).parent), os.environ.get("PATH", os.defpath)]),
        }
        if nvidia_smi is not None:
            self.show_gpus(nvidia_smi)
            own["ALLPASS_AGENT_NVIDIA_SMI"] = str(self._nvidia_smi)
        if torch_plays:
            own["ALLPASS_AGENT_TORCH"] = str(self._lay_torch(torch_plays))
        passed_on = {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}
        MachineOrder(
            command=agent.command if script is None else self._write_script(script),
            environment={**passed_on, **environment, **own},
            directory=str(self.root),
            ended_file=str(self._ended_file),
            die_with_cloud=die_with_cloud,
        ).write(self.order_file)

    def _lay_torch(self, plays: str) -> Path:
        folder = self._folder / "torch"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(_TORCH, folder / "torch.py")
        (folder / "plays").write_text(plays)
        return folder

    def show_gpus(self, nvidia_smi: str) -> None:
        """From now on the machine's GPUs are what this program says. Replaced as a whole: the agent may ask now."""
        part = self._nvidia_smi.with_name(".nvidia-smi")
        part.write_text(nvidia_smi)
        part.chmod(0o755)
        part.replace(self._nvidia_smi)

    def _write_script(self, script: str) -> list[str]:
        """Store it as privately as the order, and say what runs it."""
        handle = os.open(self._script_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", newline="") as file:
            file.write(script)
        first_line = script.partition("\n")[0]
        interpreter = shlex.split(first_line[2:]) if first_line.startswith("#!") else []
        return [*(interpreter or _DEFAULT_INTERPRETER), str(self._script_file)]

    def set_die_with_cloud(self, die_with_cloud: bool) -> None:
        """Bring the order of a machine that has not booted yet in line with how the cloud runs now."""
        order = MachineOrder.read(self.order_file)
        order.die_with_cloud = die_with_cloud
        order.write(self.order_file)

    def end(self) -> MachineEnd | None:
        """What the keeper wrote down about the end."""
        return MachineEnd.read(self._ended_file)

    def kill(self, keeper: ProcessIdentity | None) -> bool:
        """End all that runs on the machine, its keeper included. False: something survives."""

        def end_users() -> bool:
            return self.users.sweep(held=keeper is not None and is_alive(keeper))

        return kill_tree(keeper, (MACHINE_ID_VARIABLE, self.mark), also=end_users) and end_users()

    def log_tail(self, lines: int, most_bytes: int) -> str:
        """The last `lines` lines, as far as they lie in the last `most_bytes`; empty when nothing was written."""
        if lines <= 0 or not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - most_bytes))
            text = log.read().decode(errors="replace")
        return "".join(text.splitlines(keepends=True)[-lines:])

    def wipe(self) -> bool:
        """Remove the disk, order and script with their token, and what its users left on this host; the log and the
        record of the end stay. Whether there was anything to remove."""
        self.users.sweep()
        there = [path for path in (self.order_file, self._script_file, self.root) if path.exists()]
        self.order_file.unlink(missing_ok=True)
        self._script_file.unlink(missing_ok=True)
        shutil.rmtree(self.root, ignore_errors=True)
        return bool(there)

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self._folder, ignore_errors=True)


class KeeperProcess:
    """A keeper that we started ourselves: a child to be collected, and our end of its pipe."""

    def __init__(self, process: subprocess.Popen[bytes], identity: ProcessIdentity, pipe: IO[bytes]) -> None:
        self._process = process
        self._pipe = pipe
        self.identity = identity

    def collect(self) -> None:
        """Wait for its end, which has been brought about."""
        self._pipe.close()
        self._process.wait(_COLLECT_S)

    def forget(self) -> None:
        """Let it go on without us, if its order says so; the next cloud process finds it by its identity."""
        self._pipe.close()
        if self._process.poll() is None:
            self._process.returncode = 0  # tells Popen that nobody is going to wait for it


def launch(files: MachineFiles, block: Block | None = None) -> KeeperProcess:
    """Start the machine's keeper in its own session. `block`: of user ids, if one was claimed before; from now on
    the keeper holds it. Raises OSError when the host cannot."""
    block = block or claim()
    try:
        return _launch(files, block)
    finally:
        if block is not None:
            block.close()


def _launch(files: MachineFiles, block: Block | None) -> KeeperProcess:
    files.users.note(block)
    handed_on = [] if block is None else [block.lock]
    words = [] if block is None else [str(block.lock), str(block.first)]
    with open(files.log_file, "ab", opener=_privately) as log:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [*keeper_command(), str(files.order_file), *words],
            env={"PYTHONPATH": str(HOME), "PATH": os.environ.get("PATH", ""), MACHINE_ID_VARIABLE: files.mark},
            cwd=files.root.parent,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=handed_on,
            start_new_session=True,
        )
    identity, pipe = identify(process.pid), process.stdin
    if identity is None or pipe is None:
        process.kill()
        process.wait()
        raise OSError(f"the keeper of machine {files.mark} ended as it started")
    return KeeperProcess(process, identity, pipe)


def _privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
