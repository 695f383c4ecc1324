"""Blocks of user ids for machines: each is claimed on its host, by whoever starts the machine, while the machine lives.

A claim is the lock on a file in a folder that every installation on this host knows and only root can write. The kernel
releases it when its holder ends, however that ends. A block is free when its lock is, no process has a user of it, and
nobody on this host logs in with, or was promised, one of its ids. The first is the warden's (`sweep.py`), the others
are for user code.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Iterator, List, Mapping, Optional, Sequence

from workers.agent import sweep

SIZE = 512
USER_IDS = "ALLPASS_AGENT_USER_IDS"
NEXT_USER = "next_user"  # a file in an agent's folder, written before a user is given out
FOLDER = Path("/run/allpass-users")
# What systemd's table of user ids calls unused: above what 16 bits hold, hence above logins and its dynamic users, and
# below its containers; the subordinate ids that a host gives out (from 100,000 on) are left out. A container may know
# 16 bits only: then the upper end of what logins are given. A part is used when those before it are full.
DEFAULT = (range(65_536, 99_840), range(262_144, 524_288), range(55_296, 59_904))
_PROMISED = (Path("/etc/subuid"), Path("/etc/subgid"))


class NoneFree(OSError):
    """Says what was looked at, and what can be done."""


class Block:
    """Held until it is closed, or its holder ends. `lock` may be handed on to another process, which then holds it."""

    def __init__(self, first: int, lock: int) -> None:
        self.first = first
        self.lock = lock

    @property
    def uids(self) -> range:
        """Of user code."""
        return uids_of(self.first)

    def close(self) -> None:
        """It is not ours any more. Closing twice is harmless."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            os.close(lock)


def uids_of(first: int) -> range:
    """The users of a block; its warden is `first`."""
    return range(first + 1, first + SIZE)


def given_out(first: int, root: Path) -> range:
    """The users of a block that the agent of a machine, which works in `root`, may have given out."""
    try:
        beyond = int((root / NEXT_USER).read_text())
    except (OSError, ValueError):  # it had none, or is an agent that does not tell
        return uids_of(first)
    return range(first + 1, min(max(beyond, first + 2), first + SIZE))


def ranges(environ: Mapping[str, str]) -> Sequence[range]:
    """Where blocks are taken from. Raises ValueError for a setting that is none."""
    text = environ.get(USER_IDS, "")
    if not text:
        return DEFAULT
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit()) or int(last) + 1 - int(first) < SIZE or int(first) < sweep.LOWEST_UID:
        raise ValueError(
            f"{USER_IDS} is {text!r}; it must be two user numbers from {sweep.LOWEST_UID} on, at least {SIZE} of them,"
            " e.g. 65536-99839"
        )
    return [range(int(first), int(last) + 1)]


def claim(among: Sequence[range], folder: Path = FOLDER) -> Block:
    """A block that nobody else uses. Raises NoneFree."""
    count, locks = 0, _folder(folder)
    try:
        for part in among:
            blocks = _blocks(part)
            count += len(blocks)
            start = os.getpid() % max(1, len(blocks))  # a block that was in use just now is not the next one
            for first in blocks[start:] + blocks[:start]:
                block = _claim(first, locks)
                if block is not None:
                    return block
    finally:
        os.close(locks)
    if count == 0:
        raise NoneFree(f"this system knows no block of {SIZE} free user ids; set {USER_IDS} to a range that it knows")
    raise NoneFree(
        f"all {count} blocks of user ids of this host are in use: end machines that are not needed, or set"
        f" {USER_IDS} to a larger range"
    )


def reclaim(first: int, folder: Path = FOLDER) -> Optional[Block]:
    """A block whose holder has ended, to clear it up; None when somebody holds it: then nothing was left there."""
    locks = _folder(folder)
    try:
        lock = _lock(first, locks)
    finally:
        os.close(locks)
    return None if lock is None else Block(first, lock)


def _claim(first: int, locks: int) -> Optional[Block]:
    lock = _lock(first, locks)
    if lock is None:
        return None
    everyone = range(first, first + SIZE)
    if sweep.processes_of(everyone) or sweep.processes_of(everyone):  # a fork may slip past one look
        os.close(lock)
        return None
    return Block(first, lock)


def _lock(first: int, locks: int) -> Optional[int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(str(first), flags, 0o600, dir_fd=locks)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _folder(folder: Path) -> int:
    """Open it, made if need be. Raises NoneFree for one that others could play with."""
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NoneFree(f"blocks of user ids are claimed in {folder}, which cannot be had: {error.strerror}") from error
    facts = os.fstat(opened)
    if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(opened)
        raise NoneFree(f"{folder} can be written by others: remove it, and it is made anew")
    return opened


def _blocks(part: range) -> List[int]:
    """The blocks of a range that mean nobody on this host, as far as that is written anywhere."""
    taken = list(_taken(part))
    known = _known("uid_map", part), _known("gid_map", part)
    aligned = range(-(-part.start // SIZE) * SIZE, part.stop - SIZE + 1, SIZE)
    return [
        first
        for first in aligned
        if not any(one.start < first + SIZE and first < one.stop for one in taken)
        and all(any(one.start <= first and first + SIZE <= one.stop for one in parts) for parts in known)
    ]


def _taken(part: range) -> Iterator[range]:
    import grp
    import pwd

    numbers = [entry.pw_uid for entry in pwd.getpwall()] + [entry.gr_gid for entry in grp.getgrall()]
    yield from (range(number, number + 1) for number in numbers if number in part)
    for file in _PROMISED:
        for fields in _lines(file, ":"):
            if len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit():
                yield range(int(fields[1]), int(fields[1]) + int(fields[2]))


def _known(name: str, part: range) -> List[range]:
    """The numbers that mean anything in here: a container may know some only."""
    file = Path("/proc/self") / name
    rows = [[int(field) for field in fields] for fields in _lines(file, None)]
    return [range(row[0], row[0] + row[2]) for row in rows] if rows else [part]


def _lines(file: Path, separator: Optional[str]) -> List[List[str]]:
    try:
        return [line.split(separator) for line in file.read_text().splitlines()]
    except (OSError, ValueError):
        return []
