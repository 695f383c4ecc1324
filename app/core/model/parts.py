"""A checkpoint of which each machine of a job writes a part: the files of all of them by path, in one manifest.

A path that several machines have written is one file where the bytes are the same. Pieces tell that only as far as both
were cut alike: what they do not tell (`UnsureFile`) is for whoever can read the bytes.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from app.core.model.checkpoint import SavedFile, Span, check_saved
from app.core.model.listing import MAX_LISTED_FILES, MAX_LISTING_BYTES, ListedFile, files_in, stream_of, unpack
from app.errors import InvalidInput

MAX_ROWS = 10_000  # files of one manifest that have rows of their own: more are a listing
MAX_OPEN_STEPS = 3  # of each machine: steps of which it has told a part, and that are not complete


@dataclass(frozen=True, slots=True)
class Part:
    """What machine `rank` has written. `listing`: of very many files, of which `files` is the one stream."""

    rank: int
    files: tuple[SavedFile, ...]
    listing: bytes | None = None

    def unpacked(self) -> tuple[SavedFile, ...]:
        """Every file by itself. Raises InvalidInput for a listing that is none."""
        if self.listing is None:
            return self.files
        (stream,) = self.files
        return tuple(files_in(stream, unpack(self.listing), None, MAX_LISTED_FILES))


@dataclass(frozen=True, slots=True)
class Whole:
    """As it is written down: with a row for each file, or with a listing and one stream."""

    files: tuple[SavedFile, ...]
    listing: bytes | None = None
    file_count: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class UnsureFile:
    """Two machines have written this path, as many bytes each, in pieces that do not tell whether they are the same."""

    path: str
    one: tuple[int, SavedFile]  # rank, file
    other: tuple[int, SavedFile]


def doubts_of(parts: Sequence[Part]) -> list[UnsureFile]:
    """By path. Raises InvalidInput where two machines have written other bytes for sure."""
    first: dict[str, tuple[int, SavedFile]] = {}
    found: list[UnsureFile] = []
    for part in sorted(parts, key=lambda part: part.rank):
        for file in part.unpacked():
            rank, known = first.setdefault(file.path, (part.rank, file))
            if rank == part.rank or known.spans == file.spans:
                continue
            if known.size_bytes != file.size_bytes or (_is_one_piece(known) and _is_one_piece(file)):
                raise clash(file.path, rank, part.rank)
            found.append(UnsureFile(file.path, (rank, known), (part.rank, file)))
    return sorted(found, key=lambda doubt: (doubt.path, doubt.other[0]))


def put_together(parts: Sequence[Part]) -> Whole:
    """The checkpoint, where all doubts have turned out to be none: the first machine's file stands for all that have
    its path. Raises InvalidInput for what no checkpoint may hold, naming machines and paths."""
    ordered = sorted(parts, key=lambda part: part.rank)
    owners: dict[str, int] = {}
    files: dict[str, SavedFile] = {}
    for part in ordered:
        for file in part.unpacked():
            if owners.setdefault(file.path, part.rank) == part.rank:
                files[file.path] = file
    _check_folders(owners)
    if not files:
        raise InvalidInput("no machine has written a file", param="files")
    if len(files) <= MAX_ROWS:
        saved = tuple(files[path] for path in sorted(files))
        check_saved(saved)
        return Whole(saved, None, len(saved))
    return _listed(ordered, owners)


def clash(path: str, rank: int, other: int) -> InvalidInput:
    """Never silently one of them."""
    return InvalidInput(
        f"machine {rank} and machine {other} have both written {path!r}, and not the same bytes: let one of them write "
        "it, or give it another name on each machine",
        param="files",
    )


def without_part(ranks: Collection[int]) -> str:
    """Machines, as a sentence begins with them."""
    listed = sorted(ranks)
    if len(listed) == 1:
        return f"machine {listed[0]} has not written its part"
    return f"machines {', '.join(map(str, listed[:-1]))} and {listed[-1]} have not written their parts"


def pack_files(files: Iterable[SavedFile]) -> bytes:
    """As a part is kept in one row."""
    told = [[file.path, file.size_bytes, [list(astuple(span)) for span in file.spans]] for file in files]
    return zlib.compress(json.dumps(told, separators=(",", ":")).encode())


def unpack_files(packed: bytes) -> tuple[SavedFile, ...]:
    """What `pack_files` has packed: it is ours, and believed."""
    told: Any = json.loads(zlib.decompress(packed))
    return tuple(SavedFile(path, size, tuple(Span(*span) for span in spans)) for path, size, spans in told)


def _is_one_piece(file: SavedFile) -> bool:
    """Its hash says all: another hash is other content."""
    return not file.spans or file.sha256 is not None


def _check_folders(owners: dict[str, int]) -> None:
    for path, rank in owners.items():
        parts = path.split("/")
        for count in range(1, len(parts)):
            other = owners.get("/".join(parts[:count]))
            if other is not None:
                raise InvalidInput(
                    f"{'/'.join(parts[:count])!r} is a file on machine {other}, and a folder on machine {rank}: give "
                    "one of them another name",
                    param="files",
                )


def _listed(parts: Sequence[Part], owners: dict[str, int]) -> Whole:
    """Very many files are one stream: the streams of all machines, one after the other. A file that stands twice in it
    can be left out only with whole pieces."""
    entries: list[ListedFile] = []
    pieces: list[tuple[str, int]] = []
    for part in parts:
        if part.listing is None:
            own, cut = _as_stream([file for file in part.files if _is_left(part, file, owners)])
        else:
            _check_own(part, owners)
            own = list(unpack(part.listing))
            cut = [(span.sha256, span.piece_bytes) for span in part.files[0].spans]
        entries += own
        pieces += cut
    if len(entries) > MAX_LISTED_FILES:
        raise InvalidInput(
            f"the parts have {len(entries):,} files together, and a checkpoint at most {MAX_LISTED_FILES:,}: pack them",
            param="files",
        )
    stream = stream_of(entries, pieces)
    told = json.dumps([[entry.path, entry.size_bytes] for entry in entries], separators=(",", ":"))
    listing = zlib.compress(told.encode())
    if len(listing) > MAX_LISTING_BYTES:
        raise InvalidInput(
            f"the list of its {len(entries):,} files has {len(listing):,} bytes when it is packed, and at most "
            f"{MAX_LISTING_BYTES:,} can be kept: pack files together, or give them shorter names",
            param="files",
        )
    return Whole((stream,), listing, len(entries))


def _is_left(part: Part, file: SavedFile, owners: dict[str, int]) -> bool:
    if owners[file.path] == part.rank:
        return True
    if all(span.start_byte == 0 and span.length_bytes == span.piece_bytes for span in file.spans):
        return False
    raise _twice(file.path, owners[file.path], part.rank)


def _check_own(part: Part, owners: dict[str, int]) -> None:
    for entry in unpack(part.listing or b""):
        if owners[entry.path] != part.rank:
            raise _twice(entry.path, owners[entry.path], part.rank)


def _twice(path: str, rank: int, other: int) -> InvalidInput:
    return InvalidInput(
        f"machine {rank} and machine {other} have both written {path!r}: in a checkpoint of more than {MAX_ROWS:,} "
        "files let only one of them write it",
        param="files",
    )


def _as_stream(files: Sequence[SavedFile]) -> tuple[list[ListedFile], list[tuple[str, int]]]:
    """Files and pieces in an order in which the pieces' bytes are the files', one after the other. Raises InvalidInput
    for a piece of which not every byte is one of a file."""
    entries: list[ListedFile] = []
    pieces: list[tuple[str, int]] = []
    packs: dict[tuple[str, int], dict[int, list[SavedFile]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        if all(span.start_byte == 0 and span.length_bytes == span.piece_bytes for span in file.spans):
            entries.append(ListedFile(file.path, file.size_bytes))
            pieces += [(span.sha256, span.piece_bytes) for span in file.spans if span.piece_bytes]
        elif len(file.spans) == 1 and file.size_bytes:
            span = file.spans[0]
            packs[span.sha256, span.piece_bytes][span.start_byte].append(file)
        else:
            raise _gap(file.path)
    for (sha256, size), starts in packs.items():
        while starts:
            at = 0
            while at < size:
                found = starts.get(at)
                if not found:
                    raise _gap(next(iter(starts.values()))[0].path if starts else sha256)
                file = found.pop()
                if not found:
                    del starts[at]
                entries.append(ListedFile(file.path, file.size_bytes))
                at += file.size_bytes
            pieces.append((sha256, size))
    return entries, pieces


def _gap(path: str) -> InvalidInput:
    return InvalidInput(f"the pieces of {path!r} hold bytes of no file: pack them anew", param="files")
