"""The host of one machine: starts its agent, adopts whatever that starts, and ends all of it together.

Run as `python -m providers.local.keeper <order file>`. An own process between the cloud and the agent, because

- orphans of the agent, also those that made their own session, fall to it, so that the machine can be ended whole;
- it outlives the cloud if it is told to, and a restarted cloud finds it again;
- it writes down when the agent ended, to the millisecond, also while no cloud is looking.

With `die_with_cloud`, its standard input is a pipe whose other end only the cloud holds: end of file means that the
cloud is gone, however it went.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from providers.local.processes import adopt_orphans, die_with_parent, identify, kill_tree

MACHINE_ID_VARIABLE = "ALLPASS_MACHINE_ID"  # in the environment of all that a machine runs
COMMAND_NOT_STARTED = 127
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class MachineOrder:
    """What the keeper is to run. Kept in a private file: `environment` holds the node's token."""

    command: list[str]
    environment: dict[str, str]
    directory: str
    log_file: str
    ended_file: str
    die_with_cloud: bool

    def write(self, path: Path) -> None:
        """Store it readable by the owner only."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, path: Path) -> MachineOrder:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True)
class MachineEnd:
    """How a machine ended by itself. `exit_code` is the agent's; negative for a signal."""

    ended_ms: int
    exit_code: int

    def write(self, path: Path) -> None:
        """Appears whole or not at all."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> MachineEnd | None:
        return cls(**json.loads(path.read_text())) if path.exists() else None


def main(order_file: Path) -> int:
    """Take the order out of its file, so that the token in it lies nowhere while the machine runs; then keep."""
    order = MachineOrder.read(order_file)
    order_file.unlink()
    return keep(order)


def keep(order: MachineOrder) -> int:
    """Run the machine until its agent ends, or the cloud is gone, or SIGTERM; leave nothing behind."""
    adopt_orphans()
    wakeup = _wake_on(signal.SIGCHLD, signal.SIGTERM)
    code = COMMAND_NOT_STARTED
    with Path(order.log_file).open("ab", buffering=0) as log:
        try:
            agent = _start(order, log.fileno())
        except OSError as error:
            log.write(f"cannot start {order.command[0]}: {error}\n".encode())
        else:
            code = _wait(agent, wakeup, watch_cloud=order.die_with_cloud)
    end = MachineEnd(time.time_ns() // 1_000_000, code)
    _end_all_below(order.environment[MACHINE_ID_VARIABLE])
    end.write(Path(order.ended_file))
    return 0


def _start(order: MachineOrder, log: int) -> subprocess.Popen[bytes]:
    keeper = os.getpid()

    def tie_to_keeper() -> None:  # runs in the child, before the command does
        die_with_parent(signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(COMMAND_NOT_STARTED)  # the keeper was gone before it could be reported

    return subprocess.Popen(  # noqa: S603 - running commands is what a machine is for
        order.command,
        env=order.environment,
        cwd=order.directory,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=tie_to_keeper,  # safe: this process has one thread
    )


def _wait(agent: subprocess.Popen[bytes], wakeup: int, *, watch_cloud: bool) -> int:
    """The agent's exit code; -SIGKILL when it is still up but the machine has to go."""
    watched = [wakeup, 0] if watch_cloud else [wakeup]
    while True:
        code = _reap(agent)
        if code is not None:
            return code
        ready, _, _ = select.select(watched, [], [])
        signals = os.read(wakeup, 512) if wakeup in ready else b""
        cloud_gone = 0 in ready and not os.read(0, 1)
        if cloud_gone or signal.SIGTERM in signals:
            code = _reap(agent)
            return -signal.SIGKILL if code is None else code


def _reap(agent: subprocess.Popen[bytes]) -> int | None:
    """Collect all children that ended, adopted ones included; the agent's code once it is among them."""
    while agent.returncode is None:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        if pid == agent.pid:
            agent.returncode = os.waitstatus_to_exitcode(status)
    return agent.returncode


def _end_all_below(machine_id: str) -> None:
    """Kill what is below us, and what carries our mark, until there is nothing to wait for."""
    me = identify(os.getpid())
    for _ in range(_ROUNDS):
        kill_tree(me, (MACHINE_ID_VARIABLE, machine_id))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return


def _wake_on(*signals: signal.Signals) -> int:
    """A file descriptor that becomes readable, with the signal's number in it, when one of `signals` arrives."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return reader


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
