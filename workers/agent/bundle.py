"""Unpacking a job's code. A bundle is a tar, compressed or not; nothing in it may leave its folder, and links and
devices are refused outright.

The service refuses such bundles when they are registered; it did not always. What is wrong with a bundle is wrong on
every machine: it is told as Unsafe, and never as a failure of this one.
"""

from __future__ import annotations

import errno
import lzma
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from workers.agent.errors import Unsafe

MOST_FILES = 100_000
MOST_BYTES = 8 * 1024**3
LARGEST_HEADER_BYTES = 1024 * 1024
LONGEST_NAME_BYTES = 255
LONGEST_PATH_BYTES = 3000  # below the run's folder, which has a path of its own
_INTERPRETED = b"#!"  # who wrote it means it to be executed; a bundle does not say so, for not every system knows it
_HEADERS = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME})
# What the system says of names that contradict each other, wherever they are unpacked.
_OF_THE_NAMES = frozenset({errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})


class _Entry(tarfile.TarInfo):
    """Refused before it is read: headers are read into memory whole."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> "_Entry":
        entry = super().frombuf(buf, encoding, errors)
        if entry.size < 0 or (entry.type in _HEADERS and entry.size > LARGEST_HEADER_BYTES):
            raise Unsafe(f"the bundle has an entry with a header of {entry.size} bytes")
        if entry.issparse() or entry.type == tarfile.GNUTYPE_SPARSE:
            raise Unsafe(f"the bundle's entry {entry.name!r} is a sparse file; only ordinary ones may be in it")
        return entry


def extract(archive: Path, target: Path) -> None:
    """Unpack `archive` into the empty folder `target`. Raises Unsafe, naming the entry, for a bundle that cannot be
    unpacked on any machine; OSError for what is this machine's doing."""
    count = total_bytes = 0
    try:
        with tarfile.open(archive, "r:*", tarinfo=_Entry) as tar:
            for member in tar:
                count += 1
                total_bytes += member.size
                if count > MOST_FILES or total_bytes > MOST_BYTES:
                    raise Unsafe(f"the bundle unpacks to more than {MOST_FILES} files or {MOST_BYTES} bytes")
                _write(tar, member, target)
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, ValueError, RecursionError) as error:
        raise Unsafe(f"the bundle is not a whole tar: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise Unsafe(f"the bundle is damaged: {error}") from error  # what decompresses says so, not the system


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    path = target / _safe_name(member.name)
    try:
        _unpack(tar, member, path)
    except OSError as error:
        if error.errno not in _OF_THE_NAMES:
            raise
        raise Unsafe(f"the bundle's entry {member.name[:200]!r} cannot be unpacked: {error.strerror}") from error


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise Unsafe(f"the bundle's entry {member.name!r} is a link or device; only files and folders may be in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        start = content.read(len(_INTERPRETED))
        file.write(start)
        shutil.copyfileobj(content, file)
    path.chmod(0o755 if start == _INTERPRETED or member.mode & 0o111 else 0o644)


def _safe_name(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\x00" in name:
        raise Unsafe(f"the bundle's entry {name[:200]!r} would leave its folder")
    long = any(len(os.fsencode(part)) > LONGEST_NAME_BYTES for part in path.parts)
    if long or len(os.fsencode(name)) > LONGEST_PATH_BYTES:
        raise Unsafe(f"the bundle's entry {name[:200]!r}... has too long a name")
    return path
