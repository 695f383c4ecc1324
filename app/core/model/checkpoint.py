"""A checkpoint: a committed, checksummed manifest of files, which are made of content-addressed pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Protocol

from app.errors import InvalidInput

SHA256_HEX = re.compile(r"^[0-9a-f]{64}\Z")
MAX_PATH_CHARS = 512
MAX_PIECES = 20_000


class CheckpointState(StrEnum):
    COMING = "coming"  # still being written; what is stored of it already is pinned, and may be fetched ahead
    OPEN = "open"  # its pieces are being uploaded and are pinned
    COMMITTED = "committed"  # complete, verified, may be resumed from
    ABORTED = "aborted"
    PRUNED = "pruned"  # complete once; let go of by its job's retention rule
    DAMAGED = "damaged"  # complete once; a piece of it was lost or changed in the store


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its path inside the checkpoint (relative, `/` separated), content hash and size."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Span:
    """`length_bytes` bytes from `start_byte` on of the stored piece `sha256`, which has `piece_bytes` in all."""

    sha256: str
    piece_bytes: int
    start_byte: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of a checkpoint: its spans in order are its content. A large file has many pieces; many small files may
    share one."""

    path: str
    size_bytes: int
    spans: tuple[Span, ...]

    @classmethod
    def whole(cls, path: str, sha256: str, size_bytes: int) -> SavedFile:
        """A file that is one piece of its own."""
        return cls(path, size_bytes, (Span(sha256, size_bytes, 0, size_bytes),))

    @property
    def sha256(self) -> str | None:
        """The hash of the file's content, if it is one piece of its own."""
        whole = len(self.spans) == 1 and self.spans[0] == Span(
            self.spans[0].sha256, self.size_bytes, 0, self.size_bytes
        )
        return self.spans[0].sha256 if whole else None


class _Named(Protocol):
    @property
    def path(self) -> str: ...


def check_saved(files: tuple[SavedFile, ...]) -> None:
    """Refuse what no checkpoint may hold: bad paths, hashes that are none, spans that are not in their piece or do
    not add up. Raises InvalidInput naming the entry."""
    check_paths(files)
    if sum(len(file.spans) for file in files) > MAX_PIECES:
        raise InvalidInput(f"a checkpoint has at most {MAX_PIECES} pieces; cut larger ones", param="files")
    for index, file in enumerate(files):
        for number, span in enumerate(file.spans):
            where = f"files[{index}].pieces[{number}]" if file.sha256 is None else f"files[{index}]"
            if not SHA256_HEX.match(span.sha256):
                raise InvalidInput("not a lower-case sha256 in hex", param=f"{where}.sha256")
            end = span.start_byte + span.length_bytes
            if min(span.start_byte, span.length_bytes) < 0 or end > span.piece_bytes:
                raise InvalidInput(
                    f"bytes {span.start_byte} to {end} are not in a piece of {span.piece_bytes}",
                    param=f"{where}.size_bytes",
                )
        total = sum(span.length_bytes for span in file.spans)
        if total != file.size_bytes:
            raise InvalidInput(
                f"its pieces hold {total} bytes, not {file.size_bytes}", param=f"files[{index}].size_bytes"
            )


def check_entries(entries: tuple[FileEntry, ...]) -> None:
    """Refuse paths that leave the directory, repeat or collide, and hashes that are none.

    Raises InvalidInput naming the entry.
    """
    check_paths(entries)
    for index, entry in enumerate(entries):
        if not SHA256_HEX.match(entry.sha256):
            raise InvalidInput("not a lower-case sha256 in hex", param=f"files[{index}].sha256")
        if entry.size_bytes < 0:
            raise InvalidInput("a size is never negative", param=f"files[{index}].size_bytes")


def check_paths(entries: Sequence[_Named]) -> None:
    """Refuse paths that leave the directory, repeat or collide. Raises InvalidInput naming the entry."""
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        parts = entry.path.split("/")
        bad_part = any(part in ("", ".", "..") for part in parts)
        if bad_part or "\\" in entry.path or "\x00" in entry.path or len(entry.path) > MAX_PATH_CHARS:
            raise InvalidInput(f"{entry.path!r} is not a relative path inside the folder", param=f"files[{index}].path")
        if entry.path in seen:
            raise InvalidInput(f"{entry.path!r} is named twice", param=f"files[{index}].path")
        seen.add(entry.path)
    for index, entry in enumerate(entries):
        parents = accumulate(entry.path.split("/")[:-1], "{}/{}".format)
        if taken := next((parent for parent in parents if parent in seen), None):
            raise InvalidInput(f"{taken!r} is a file and cannot be a folder too", param=f"files[{index}].path")


def folders_of(paths: Iterable[str]) -> set[str]:
    """All folders that these are in."""
    return {folder for path in paths for folder in accumulate(path.split("/")[:-1], "{}/{}".format)}
