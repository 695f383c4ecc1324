"""What the Linux kernel can be asked for on behalf of a process. Loads next to nothing: a keeper starts with it."""

from __future__ import annotations

import ctypes
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the one to which orphans below it fall (Linux; elsewhere they fall to init)."""
    if sys.platform == "linux":
        _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> None:
    """Have the system send us `signal_number` when the thread that started us ends (Linux only)."""
    if sys.platform == "linux":
        _prctl(PR_SET_PDEATHSIG, signal_number)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) was refused")
