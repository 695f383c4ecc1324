"""Files from signed links onto this disk: verified, atomic, and never outside the folder they were asked into."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from allpass.errors import StorageError
from allpass.wire.jobs import FileLink, PieceLink

_DRIVE = re.compile(r"^[A-Za-z]:")
_CHUNK_BYTES = 1 << 20


class Sink(Protocol):
    """Where the bytes of one answer go."""

    def open(self) -> None: ...

    def write(self, chunk: bytes) -> None: ...

    def commit(self) -> object: ...

    def discard(self) -> None: ...


class FileSink:
    """Receives one file's bytes beside its place and moves it there when they are complete and right."""

    def __init__(self, link: FileLink, sha256: str, directory: Path) -> None:
        self.link = link
        self.sha256 = sha256
        self.target = place_for(link.path, directory)
        self._part = self.target.with_name(f".{self.target.name[:100]}.{sha256[:12]}.part")
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self.received_bytes = 0

    def is_there_already(self) -> bool:
        """Whether the place holds this very content, from an earlier download."""
        if not self.target.is_file() or self.target.stat().st_size != self.link.size_bytes:
            return False
        return file_sha256(self.target) == self.sha256

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
        if self._digest.hexdigest() != self.sha256 or self.received_bytes != self.link.size_bytes:
            self.discard()
            raise StorageError(
                f"{self.link.path}: what arrived ({self.received_bytes} of {self.link.size_bytes} bytes) does not have "
                f"the sha256 {self.sha256[:12]}...",
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


class Assembly:
    """A file whose bytes come in pieces, put together beside its place and moved there when all are right."""

    def __init__(self, link: FileLink, directory: Path) -> None:
        self.link = link
        self.target = place_for(link.path, directory)
        self.part = self.target.with_name(f".{self.target.name[:100]}.pieces.part")

    def is_there_already(self) -> bool:
        """Whether the place holds this very content. Never said of files that share a piece: their own hash is not
        known."""
        if not self.target.is_file() or self.target.stat().st_size != self.link.size_bytes:
            return False
        if any(piece.length != piece.size_bytes for piece in self.link.pieces):
            return False
        with self.target.open("rb") as file:
            return all(_next_sha256(file, piece.length) == piece.sha256 for piece in self.link.pieces)

    def begin(self) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self.part.write_bytes(b"")

    def take(self, piece: PieceLink, content: bytes) -> None:
        """Append the file's share of a piece that is in memory already."""
        with self.part.open("ab") as file:
            file.write(content[piece.start : piece.start + piece.length])

    def commit(self) -> str:
        """Move the file into its place; its sha256. StorageError if it has not the size that it should have."""
        size_bytes = self.part.stat().st_size
        if size_bytes != self.link.size_bytes:
            raise StorageError(f"{self.link.path}: its pieces hold {size_bytes} of {self.link.size_bytes} bytes")
        with self.part.open("r+b") as file:  # Windows syncs nothing that is only read
            os.fsync(file.fileno())
        self.part.replace(self.target)
        return file_sha256(self.target)

    def discard(self) -> None:
        self.part.unlink(missing_ok=True)


class PieceSink:
    """Receives one piece; its file's share of it is appended to the assembly once all of it is right.

    A piece that several files share is small: it is kept as `content` for the next of them.
    """

    def __init__(self, assembly: Assembly, piece: PieceLink) -> None:
        self._assembly = assembly
        self._piece = piece
        self._is_shared = piece.length != piece.size_bytes
        self._begin_bytes = assembly.part.stat().st_size
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._received_bytes = 0
        self.content = b""

    def open(self) -> None:
        """Start over. Called before the first byte of each attempt."""
        self.discard()
        self._digest, self._received_bytes, self.content = hashlib.sha256(), 0, b""
        self._file = self._assembly.part.open("r+b")
        self._file.truncate(self._begin_bytes)
        self._file.seek(self._begin_bytes)

    def write(self, chunk: bytes) -> None:
        """Take the next bytes. More than the link promised is an error, at once."""
        if self._file is None:
            raise RuntimeError("open() comes before write()")
        self._received_bytes += len(chunk)
        if self._received_bytes > self._piece.size_bytes:
            raise StorageError(f"{self._assembly.link.path}: the store sends more than the piece has")
        self._digest.update(chunk)
        if self._is_shared:
            self.content += chunk
        else:
            self._file.write(chunk)

    def commit(self) -> None:
        """Verify; StorageError if the content is not what its hash says."""
        self.discard()
        if self._digest.hexdigest() != self._piece.sha256 or self._received_bytes != self._piece.size_bytes:
            raise StorageError(
                f"{self._assembly.link.path}: a piece of it arrived without its sha256 {self._piece.sha256[:12]}...",
                hint="download again",
            )
        if self._is_shared:
            self._assembly.take(self._piece, self.content)

    def discard(self) -> None:
        """Let go of the file; what was written is overwritten by the next attempt."""
        if self._file is not None:
            self._file.close()
            self._file = None


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


def _next_sha256(file: IO[bytes], size_bytes: int) -> str:
    digest = hashlib.sha256()
    while size_bytes > 0 and (chunk := file.read(min(_CHUNK_BYTES, size_bytes))):
        digest.update(chunk)
        size_bytes -= len(chunk)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """The hex digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
