"""Unpacking a job's code. A bundle is a tar, compressed or not; nothing in it may leave its folder, and links and
devices are refused outright."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from workers.agent.errors import Unsafe

MOST_FILES = 100_000
MOST_BYTES = 8 * 1024**3


def extract(archive: Path, target: Path) -> None:
    """Unpack `archive` into the empty folder `target`. Raises Unsafe, naming the entry, before writing that entry."""
    count = total_bytes = 0
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                count += 1
                total_bytes += member.size
                if count > MOST_FILES or total_bytes > MOST_BYTES:
                    raise Unsafe(f"the bundle unpacks to more than {MOST_FILES} files or {MOST_BYTES} bytes")
                _write(tar, member, target)
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError) as error:
        raise Unsafe(f"the bundle is not a whole tar: {error}") from error


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    path = target / _safe_name(member.name)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise Unsafe(f"the bundle's entry {member.name!r} is a link or device; only files and folders may be in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o755 if member.mode & 0o111 else 0o644)


def _safe_name(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\x00" in name:
        raise Unsafe(f"the bundle's entry {name!r} would leave its folder")
    return path
