"""Ends all that runs as the users of one machine, and removes what they left outside of its folders.

`sweep.py WARDEN FIRST LAST`, run by root: a program of its own (no import of ours), and loaded by those who do the same
from a process of theirs that has one thread. It prints one line of JSON, the processes that could not be ended by their
user: `{"left": {"65537": [4711]}}`, and ends with 1 when there are any.

A child becomes one user after the other and signals -1. The kernel walks over all processes then while none can be
forked, so nothing escapes by being faster, by having left its group and session, or by being nobody's child any more.
Only the effective user of that child is the one that is swept. Its real one is the warden, a number of the machine's
block that nothing else runs as, its saved one root: so those who are ended can neither signal nor trace the child. Its
rights over other users' processes are gone while it is none of root's, and no signal is sent in between.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than all the others: this ends every run
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, List, Sequence, Set, Tuple

LINUX = sys.platform.startswith("linux")
LOWEST_UID = 1000  # below are the system's own
PATIENCE_S = 5.0  # how long we insist on killing
CLEAN_S = 20.0  # how long one user's files may take to remove
OPEN_TO_ALL = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")  # noqa: S108 - what to clean, not to use
_IPC_RMID = 0
_QUIET_LOOKS = 2  # a fork may slip past one reading of the table, not past two in a row
_LOOK_S = 0.01


def main() -> int:
    warden, first, last = map(int, sys.argv[1:])
    left = end_users(warden, range(first, last + 1))
    clean(warden, set(range(first, last + 1)) - set(left))
    sys.stdout.write(json.dumps({"left": left}) + "\n")
    return 1 if left else 0


def end_users(warden: int, uids: range, patience_s: float = PATIENCE_S) -> Dict[int, List[int]]:
    """SIGKILL all processes of these users until there is none. What is left after `patience_s`, by user."""
    strike(warden, uids)
    deadline, quiet = time.monotonic() + patience_s, 0
    while True:
        found = processes_of(uids)
        quiet = 0 if found else quiet + 1
        if quiet >= _QUIET_LOOKS or (found and time.monotonic() > deadline):
            return found
        if found:
            _kill(warden, list(found))
            time.sleep(_LOOK_S)


def strike(warden: int, uids: range) -> None:
    """SIGKILL whatever is one of these users now, also what no look at the process table would find: a chain of
    processes each of which lives for a moment."""
    check(warden, uids)
    _kill(warden, uids)


def check(warden: int, uids: range) -> None:
    """Raises ValueError for users that nobody may sweep: the system's, our own, and all that somebody logs in as."""
    import pwd

    for uid in (warden, *uids):
        if uid < LOWEST_UID or uid in (os.getuid(), os.geteuid()):
            raise ValueError(f"user {uid} is not one of a machine's")
    if warden in uids:
        raise ValueError(f"user {warden} cannot be swept by itself")
    for entry in pwd.getpwall():
        if entry.pw_uid == warden or entry.pw_uid in uids:
            raise ValueError(f"user {entry.pw_uid} is {entry.pw_name}, who can log in")


def processes_of(uids: range) -> Dict[int, List[int]]:
    """The live processes that have one of these as any of their users, by user (Linux)."""
    found: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not imported: this ends every run
        if name.isdigit():
            for uid in _users_of(name):
                if uid in uids:
                    found.setdefault(uid, []).append(int(name))
    return found


def have_left(uids: range) -> bool:
    """Whether there is anything to end or to remove."""
    return bool(processes_of(uids) or _owners_of_files(uids) or list(_ipc_of(set(uids))))


def clean(warden: int, uids: Set[int]) -> None:
    """Remove what these users own of what is open to all: files, shared memory, message queues, semaphores. Done as
    each user, who can remove nothing else, and who must have no process. It need not succeed."""
    objects = list(_ipc_of(uids))
    owners = {owner for owner, _, _ in objects} | set(_owners_of_files(uids))
    if owners:  # loaded before we become a user, who may not be able to read them
        import ctypes  # noqa: F401
        import shutil  # noqa: F401
    for uid in owners:
        mine = [(kind, number) for owner, kind, number in objects if owner == uid]

        def remove(uid: int = uid, mine: List[Tuple[str, int]] = mine) -> None:
            signal.setitimer(signal.ITIMER_REAL, CLEAN_S)  # whose signal ends us
            _remove_ipc(mine)
            _remove_files(uid)

        _as_user(warden, uid, remove)


def _kill(warden: int, uids: Sequence[int]) -> None:
    """By one child, for there may be hundreds of users. It is one of the warden's: where another sweep of the machine
    has ended it, or something else has, each user gets a child."""
    if not _in_child(lambda: _kill_each(warden, uids)):
        for uid in uids:
            _as_user(warden, uid, _kill_all)


def _kill_each(warden: int, uids: Sequence[int]) -> None:
    for uid in uids:
        os.setresuid(warden, uid, 0)
        _kill_all()
        os.seteuid(0)


def _kill_all() -> None:
    """All whom we may signal."""
    try:
        os.kill(-1, signal.SIGKILL)
    except OSError:  # there was nobody
        return


def _as_user(warden: int, uid: int, work: Callable[[], None]) -> None:
    """In a child: `work` with the rights of `uid`, whom it cannot be harmed by."""

    def become() -> None:
        os.setresgid(uid, uid, uid)
        os.setresuid(warden, uid, warden)
        work()

    _in_child(become)


def _in_child(work: Callable[[], None]) -> bool:
    """Whether it came to the end of `work`."""
    try:
        child = os.fork()
    except OSError:  # no room for another process just now: there is another look
        return False
    if child == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            os.chdir("/")
            os.setgroups([])
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _users_of(pid: str) -> Set[int]:
    """Real, effective, saved and file system user of a live process; none of one that only awaits its parent."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
            fields = dict(line.partition(b":\t")[::2] for line in file.read().split(b"\n"))
        if fields[b"State"][:1] in b"ZX" and len(os.listdir(f"/proc/{pid}/task")) <= 1:  # noqa: PTH208 - as above
            return set()  # else only its first thread has ended
        if b"Uid" not in fields:  # some sandboxes' kernels leave it out
            return {os.stat(f"/proc/{pid}").st_uid}  # noqa: PTH116 - as above
        return {int(word) for word in fields[b"Uid"].split()}
    except (OSError, KeyError, ValueError):  # it ended while we looked
        return set()


def _owners_of_files(uids: Iterable[int]) -> List[int]:
    wanted = set(uids)
    return [uid for folder in OPEN_TO_ALL for _, uid in _entries_of(folder) if uid in wanted]


def _entries_of(folder: str) -> List[Tuple[os.DirEntry[str], int]]:
    """What is directly in it, with its owner. Others come and go there all the time."""
    found: List[Tuple[os.DirEntry[str], int]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found.append((entry, entry.stat(follow_symlinks=False).st_uid))
                except OSError:  # it has gone
                    continue
    except OSError:  # the folder is not there
        return found
    return found


def _remove_files(uid: int) -> None:
    import shutil

    for folder in OPEN_TO_ALL:
        for entry, owner in _entries_of(folder):
            if owner == uid:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    _unlink(entry.path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - pathlib is not loaded here
    except OSError:
        return


def _ipc_of(uids: Set[int]) -> Iterable[Tuple[int, str, int]]:
    """Owner, kind and number of each object of System V's that one of these users owns or has made."""
    for kind, key in (("shm", b"shmid"), ("sem", b"semid"), ("msg", b"msqid")):
        try:
            with open(f"/proc/sysvipc/{kind}", "rb") as file:  # noqa: PTH123 - pathlib is not loaded here
                names, *rows = (line.split() for line in file.read().splitlines())
        except (OSError, ValueError):  # this kernel has none
            continue
        for row in rows:
            told = {name: row[at] for at, name in enumerate(names)}
            for owner in {int(told[b"uid"]), int(told[b"cuid"])} & uids:
                yield owner, kind, int(told[key])


def _remove_ipc(objects: List[Tuple[str, int]]) -> None:
    if not objects:
        return
    import ctypes

    libc = ctypes.CDLL(None)
    for kind, number in objects:
        if kind == "shm":
            libc.shmctl(number, _IPC_RMID, None)
        elif kind == "sem":
            libc.semctl(number, 0, _IPC_RMID)
        else:
            libc.msgctl(number, _IPC_RMID, None)


if __name__ == "__main__":
    sys.exit(main())
