"""Processes named so that they cannot be mistaken, and trees of them ended without leftovers.

A pid alone names nothing for long: the system hands it out again. Here a process is a pid together with the time it
started and the boot of the host it started in. Standard library only: the keeper of each machine imports this module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PROC = Path("/proc")
_SCAN_PAUSE_S = 0.002
_STANDING_STILL = frozenset({"T", "t"})
_QUIET_SCANS = 2  # a fork may slip past one reading of the table, not past two in a row


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, for good. `started` is opaque; equal only for the same process of the same boot."""

    pid: int
    started: str
    boot: str


@dataclass(frozen=True)
class ProcessRow:
    """A line of the process table. A process that has exited and merely awaits its parent is not in it."""

    identity: ProcessIdentity
    parent_pid: int
    state: str = "R"  # as `ps` writes it; the first letter counts


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Names this boot of the host. Empty where the system does not tell; start times are absolute there."""
    source = PROC / "sys/kernel/random/boot_id"
    return source.read_text().strip() if source.exists() else ""


def process_table() -> list[ProcessRow]:
    """Every live process that we may see."""
    if not (PROC / "self/stat").exists():
        return _table_from_ps()
    rows = (_row_from_stat(int(name)) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208 - half the time
    return [row for row in rows if row is not None]


def identify(pid: int) -> ProcessIdentity | None:
    """The live process that has this pid now; None when there is none."""
    row = _row(pid)
    return row.identity if row else None


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    return identify(identity.pid) == identity


def send_signal(identity: ProcessIdentity, signal_number: int) -> bool:
    """Signal this very process; False when it is gone. Never reaches a later process with the same pid."""
    try:
        handle = os.pidfd_open(identity.pid) if hasattr(os, "pidfd_open") else None
    except ProcessLookupError:
        return False
    try:
        if not is_alive(identity):
            return False
        if handle is not None:
            signal.pidfd_send_signal(handle, signal_number)
        else:
            os.kill(identity.pid, signal_number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def descendants(table: Iterable[ProcessRow], root_pid: int) -> list[ProcessIdentity]:
    """All below `root_pid`, in no promised order, without it."""
    children: dict[int, list[ProcessIdentity]] = {}
    for row in table:
        children.setdefault(row.parent_pid, []).append(row.identity)
    found: list[ProcessIdentity] = []
    todo = [root_pid]
    while todo:
        below = children.pop(todo.pop(), [])
        found.extend(below)
        todo.extend(identity.pid for identity in below)
    return found


def marked(table: Iterable[ProcessRow], name: str, value: str) -> list[ProcessIdentity]:
    """The processes that were started with `name=value` in their environment (Linux; elsewhere none is found)."""
    wanted = f"{name}={value}".encode()
    return [row.identity for row in table if wanted in _environment(row.identity.pid).split(b"\0")]


def kill_tree(
    root: ProcessIdentity | None,
    marker: tuple[str, str] | None,
    *,
    also: Callable[[], object] | None = None,
    patience_s: float = 5.0,
) -> bool:
    """SIGKILL all below `root` and all that carry the environment marker, then `root` itself.

    The root is stopped first, so that it starts nothing more, and goes last: it is the reaper to which orphans of its
    tree fall, also those that made their own session, so while it lives nothing can leave the tree. The marker finds
    what remains when the root died first. `also` ends others that belong to it, once those who might start more have
    been signalled: what forks faster than it can be named. True when nothing is left; False when something is seen
    after `patience_s` of killing, first of those below, then of the root. That looking takes longer than that, or that
    `also` does, is no survivor: on a host with too much to do both are slow.
    """
    deadline = time.monotonic() + patience_s
    others = root is not None and root.pid != os.getpid()
    if root is not None and others:
        _freeze(root, deadline)
    if not _kill_until_quiet(root, marker, deadline, also):
        return False
    if root is not None and others:
        deadline = time.monotonic() + patience_s
        send_signal(root, signal.SIGKILL)
        while is_alive(root) and time.monotonic() < deadline:
            time.sleep(_SCAN_PAUSE_S)
        return not is_alive(root) and _kill_until_quiet(None, marker, deadline, None)
    return True


def _freeze(process: ProcessIdentity, deadline: float) -> None:
    """Stop it, and wait until it stands still: a signal takes effect a little after it was sent."""
    send_signal(process, signal.SIGSTOP)
    while time.monotonic() < deadline:
        row = _row(process.pid)
        if row is None or row.identity != process or row.state in _STANDING_STILL:
            return
        time.sleep(_SCAN_PAUSE_S)


def _kill_until_quiet(
    root: ProcessIdentity | None,
    marker: tuple[str, str] | None,
    deadline: float,
    also: Callable[[], object] | None,
) -> bool:
    """SIGKILL the tree without its root, and the marked, until none has been seen for some readings of the table."""
    spared = {os.getpid(), root.pid if root else 0}
    quiet = 0
    while quiet < _QUIET_SCANS:
        victims = [victim for victim in _tree(root, marker) if victim.pid not in spared]
        if victims and time.monotonic() > deadline:
            return False
        quiet = 0 if victims else quiet + 1
        for victim in victims:
            send_signal(victim, signal.SIGKILL)
        if victims and also is not None:
            also()
        time.sleep(_SCAN_PAUSE_S)
    return True


def _tree(root: ProcessIdentity | None, marker: tuple[str, str] | None) -> list[ProcessIdentity]:
    table = process_table()
    found = descendants(table, root.pid) if root and any(row.identity == root for row in table) else []
    if marker:
        found.extend(identity for identity in marked(table, *marker) if identity not in found)
    return found


def _row(pid: int) -> ProcessRow | None:
    if (PROC / "self/stat").exists():
        return _row_from_stat(pid)
    return next((row for row in _table_from_ps(pid) if row.identity.pid == pid), None)


def _row_from_stat(pid: int) -> ProcessRow | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None  # it ended between listing and reading
    fields = text.rpartition(")")[2].split()  # the command name before it may hold anything
    if len(fields) < 20 or fields[0] in {"Z", "X"}:
        return None
    return ProcessRow(ProcessIdentity(pid, fields[19], boot_id()), int(fields[1]), fields[0])


def _table_from_ps(pid: int | None = None) -> list[ProcessRow]:
    chosen = ["-p", str(pid)] if pid else ["-A"]
    answer = subprocess.run(  # noqa: S603 - fixed words and a number
        ["/bin/ps", *chosen, "-o", "pid=,ppid=,state=,lstart="],
        env={"LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    words = (line.split(None, 3) for line in answer.stdout.splitlines())
    return [
        ProcessRow(ProcessIdentity(int(word[0]), word[3].strip(), boot_id()), int(word[1]), word[2][0])
        for word in words
        if len(word) == 4 and not word[2].startswith("Z")
    ]


def _environment(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""  # gone, or somebody else's
