"""The process between the agent and user code: starts it, signals it, and leaves nobody behind.

A program of its own (of ours it loads `asking.py`, `sweep.py` and `views.py`, which lie beside it): the agent writes it
out and starts it with `-I -S`. Standard input carries one line of JSON (what to start) and then commands:
`T<grace ms>` asks to save and leave now and sends SIGKILL to all when the grace is over, `K` kills all now, `N` takes a
lower priority back (the order's `nice`), and the end of input means that the agent died: kill all. Standard output
carries one line of JSON when all is over: `{"exit_code": n}` or `{"signal": n}` of the main process, with
`"orderly": true` where all that could save when they were asked left by themselves, and `"left": [pids]` of those
that nothing could end.

It asks the kernel to be the parent of orphans below it, so that a process which left the group is found too. Where the
order names a `warden`, nobody else is this user, and all that runs as it ends with the main process.
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
    from typing import Any, Dict, List, Optional, Tuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform.startswith("linux")
LINGER_S = 2.0  # how long processes that the main one left behind when it exited may finish by themselves
SWEEP_S = 5.0  # how long we insist on killing


def main() -> int:
    order, rest = _read_order()
    if order is None:
        return 1
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib is not loaded here
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, alarm = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(alarm, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    if order.get("warden") is not None:  # whoever is that user now is nobody of ours
        _program("sweep").strike(order["warden"], range(order["uid"], order["uid"] + 1))
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _become(order, guard)
    os.close(order["output_fd"])
    if order.get("input_fd") is not None:
        os.close(order["input_fd"])
    told = Guard(child, order["uid"], order.get("warden"), wake).watch(rest)
    if told is None:
        return 0  # the agent is gone: nobody is left to tell
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
        if order.get("views"):
            _program("views").enter(order["views"])
        if order["uid"] is not None:
            _limit_processes(order.get("most_processes") or 0)
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


class Guard:
    """Over one main process and all that it starts. `warden`: see `sweep.py`; None: others may be the same user."""

    def __init__(self, child: int, uid: Optional[int], warden: Optional[int], wake: int) -> None:
        self._child = child
        self._uid = uid
        self._warden = warden
        self._wake = wake
        self._asking: Optional[Any] = None  # asking.Asking
        self._has_asked_rest = False  # where there is no process table
        self._killed = False
        self._commands = b""
        self._status: Optional[int] = None

    def watch(self, commands: bytes) -> Optional[Dict[str, Any]]:
        """Until the main process has ended and nobody of its is left. None when the agent died."""
        self._commands = commands
        while True:
            self._obey()
            self._reap()
            saving = self._look()
            if self._status is not None and not saving:
                break
            if not self._await_news():
                self._kill_all()
                self._await_leftovers(0.0)
                return None
        told: Dict[str, Any] = {"signal": -self._status} if self._status < 0 else {"exit_code": self._status}
        if self._asking is not None and self._asking.has_asked and not self._killed:
            told["orderly"] = True
        left = self._await_leftovers(LINGER_S if self._status >= 0 and not self._killed else 0.0)
        return {**told, "left": left} if left else told

    def _obey(self) -> None:
        commands, self._commands = self._commands, b""
        for command in commands.split(b"\n"):
            if command.startswith(b"T"):
                self._ask(int(command[1:]) / 1000)
            elif command == b"K":
                self._kill_all()
            elif command == b"N":
                _hasten(self._child)

    def _ask(self, grace_s: float) -> None:
        """Nobody is asked twice: when it is said again, only the time counts that is left."""
        now_s = time.monotonic()
        if self._asking is None:
            self._asking = _program("asking").Asking(now_s, grace_s)
        self._asking.until_s = now_s + grace_s

    def _look(self) -> bool:
        """Whether somebody may still be saving, who was asked to."""
        if self._asking is None or self._killed:
            return False
        now_s = time.monotonic()
        if now_s >= self._asking.until_s:
            self._kill_all()
            return False
        if not LINUX:  # the process table is not to be had: first the main process, then whoever it has left
            return self._ask_group(self._asking)
        saving: bool = self._asking.look(os.getpid(), _children(), now_s)
        return saving

    def _ask_group(self, asking: Any) -> bool:
        if not asking.has_asked and self._status is None:
            asking.has_asked = True
            _signal(self._child, signal.SIGTERM)
        elif asking.has_asked and self._status is not None and not self._has_asked_rest:
            self._has_asked_rest = True
            _signal(-self._child, signal.SIGTERM)
        return _group_lives(self._child)

    def _await_news(self) -> bool:
        """Until there is a command or somebody has ended, or it is time to look again. False: the agent is gone."""
        timeout_s = None
        if self._asking is not None and not self._killed:
            left_s = self._asking.until_s - time.monotonic()
            timeout_s = max(0.0, min(_program("asking").EVERY_S, left_s))
        ready = select.select([0, self._wake], [], [], timeout_s)[0]
        if self._wake in ready:
            os.read(self._wake, 4096)
        if 0 in ready:
            self._commands = os.read(0, 4096)
            return bool(self._commands)
        return True

    def _reap(self) -> None:
        """Collect whoever ended. The main process's status, when it is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _await_leftovers(self, linger_s: float) -> List[int]:
        """Return when nobody below us lives: GPUs and files are free from then on. Else who is left."""
        begin = time.monotonic()
        while True:
            self._reap()
            left = _descendants()
            if not left and not _group_lives(self._child):
                break
            if time.monotonic() >= begin + linger_s + SWEEP_S:
                break
            if time.monotonic() >= begin + linger_s:
                self._kill_all()
            time.sleep(0.02)
        if self._warden is None or self._uid is None:
            return left
        unended = _program("sweep").end_users(self._warden, range(self._uid, self._uid + 1), SWEEP_S)
        self._reap()
        return [pid for pids in unended.values() for pid in pids]

    def _kill_all(self) -> None:
        self._killed = True
        if self._warden is not None and self._uid is not None:
            _program("sweep").end_users(self._warden, range(self._uid, self._uid + 1), 0.0)
        try:
            os.killpg(self._child, signal.SIGKILL)
        except OSError:  # the group is empty, or not ours any more
            if self._status is None:
                _signal(self._child, signal.SIGKILL)
        for pid in _descendants():
            _signal(pid, signal.SIGKILL)


def _program(name: str) -> Any:
    """One that lies beside this one."""
    return __import__(name)


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


def _descendants() -> List[int]:
    """Everyone below us who lives (Linux; elsewhere the process group is all we can see)."""
    return _program("asking").below(os.getpid(), _children()) if LINUX else []


def _children() -> Dict[int, List[int]]:
    """Of each process, those who live."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not imported: this program starts with every run
        if name.isdigit():
            parent = _living_parent(name)
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    return children


def _living_parent(pid: str) -> Optional[int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it ended while we looked
        return None
    if fields[0] in (b"Z", b"X") and _has_ended(pid):
        return None
    return int(fields[1])


def _has_ended(pid: str) -> bool:
    """Of one whose first thread has: the others may live."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) <= 1  # noqa: PTH208 - as above
    except OSError:
        return True


def _limit_processes(most: int) -> None:
    """Of this user, so that it takes neither the agent's nor another user's."""
    if most:
        import resource

        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


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
