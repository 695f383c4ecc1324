"""What happens in a child between fork and exec: its life is bound to its parent's, and root becomes somebody else.

These functions run after fork, before exec: they do as little as possible and allocate as little as possible.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CLONE_NEWUSER = 0x10000000
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_CAPABILITY_VERSION_3 = 0x20080522
_FILE_ACCESS = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _unprivileged_uid() -> int:
    """A user that exists and is not root: programs look themselves up by name."""
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return next((user.pw_uid for user in pwd.getpwall() if user.pw_uid), 65_534)


UNPRIVILEGED_UID = _unprivileged_uid()


class Disguise(Enum):
    """How a program that refuses to run as root is started by root."""

    NOT_NEEDED = "not needed"  # we are not root
    NAMESPACE = "namespace"  # in a user namespace that shows us as somebody else; files stay ours
    OTHER_USER = "other user"  # as another user, who may still reach files below our own directories


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


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


def disguised(how: Disguise, death_signal: signal.Signals) -> Callable[[], None]:
    """A `preexec_fn` for programs that refuse to run as root; also binds the child's life to ours.

    In the child, OSError is raised when the kernel refuses.
    """
    bind = die_with_parent(death_signal)

    def enter() -> None:
        if how is Disguise.NAMESPACE:
            _enter_namespace()
        elif how is Disguise.OTHER_USER:
            _become_other_user()
        bind()  # last: a change of user clears the death signal

    return enter


@cache
def disguise_for_root() -> Disguise:
    """The disguise that works here, found by trying. Containers often refuse user namespaces."""
    if os.geteuid() != 0 or _libc is None:
        return Disguise.NOT_NEEDED
    try:
        subprocess.run(["/bin/true"], preexec_fn=disguised(Disguise.NAMESPACE, signal.SIGKILL), check=True)
    except (OSError, subprocess.SubprocessError):
        return Disguise.OTHER_USER
    return Disguise.NAMESPACE


def _enter_namespace() -> None:
    uid = os.geteuid()
    _checked(_linux().unshare(_CLONE_NEWUSER), "unshare(CLONE_NEWUSER)")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{UNPRIVILEGED_UID} {uid} 1")


def _become_other_user() -> None:
    """Another uid that keeps one power of root's: to reach files whose directories are closed to others.

    Without it, neither the binaries in a virtual environment below /root nor data there could be reached. The secure
    bit keeps capabilities over the change of user, and makes access(2), which initdb asks, count them.
    """
    libc = _linux()
    _checked(libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0), "prctl(PR_SET_SECUREBITS)")
    os.setgroups([])
    os.setresgid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    os.setresuid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    wanted = sum(1 << capability for capability in _FILE_ACCESS)
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapData * 2)(_CapData(wanted, wanted, wanted), _CapData(0, 0, 0))
    _checked(libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")
    for capability in _FILE_ACCESS:
        _checked(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0), "prctl(PR_CAP_AMBIENT)")


def _linux() -> ctypes.CDLL:
    if _libc is None:
        raise OSError("only on Linux")
    return _libc


def _checked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), what)
