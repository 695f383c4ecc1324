"""The larger half of a keeper: waits for the end of a machine and leaves nothing of it behind."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from workers.machines.order import MACHINE_ID_VARIABLE, MachineOrder
from workers.machines.processes import identify, kill_tree
from workers.machines.users import sweep_here

_ROUNDS = 3


@dataclass(frozen=True)
class MachineEnd:
    """How a machine ended by itself. `exit_code` is the agent's; negative for a signal."""

    ended_ms: int
    exit_code: int

    def write(self, path: Path) -> None:
        """Appears whole or not at all, for the owner only: code of other machines may pass through the folder."""
        draft = path.with_suffix(".draft")
        draft.touch(0o600)
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> MachineEnd | None:
        return cls(**json.loads(path.read_text())) if path.exists() else None


def keep(order: MachineOrder, agent_pid: int, first_uid: int | None) -> int:
    """Run the machine until its agent ends, or the cloud is gone, or SIGTERM; leave nothing behind. `first_uid`: of its
    block of users."""
    wakeup = _wake_on(signal.SIGCHLD, signal.SIGTERM)
    code = _wait(agent_pid, wakeup, watch_cloud=order.die_with_cloud)
    end = MachineEnd(time.time_ns() // 1_000_000, code)
    _end_all_below(order, first_uid)
    end.write(Path(order.ended_file))
    return 0


def _wait(agent_pid: int, wakeup: int, *, watch_cloud: bool) -> int:
    """The agent's exit code; -SIGKILL when it is still up but the machine has to go."""
    watched = [wakeup, 0] if watch_cloud else [wakeup]
    while True:
        code = _reap(agent_pid)
        if code is not None:
            return code
        ready, _, _ = select.select(watched, [], [])
        signals = os.read(wakeup, 512) if wakeup in ready else b""
        cloud_gone = 0 in ready and not os.read(0, 1)
        if cloud_gone or signal.SIGTERM in signals:
            code = _reap(agent_pid)
            return -signal.SIGKILL if code is None else code


def _reap(agent_pid: int) -> int | None:
    """Collect all children that ended, adopted ones included, up to the agent; its code once it is among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == agent_pid:
            return os.waitstatus_to_exitcode(status)


def _end_all_below(order: MachineOrder, first_uid: int | None) -> None:
    """Kill what is below us, what carries our mark, and what is one of our users, until nothing is left to wait for."""
    me = identify(os.getpid())

    def end_users() -> None:
        if first_uid is not None:
            sweep_here(first_uid, Path(order.directory))

    end_users()
    for _ in range(_ROUNDS):
        kill_tree(me, (MACHINE_ID_VARIABLE, order.environment[MACHINE_ID_VARIABLE]), also=end_users)
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
