"""The process between the agent and user code: starts it, signals it, and leaves nobody behind.

A program of its own (no import of ours): the agent writes it out and starts it with `-I -S`. Standard input
carries one line of JSON (what to start) and then commands: `T<grace ms>` sends SIGTERM now and SIGKILL to all when
the grace is over, `K` kills all now, `N` takes a lower priority back (the order's `nice`), and the end of input means
that the agent died: kill all. Standard output carries one line of JSON when all is over: `{"exit_code": n}` or
`{"signal": n}`.

It asks the kernel to be the parent of orphans below it, so that a process which left the group is found too.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than all the others: this starts with every run
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform.startswith("linux")
LINGER_S = 2.0  # how long processes that the main one left behind when it exited may finish by themselves
SWEEP_S = 5.0  # how long we insist on killing


def main() -> int:
    order, rest = _read_order()
    if order is None:
        return 1
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, alarm = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(alarm, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _become(order, guard)
    os.close(order["output_fd"])
    if order.get("input_fd") is not None:
        os.close(order["input_fd"])
    status = _watch(child, wake, rest)
    if status is None:
        return 0  # the agent is gone: nobody is left to tell
    told = {"signal": -status} if status < 0 else {"exit_code": status}
    try:
        os.write(1, json.dumps(told).encode() + b"\n")
    except OSError:
        return 0
    return 0


def _read_order() -> Tuple[Optional[Dict[str, Any]], bytes]:
    data = b""
    while b"\n" not in data:
        piece = os.read(0, 65536)
        if not piece:
            return None, b""
        data += piece
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def _become(order: Dict[str, Any], guard: int) -> None:
    """In the child: give up rights, bind our life to the guard's, and turn into the user's program."""
    output = order["output_fd"]
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        _prefer_as_victim()
        if order["uid"] is not None:
            os.setgroups([])
            os.setgid(order["uid"])
            os.setuid(order["uid"])
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after setuid, which clears it
        if os.getppid() != guard:
            os._exit(1)
        os.nice(order.get("nice", 0))
        os.umask(order["umask"])
        os.chdir(order["cwd"])
        given = order.get("input_fd")
        os.dup2(os.open(os.devnull, os.O_RDONLY) if given is None else given, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Ourselves or what we were told to run.
        os.execve(order["argv"][0], order["argv"], order["environ"])  # noqa: S606
    except OSError as error:
        os.write(output, f"cannot start {order['argv'][0]}: {error}\n".encode())
    finally:
        os._exit(126)


def _watch(child: int, wake: int, commands: bytes) -> Optional[int]:
    """Until the main process has ended and nobody of its is left: its exit code, or minus its signal. None when
    the agent died."""
    deadline: Optional[float] = None
    while True:
        for command in commands.split(b"\n"):
            if command.startswith(b"T"):
                _signal(child, signal.SIGTERM)
                deadline = time.monotonic() + int(command[1:]) / 1000
            elif command == b"K":
                _kill_all(child)
            elif command == b"N":
                _hasten(child)
        status = _reap(child)
        if status is not None:
            _await_leftovers(child, linger_s=LINGER_S if status >= 0 else 0.0)
            return status
        timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select([0, wake], [], [], timeout_s)[0]
        if not ready:
            _kill_all(child)
            deadline = None
        if wake in ready:
            os.read(wake, 4096)
        commands = b""
        if 0 in ready:
            commands = os.read(0, 4096)
            if not commands:
                _kill_all(child)
                _await_leftovers(child, linger_s=0.0)
                return None


def _reap(child: int) -> Optional[int]:
    """Collect whoever ended. The main process's status, when it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _await_leftovers(child: int, linger_s: float) -> None:
    """Return when nobody below us lives: GPUs and files are free from then on."""
    begin = time.monotonic()
    while time.monotonic() < begin + linger_s + SWEEP_S:
        _reap(child)
        if not _descendants() and not _group_lives(child):
            return
        if time.monotonic() >= begin + linger_s:
            _kill_all(child)
        time.sleep(0.02)


def _kill_all(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:  # the group is empty, or not ours any more
        _signal(child, signal.SIGKILL)
    for pid in _descendants():
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # it ended before us
        return


def _hasten(child: int) -> None:
    try:
        os.setpriority(os.PRIO_PGRP, child, 0)
    except OSError:  # it has ended, or we may not: it goes on as it was
        return


def _group_lives(child: int) -> bool:
    try:
        os.killpg(child, 0)
    except OSError:
        return False
    return True


def _descendants() -> Set[int]:
    """Everyone below us who lives (Linux; elsewhere the process group is all we can see)."""
    if not LINUX:
        return set()
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not imported: this program starts with every run
        if name.isdigit():
            parent = _living_parent(name)
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    below: Set[int] = set()
    fresh = [os.getpid()]
    while fresh:
        fresh = [pid for parent in fresh for pid in children.get(parent, ()) if pid not in below]
        below.update(fresh)
    return below


def _living_parent(pid: str) -> Optional[int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it ended while we looked
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[1])


def _prefer_as_victim() -> None:
    """When memory runs out, the kernel should end the training rather than the agent that reports it."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - pathlib is not loaded here
            file.write("500")
    except OSError:  # not Linux, or not allowed: the kernel's own choice then
        return


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
