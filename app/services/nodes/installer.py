"""uv for rented machines: many have no pip that could build an environment, and none is as fast.

The one that this installation has by its own dependencies is for machines like the server; for others there is a folder
of the settings. What is in neither is not there, and machines do without.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_log = logging.getLogger(__name__)
_HEAD_BYTES = 20
_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}  # as a program's head says it, and as `uname -m` does
_PACKING_LEVEL = 3  # most of what there is to gain, in half of the time
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class InstallerProgram:
    """`sha256` and `size_bytes` are of the program, `packed` is that in gzip."""

    sha256: str
    size_bytes: int
    packed: bytes


def installer_for(machine: str, folder: Path | None) -> InstallerProgram | None:
    """uv for machines of this kind (`x86_64`, `aarch64`). Takes a moment the first time: not for an event loop."""
    with _lock:  # else all machines of a first moment would have it packed once each
        return _programs(folder).get(machine)


def installer_named(sha256: str, folder: Path | None) -> InstallerProgram | None:
    """The one with this content."""
    with _lock:
        return next((one for one in _programs(folder).values() if one.sha256 == sha256), None)


@cache
def _programs(folder: Path | None) -> Mapping[str, InstallerProgram]:
    found: dict[str, InstallerProgram] = {}
    for path in _candidates(folder):
        try:
            data = path.read_bytes()
        except OSError as error:
            _log.warning("%s cannot be read, and is not given to machines: %s", path, error.strerror)
            continue
        machine = machine_of(data)
        if machine is not None and machine not in found:
            packed = gzip.compress(data, _PACKING_LEVEL, mtime=0)
            found[machine] = InstallerProgram(hashlib.sha256(data).hexdigest(), len(data), packed)
    return found


def _candidates(folder: Path | None) -> Iterator[Path]:
    """The operator's before our own."""
    if folder is not None:
        yield from sorted(path for path in folder.glob("uv*") if path.is_file())
    try:
        import uv

        yield Path(uv.find_uv_bin())
    except (ImportError, OSError):
        _log.warning("the package uv is not installed here: machines build environments with their own pip")


def machine_of(program: bytes) -> str | None:
    """For which machines with Linux it is built; None for what is no such program."""
    head = program[:_HEAD_BYTES]
    if len(head) < _HEAD_BYTES or not head.startswith(_ELF_64_LITTLE):
        return None
    return _MACHINES.get(int.from_bytes(head[18:20], "little"))
