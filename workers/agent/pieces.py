"""Checkpoints in pieces: a large file is cut, small files are packed together, and each piece is named by its hash.

Pieces are what travels and what is stored, each content once: the part of a file that did not change since the last
checkpoint is never sent again.
"""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from workers.agent.errors import Aborted, Changed, Unsafe
from workers.agent.files import BLOCK_BYTES, Fence
from workers.agent.listing import as_listing, files_listed
from workers.agent.notes import Note, note_of
from workers.agent.refusals import shown
from workers.agent.transfers import TransferProgress, Transfers, in_transfer

PIECE_BYTES = 16 * 1024 * 1024
MOST_PIECES = 4096  # of one checkpoint, about: larger ones are cut into larger pieces
PACKED_BELOW_BYTES = 64 * 1024
PACK_BYTES = 1024 * 1024
LISTED_ABOVE = 10_000  # files: more are told as a listing, and larger ones are packed too
PARALLEL = 4
OFFSET_UNIT_BYTES = 4096  # where pieces of a large file begin, for whoever is told of them one by one


@dataclass(frozen=True)
class Span:
    """`length` bytes from `start` on of the piece `sha256`, which has `size_bytes`."""

    sha256: str
    size_bytes: int
    start: int
    length: int


@dataclass(frozen=True)
class SavedFile:
    """A file of a checkpoint; its spans in order are its content."""

    path: str
    size_bytes: int
    spans: Tuple[Span, ...]

    def as_wire(self) -> Dict[str, Any]:
        if len(self.spans) == 1 and self.spans[0].size_bytes == self.size_bytes:
            return {"path": self.path, "size_bytes": self.size_bytes, "sha256": self.spans[0].sha256}
        return {"path": self.path, "size_bytes": self.size_bytes, "pieces": [vars(span) for span in self.spans]}


@dataclass(frozen=True)
class Manifest:
    """A checkpoint as the server tells it."""

    checkpoint_id: str
    step: int
    files: Tuple[SavedFile, ...]

    @classmethod
    def from_wire(cls, told: Mapping[str, Any]) -> "Manifest":
        files = [_saved_file(one) for one in told["files"]]
        if told.get("listing") is not None:
            for path, size_bytes, places in files_listed(told["listing"]):
                files.append(SavedFile(path, size_bytes, tuple(Span(*place) for place in places)))
        return cls(str(told["checkpoint_id"]), int(told["step"]), tuple(files))

    def pieces(self) -> Dict[str, int]:
        """The distinct pieces: sha256 -> size in bytes."""
        return {span.sha256: span.size_bytes for file in self.files for span in file.spans}


@dataclass(frozen=True)
class FilePart:
    """A stretch of a file on this disk."""

    name: str
    offset: int
    length: int


@dataclass(frozen=True)
class Content:
    """A piece that can be sent: its name, and the stretches of files below `folder` that it consists of."""

    fence: Fence
    folder: Path
    sha256: str
    size_bytes: int
    parts: Tuple[FilePart, ...]

    def files(self) -> Iterator[Tuple[BinaryIO, int, int]]:
        """Opened files with offset and length, one after the other. Raises Unsafe; OSError."""
        for part in self.parts:
            with self.fence.open(self.folder / part.name) as file:
                yield file, part.offset, part.length


@dataclass(frozen=True)
class CutFolder:
    """A folder in pieces. `contents`: each piece once, by its hash. `unproven`: hashes that only the files' writer has
    made. `stream`: the pieces in an order in which they are the files, one after the other in theirs."""

    files: Tuple[SavedFile, ...]
    contents: Dict[str, Content]
    unproven: FrozenSet[str] = frozenset()
    stream: Tuple[str, ...] = ()

    @property
    def is_listed(self) -> bool:
        """Whether there are so many files that they are told as a listing."""
        return len(self.files) > LISTED_ABOVE

    def as_wire(self) -> Dict[str, Any]:
        if not self.is_listed:
            return {"files": [file.as_wire() for file in self.files]}
        pieces = [(sha256, self.contents[sha256].size_bytes) for sha256 in self.stream]
        return {"files": [], "listing": as_listing([(file.path, file.size_bytes) for file in self.files], pieces)}

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def cut(
    fence: Fence,
    folder: Path,
    names: Sequence[str],
    gone: threading.Event,
    *,
    believing: bool = True,
    transfers: Optional[Transfers] = None,
    machines: int = 1,
) -> CutFolder:
    """Name and hash the pieces of these files as they are now, several at a time. What a file's note says of it is
    taken over, if `believing`. `machines`: so many write parts like this one, whose pieces are those of one checkpoint.

    Raises Unsafe for what may not be read or could be restored nowhere, Changed when a file shrinks meanwhile, Aborted;
    OSError.
    """
    sizes: Dict[str, int] = {}
    is_listed = len(names) > LISTED_ABOVE
    noted: List[Tuple[str, Tuple[FilePart, ...]]] = []  # hash, piece
    for name in names:
        facts = _facts(fence, folder / name)
        sizes[name] = facts.st_size
        may_have_note = believing and facts.st_size >= (PIECE_BYTES if is_listed else PACKED_BELOW_BYTES)
        note = note_of(fence, folder / name) if may_have_note else None
        if note is not None and note.is_of(facts):
            noted += [(note.hashes[number], (noted_part(name, note, number),)) for number in range(note.count)]
    _check_size(folder, sizes)
    told = {parts[0].name for _, parts in noted}
    rest = {name: size for name, size in sizes.items() if name not in told}
    planned = list(_plan(rest, machines * sum(sizes.values()), is_listed=is_listed))
    hashes = _hashes(fence, folder, planned, gone, transfers)
    spans: Dict[str, List[Span]] = {name: [] for name in names}
    contents: Dict[str, Content] = {}
    for sha256, parts in [*noted, *zip(hashes, planned)]:  # noqa: B905 - Python 3.9 has no strict
        size_bytes = sum(part.length for part in parts)
        contents[sha256] = Content(fence, folder, sha256, size_bytes, parts)
        start = 0
        for part in parts:
            spans[part.name].append(Span(sha256, size_bytes, start, part.length))
            start += part.length
    pieces = [*noted, *zip(hashes, planned)]  # noqa: B905 - Python 3.9 has no strict
    order = dict.fromkeys(part.name for _, parts in pieces for part in parts) if is_listed else {}
    order.update(dict.fromkeys(names))  # those without bytes come last
    files = tuple(SavedFile(name, sizes[name], tuple(spans[name])) for name in order)
    unproven = frozenset(sha256 for sha256, _ in noted).difference(hashes)
    return CutFolder(files, contents, unproven, tuple(sha256 for sha256, _ in pieces))


def _check_size(folder: Path, sizes: Mapping[str, int]) -> None:
    """Files with holes may claim more than any disk has."""
    disk = os.statvfs(folder)
    total, room = sum(sizes.values()), disk.f_blocks * disk.f_frsize
    if total > room:
        largest = max(sizes, key=lambda name: sizes[name])
        raise Unsafe(
            f"its files have {total:,} bytes, more than the whole disk that they lie on ({room:,}), and could be "
            f"restored nowhere; the largest is {shown(largest)} ({sizes[largest]:,} bytes): write it without holes"
        )


def _hashes(
    fence: Fence,
    folder: Path,
    planned: Sequence[Tuple[FilePart, ...]],
    gone: threading.Event,
    transfers: Optional[Transfers],
) -> List[str]:
    """Of each piece, in order."""
    found: List[str] = []

    def read(transfer: TransferProgress) -> None:
        with ThreadPoolExecutor(min(PARALLEL, max(1, len(planned))), thread_name_prefix="hash") as pool:
            found.extend(pool.map(lambda parts: sha256_of(fence, folder, parts, gone, transfer.advance), planned))

    in_transfer(transfers, "read", sum(part.length for parts in planned for part in parts), read)
    return found


def noted_part(name: str, note: Note, number: int) -> FilePart:
    """Where that piece of a noted file lies."""
    return FilePart(name, number * note.piece_bytes, note.length(number))


def pieces_missing(manifest: Manifest, held: Iterable[str]) -> Dict[str, int]:
    """What of the manifest has to travel to a machine that holds these pieces: sha256 -> size in bytes."""
    here = set(held)
    return {sha256: size for sha256, size in manifest.pieces().items() if sha256 not in here}


def piece_bytes(total_bytes: int) -> int:
    """How large pieces are in a checkpoint of this size. The same for sizes that are about the same, so that what did
    not change is cut at the same places."""
    size = PIECE_BYTES
    while size * MOST_PIECES < total_bytes:
        size *= 2
    return size


def _plan(sizes: Mapping[str, int], total_bytes: int, *, is_listed: bool) -> Iterator[Tuple[FilePart, ...]]:
    """What goes into each piece of these files, which belong to a checkpoint of so many bytes. A file's parts follow
    each other."""
    step = piece_bytes(total_bytes)
    packed_below, pack_bytes = PACKED_BELOW_BYTES, PACK_BYTES
    if is_listed:  # as many packs as a checkpoint may have pieces, about
        while pack_bytes * MOST_PIECES < total_bytes:
            pack_bytes *= 2
        packed_below = pack_bytes
    pack: List[FilePart] = []
    packed_bytes = 0
    for name, size in sizes.items():
        if 0 < size < packed_below:
            if packed_bytes + size > pack_bytes:
                yield tuple(pack)
                pack, packed_bytes = [], 0
            pack.append(FilePart(name, 0, size))
            packed_bytes += size
            continue
        for offset in range(0, size, step):
            yield (FilePart(name, offset, min(step, size - offset)),)
    if pack:
        yield tuple(pack)


def _facts(fence: Fence, path: Path) -> os.stat_result:
    with fence.open(path) as file:
        return os.fstat(file.fileno())


def sha256_of(
    fence: Fence,
    folder: Path,
    parts: Tuple[FilePart, ...],
    gone: threading.Event,
    on_read: Callable[[int], None] = lambda _: None,
) -> str:
    """The hash of these bytes as they are now. Raises Unsafe, Changed when a file ends too early, Aborted; OSError."""
    digest = hashlib.sha256()
    block = memoryview(bytearray(BLOCK_BYTES))
    for part in parts:
        with fence.open(folder / part.name) as file:
            file.seek(part.offset)
            left = part.length
            while left > 0:
                if gone.is_set():
                    raise Aborted("no longer wanted")
                # Buffered files have it; the stub of IO does not.
                count = file.readinto(block[: min(BLOCK_BYTES, left)])  # type: ignore[attr-defined]
                if count == 0:
                    raise Changed(f"{part.name} became shorter while it was read")
                digest.update(block[:count])
                on_read(count)
                left -= count
    return digest.hexdigest()


def _saved_file(told: Mapping[str, Any]) -> SavedFile:
    path, size = str(told["path"]), int(told["size_bytes"])
    if told.get("pieces") is None:
        return SavedFile(path, size, (Span(str(told["sha256"]), size, 0, size),))
    spans = (
        Span(str(one["sha256"]), int(one["size_bytes"]), int(one["start"]), int(one["length"]))
        for one in told["pieces"]
    )
    return SavedFile(path, size, tuple(spans))
