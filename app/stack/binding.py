"""What happens in a child between fork and exec: its life is bound to its parent's.

These functions run after fork, before exec: they do as little as possible and allocate as little as possible.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER = 0x10000000
_UNPRIVILEGED_UID = 1000  # what the child sees itself as; outside it is still us

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(death_signal: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """A `preexec_fn`: the kernel sends `death_signal` to the child when the thread that started it ends.

    Start such children from the main thread: the signal follows the thread, not the process.
    """
    parent = os.getpid()

    def bind() -> None:
        if _libc is None:
            return
        _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal))
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return bind


def unprivileged(death_signal: signal.Signals) -> Callable[[], None]:
    """A `preexec_fn` for programs that refuse to run as root: inside a user namespace root looks unprivileged.

    Elsewhere it only binds the child's life. Raises OSError in the child when the kernel refuses namespaces.
    """
    bind = die_with_parent(death_signal)
    is_root = os.geteuid() == 0

    def enter() -> None:
        if is_root and _libc is not None:
            uid = os.geteuid()
            if _libc.unshare(_CLONE_NEWUSER):
                raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWUSER)")
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{_UNPRIVILEGED_UID} {uid} 1")
        bind()

    return enter
