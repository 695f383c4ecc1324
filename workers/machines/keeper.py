"""The host of one machine: starts its agent, adopts whatever that starts, and ends all of it together.

Run by `launch`. An own process between the cloud and the agent, because

- orphans of the agent, also those that made their own session, fall to it, so that the machine can be ended whole;
- it outlives the cloud if it is told to, and a restarted cloud finds it again;
- it writes down when the agent ended, to the millisecond, also while no cloud is looking.

With `die_with_cloud`, its standard input is a pipe whose other end only the cloud holds: end of file means that the
cloud is gone, however it went.

What it takes to start the agent loads nearly nothing; what it takes to keep it (`workers.machines.keeping`) is loaded
when the agent had time to start. A keeper that is killed in between takes the agent along, and the cloud finds the
rest by its mark.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys

from workers.machines.order import MachineOrder
from workers.machines.prctl import adopt_orphans, die_with_parent

COMMAND_NOT_STARTED = 127
_HEAD_START_S = 0.5
_SIGKILL, _SIGPIPE, _SIGXFSZ = 9, 13, 25  # the same everywhere; the module with their names is a large one


def main() -> int:
    """Take the order out of its file, so that the token in it lies nowhere while the machine runs; then keep."""
    order_file, *users = sys.argv[1:]
    order = MachineOrder.read(order_file)
    if (
        users
    ):  # the lock that claims the machine's block of users, held as long as we live and by nobody else, and its id
        os.set_inheritable(int(users[0]), False)
        order.environment["ALLPASS_AGENT_USER_UID"] = users[1]
    os.unlink(order_file)  # noqa: PTH108 - pathlib is not loaded here
    adopt_orphans()
    agent_pid = _start(order)
    _let_start(agent_pid)
    from workers.machines.keeping import keep

    return keep(order, agent_pid, int(users[1]) if users else None)


def _start(order: MachineOrder) -> int:
    """The agent's pid. A command that cannot be started says so in the machine's log and exits with 127."""
    keeper = os.getpid()
    child = os.fork()  # this process has one thread
    if child:
        return child
    try:
        die_with_parent(_SIGKILL)
        if os.getppid() == keeper:  # else it was gone before it could be reported
            _become(order)
    except BaseException as error:
        os.write(2, f"cannot start {order.command[0]}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(COMMAND_NOT_STARTED)


def _let_start(agent_pid: int) -> None:
    """Leave the processors to the agent for a moment, unless it ends, or the cloud does."""
    if hasattr(os, "pidfd_open"):
        agent = os.pidfd_open(agent_pid)
        select.select([agent, 0], [], [], _HEAD_START_S)
        os.close(agent)


def _become(order: MachineOrder) -> None:
    """Its output goes where ours goes: into the machine's log."""
    os.setsid()
    for ignored_by_python in (_SIGPIPE, _SIGXFSZ):
        ctypes.CDLL(None).signal(ignored_by_python, None)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order.directory)
    os.execvpe(order.command[0], order.command, order.environment)  # noqa: S606 - what a machine is for
