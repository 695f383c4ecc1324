"""Files from signed links onto this disk: verified, atomic, and never outside the folder they were asked into."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import IO

from allpass.errors import StorageError
from allpass.wire.jobs import FileLink

_DRIVE = re.compile(r"^[A-Za-z]:")
_CHUNK_BYTES = 1 << 20


class FileSink:
    """Receives one file's bytes beside its place and moves it there when they are complete and right."""

    def __init__(self, link: FileLink, directory: Path) -> None:
        self.link = link
        self.target = place_for(link.path, directory)
        self._part = self.target.with_name(f".{self.target.name[:100]}.{link.sha256[:12]}.part")
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self.received_bytes = 0

    def is_there_already(self) -> bool:
        """Whether the place holds this very content, from an earlier download."""
        if not self.target.is_file() or self.target.stat().st_size != self.link.size_bytes:
            return False
        return file_sha256(self.target) == self.link.sha256

    def open(self) -> None:
        """Start over. Called before the first byte of each attempt."""
        self.discard()
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._part.open("wb")
        self._digest = hashlib.sha256()
        self.received_bytes = 0

    def write(self, chunk: bytes) -> None:
        """Take the next bytes. More than the link promised is an error, at once."""
        if self._file is None:
            raise RuntimeError("open() comes before write()")
        self.received_bytes += len(chunk)
        if self.received_bytes > self.link.size_bytes:
            raise StorageError(f"{self.link.path}: the store sends more than the {self.link.size_bytes} bytes it has")
        self._digest.update(chunk)
        self._file.write(chunk)

    def commit(self) -> Path:
        """Verify and move into place; StorageError if the content is not what its hash says."""
        if self._file is None:
            raise RuntimeError("open() comes before commit()")
        if self._digest.hexdigest() != self.link.sha256 or self.received_bytes != self.link.size_bytes:
            self.discard()
            raise StorageError(
                f"{self.link.path}: what arrived ({self.received_bytes} of {self.link.size_bytes} bytes) does not have "
                f"the sha256 {self.link.sha256[:12]}...",
                hint="download again",
            )
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        self._part.replace(self.target)
        return self.target

    def discard(self) -> None:
        """Leave nothing behind. Harmless when there is nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._part.unlink(missing_ok=True)


def place_for(path: str, directory: Path) -> Path:
    """Where a file called `path` belongs below `directory`; StorageError for a name that leads out of it."""
    pure = PurePosixPath(path)
    parts = pure.parts
    if not parts or pure.is_absolute() or ".." in parts or "\\" in path or "\0" in path or _DRIVE.match(path):
        raise StorageError(f"{path!r}: a file of this name is not written: it leads outside {directory}")
    root = directory.resolve()
    target = root.joinpath(*parts)
    if not target.parent.resolve().is_relative_to(root):
        raise StorageError(f"{path!r}: is not written: a link in {directory} leads outside it", hint="use a new folder")
    return target


def file_sha256(path: Path) -> str:
    """The hex digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
