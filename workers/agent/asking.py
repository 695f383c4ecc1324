"""Who of a run's processes is asked to save and leave, and in which order. Loaded by `guard.py`; no import of ours.

Whoever catches SIGTERM is asked, unless a process above it catches it too: that one knows what is to become of its
children, and many pass the signal on (`torchrun`) or need them to the end (those that load data). A shell is no such
process: it waits for its child before it does anything. Who does not catch the signal would only die of it: launchers
(`sh -c`, `subprocess.run`) are let be until those below them have left, and leave with an exit code of their own.
Where nobody catches it, it is sent to all at once.

Processes that leave others behind, and such as begin to listen later, are why we look again and again. When half of the
grace is over, whoever catches the signal and has not been asked is asked, too: what is above has not passed it on.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than all the others: a pause waits for this
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set, Tuple

EVERY_S = 0.25  # between two looks
QUIET_S = 1.0  # how long launchers may take to leave by themselves
_SHELLS = ("sh", "dash", "bash", "zsh", "ksh", "busybox", "ash", "fish")


def _bit(number: int) -> int:
    return 1 << (number - 1)


_TERM = _bit(signal.SIGTERM)
# What PyTorch's loaders of data catch. They take a SIGTERM that their parent did not send for a crash, and so would
# it: the training would fail rather than save.
_LOADER, _NOT_LOADER = _bit(signal.SIGBUS) | _bit(signal.SIGSEGV) | _bit(signal.SIGFPE), _bit(signal.SIGABRT)


class Asking:
    """Until `grace_s` after `now_s` (of a clock that never goes back). `has_asked`: somebody who could save was."""

    def __init__(self, now_s: float, grace_s: float) -> None:
        self.until_s = now_s + grace_s
        self.has_asked = False
        self._half_s = now_s + grace_s / 2
        self._quiet_since_s: Optional[float] = None
        self._asked: Set[Tuple[int, int]] = set()  # pid and when it started

    def look(self, root: int, table: Dict[int, List[int]], now_s: float) -> bool:
        """Ask whoever below `root` is to be asked by now. `table`: the live children of each process. True while
        somebody lives who may be saving."""
        everyone = {pid: catcher(pid) for pid in below(root, table)}
        savers = [pid for pid in _topmost(root, table, everyone) if self._ask(pid)]
        if now_s >= self._half_s:
            savers += [pid for pid, catches in everyone.items() if catches and self._ask(pid)]
        self.has_asked = self.has_asked or bool(savers)
        if savers:
            self._quiet_since_s = None
            return True
        if self._quiet_since_s is None:
            self._quiet_since_s = now_s if self.has_asked else now_s - QUIET_S
        if now_s - self._quiet_since_s >= QUIET_S:
            for pid in everyone:
                self._ask(pid)
        return False

    def _ask(self, pid: int) -> bool:
        """Once. False when it has ended."""
        begun = started(pid)
        if begun is None:
            return False
        if (pid, begun) not in self._asked:
            self._asked.add((pid, begun))
            try:
                os.kill(pid, signal.SIGTERM)
            except OSError:  # it has just ended
                return False
        return True


def below(root: int, table: Dict[int, List[int]]) -> List[int]:
    """All descendants, parents before their children."""
    found, fresh = [], [root]
    while fresh:
        fresh = [pid for parent in fresh for pid in table.get(parent, ()) if pid != root]
        found += fresh
    return found


def catcher(pid: int) -> bool:
    """Whether this process does something of its own on SIGTERM. Where the system does not say, it may: then the main
    process is asked first, and whoever it leaves behind."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
            fields = dict(line.partition(b":\t")[::2] for line in file.read().split(b"\n"))
        caught = int(fields.get(b"SigCgt", b"%x" % _TERM), 16)
    except (OSError, ValueError):  # it ended while we looked
        return False
    return bool(caught & _TERM) and not (caught & _LOADER == _LOADER and not caught & _NOT_LOADER)


def started(pid: int) -> Optional[int]:
    """When it began, in the kernel's own count; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _topmost(root: int, table: Dict[int, List[int]], catches: Dict[int, bool]) -> List[int]:
    """Who catches it and has nobody above who does, but shells."""
    found, fresh = [], list(table.get(root, ()))
    while fresh:
        pid = fresh.pop()
        if catches.get(pid):
            found.append(pid)
        if not catches.get(pid) or _is_shell(pid):
            fresh += table.get(pid, ())
    return found


def _is_shell(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").rpartition("/")[2] in _SHELLS  # noqa: PTH115 - as above
    except OSError:
        return False
