"""Checkpoints from the store onto this disk: put together from pieces, each verified, those that are here not fetched.

shelf = Shelf()
fetch_checkpoint(link, older, folder_a, shelf)    # ahead of time, while somebody else still trains
fetch_checkpoint(link, newest, folder_b, shelf)   # fetches only what changed since
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple, Union

from workers.agent.api import Api, Writer, refusal
from workers.agent.errors import Aborted, Corrupt, Fenced, Refused, Unreachable
from workers.agent.files import BLOCK_BYTES
from workers.agent.patience import Backoff, patiently
from workers.agent.pieces import FilePart, Manifest, SavedFile, Span
from workers.agent.transfer import FAULTS_ALLOWED, STALL_TIMEOUT_S, in_parallel
from workers.agent.transfers import TransferProgress, Transfers, in_transfer
from workers.agent.transport import Transport

MOST_OPENED = 32


class Fetcher(NamedTuple):
    """Who fetches, and until when: once `gone` is set, nothing of it is wanted any more."""

    api: Api
    transport: Transport
    writer: Writer
    gone: threading.Event
    transfers: Optional[Transfers] = None

    def check(self) -> None:
        if self.gone.is_set():
            raise Aborted("no longer wanted")


@dataclass(frozen=True)
class PieceTarget:
    """Where bytes of a piece belong: `length` of them, from `start` of the piece, to `offset` of a file."""

    path: Path
    offset: int
    start: int
    length: int


class LocalPieces:
    """Which pieces lie in checkpoint folders on this disk. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Dict[str, Tuple[Path, Tuple[FilePart, ...]]] = {}  # guarded by the lock

    def add(self, folder: Path, files: Tuple[SavedFile, ...]) -> None:
        """Note that `folder` holds these files, complete."""
        spread: Dict[str, Dict[int, FilePart]] = {}  # parts of pieces that several files share, by where they start
        sizes: Dict[str, int] = {}
        with self._lock:
            for file in files:
                offset = 0
                for span in file.spans:
                    part = FilePart(file.path, offset, span.length)
                    offset += span.length
                    if span.length == span.size_bytes:
                        self._found[span.sha256] = (folder, (part,))
                    else:
                        spread.setdefault(span.sha256, {})[span.start] = part
                        sizes[span.sha256] = span.size_bytes
            for sha256, parts in spread.items():
                whole = tuple(_in_order(parts))
                if sum(part.length for part in whole) == sizes[sha256]:
                    self._found[sha256] = (folder, whole)

    def remove(self, folder: Path) -> None:
        """Forget a folder that is about to be deleted or handed to user code."""
        with self._lock:
            self._found = {sha256: at for sha256, at in self._found.items() if at[0] != folder}

    def held(self) -> Set[str]:
        """The pieces that are here, if nobody touched them. What is taken is verified."""
        with self._lock:
            return set(self._found)

    def copy(self, sha256: str, writer: "PieceWriter") -> bool:
        """Give a piece that is here to `writer`; False when it is not, or not any more what it was."""
        with self._lock:
            found = self._found.get(sha256)
        if found is None:
            return False
        folder, parts = found
        try:
            for part in parts:
                if not _copy(folder / part.name, part, writer):
                    return False
        except FileNotFoundError:
            return False
        return writer.is_right()


def _in_order(parts: Mapping[int, FilePart]) -> Iterator[FilePart]:
    """From the beginning on, as far as one follows the other."""
    position = 0
    while position in parts:
        yield parts[position]
        if not parts[position].length:
            return
        position += parts[position].length


def _copy(path: Path, part: FilePart, writer: "PieceWriter") -> bool:
    with path.open("rb") as file:
        file.seek(part.offset)
        left = part.length
        while left > 0:
            block = file.read(min(BLOCK_BYTES, left))
            if not block:
                return False
            writer.write(block)
            left -= len(block)
    return True


class Staged:
    """Files below `folder` that have parts of a checkpoint in their places already: told by whoever put them there, and
    nobody else can write there. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: Dict[str, int] = {}
        self._parts: Dict[Tuple[str, int], Span] = {}  # by path and offset

    def add_file(self, path: str, size_bytes: int) -> None:
        self._sizes[path] = size_bytes
        self._parts = {place: span for place, span in self._parts.items() if place[0] != path}

    def add(self, path: str, offset: int, span: Span) -> None:
        """These bytes are in their place, and verified."""
        self._parts[path, offset] = span

    def move(self, path: str, size_bytes: int, target: Path) -> bool:
        """Make `target` that file, if there is one of that size. It is here no longer then."""
        if self._sizes.pop(path, None) != size_bytes:
            return False
        try:
            (self._folder / path).replace(target)
        except OSError:
            return False
        return True

    def has(self, path: str, offset: int, span: Span) -> bool:
        return self._parts.get((path, offset)) == span


class PieceWriter:
    """Takes a piece's bytes in order and puts them where they belong; `close` it. Raises Corrupt as soon as too many
    come."""

    def __init__(self, size_bytes: int, sha256: str, places: List[PieceTarget]) -> None:
        self._size_bytes = size_bytes
        self._sha256 = sha256
        self._places = sorted(places, key=lambda place: place.start)
        self._next = 0  # the first of them of which nothing came
        self._begun: List[PieceTarget] = []  # those of which not all came
        self._digest = hashlib.sha256()
        self._position = 0
        self._opened: Dict[Path, int] = {}

    def close(self) -> None:
        opened, self._opened = self._opened, {}
        for descriptor in opened.values():
            os.close(descriptor)

    def write(self, block: Union[bytes, memoryview]) -> None:
        end = self._position + len(block)
        if end > self._size_bytes:
            raise Corrupt(f"more than the promised {self._size_bytes} bytes came")
        self._digest.update(block)
        view = memoryview(block)
        while self._next < len(self._places) and self._places[self._next].start < end:
            self._begun.append(self._places[self._next])
            self._next += 1
        for place in self._begun:
            first, last = max(place.start, self._position), min(place.start + place.length, end)
            if first < last:
                part = view[first - self._position : last - self._position]
                _write_at(self._descriptor(place.path), place.offset + first - place.start, part)
        self._begun = [place for place in self._begun if place.start + place.length > end]
        self._position = end

    def _descriptor(self, path: Path) -> int:
        found = self._opened.get(path)
        if found is None:
            if len(self._opened) >= MOST_OPENED:  # a piece may hold ten thousand small files
                self.close()
            found = self._opened[path] = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        return found

    def is_right(self) -> bool:
        return self._position == self._size_bytes and self._digest.hexdigest() == self._sha256

    def check(self) -> None:
        if not self.is_right():
            raise Corrupt(f"sha256 is {self._digest.hexdigest()}, expected {self._sha256} ({self._position} bytes)")


def fetch_checkpoint(
    link: Fetcher, manifest: Manifest, into: Path, shelf: Optional[LocalPieces] = None, staged: Optional[Staged] = None
) -> None:
    """Make `into` hold the checkpoint's files, taking what is staged as it is, from the shelf what is on it, and noting
    there what came.

    Room for all of it is taken first. `into` is complete when this returns, and of no use when it raises: Corrupt,
    with the piece that three tries did not bring; Refused, Fenced, Aborted; OSError when the disk is full.
    """
    places = _lay_out(manifest, into, staged)
    sizes = {sha256: size for sha256, size in manifest.pieces().items() if sha256 in places}
    fetch_pieces(link, sizes, places, shelf)
    if shelf is not None:
        shelf.add(into, manifest.files)


def fetch_pieces(
    link: Fetcher, sizes: Mapping[str, int], places: Mapping[str, List[PieceTarget]], shelf: Optional[LocalPieces]
) -> None:
    """Bring pieces (sha256 -> size in bytes) to their places, from the shelf or the store.

    Raises Corrupt with the piece that three tries did not bring, Refused, Fenced, Aborted; OSError.
    """
    here = shelf.held() if shelf is not None else set()

    def take(sha256: str) -> None:
        link.check()
        with contextlib.closing(PieceWriter(sizes[sha256], sha256, places[sha256])) as writer:
            if shelf is None or not shelf.copy(sha256, writer):
                absent.append(sha256)

    absent = [sha256 for sha256 in sizes if sha256 not in here]
    in_parallel(take, sorted(here & sizes.keys()))
    _fetch(link, {sha256: sizes[sha256] for sha256 in absent}, places)


def create(into: Path, name: str, size_bytes: int) -> Path:
    """A new file of that size, all of its room taken. Raises Corrupt for a name that leads out of `into`; OSError."""
    path = _inside(into, name)
    with path.open("wb") as created:
        if size_bytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(created.fileno(), 0, size_bytes)
    return path


def _lay_out(manifest: Manifest, into: Path, staged: Optional[Staged]) -> Dict[str, List[PieceTarget]]:
    """Create the files at their full size; where each piece goes that is not there."""
    places: Dict[str, List[PieceTarget]] = {}
    for file in manifest.files:
        path = _inside(into, file.path)
        began = staged if staged is not None and staged.move(file.path, file.size_bytes, path) else None
        if began is None:
            create(into, file.path, file.size_bytes)
        offset = 0
        for span in file.spans:
            if began is None or not began.has(file.path, offset, span):
                places.setdefault(span.sha256, []).append(PieceTarget(path, offset, span.start, span.length))
            offset += span.length
    return places


def _inside(into: Path, name: str) -> Path:
    """Its folder exists. Raises Corrupt for a name that leads out of `into`."""
    if name.startswith("/") or ".." in name.split("/"):
        raise Corrupt(f"{name}: leads out of its folder")
    path = into / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _fetch(link: Fetcher, sizes: Mapping[str, int], places: Mapping[str, List[PieceTarget]]) -> None:
    if not sizes:
        return
    urls = patiently(lambda: link.api.downloads(link.writer, sorted(sizes)), link.gone)

    def fetch_all(transfer: TransferProgress) -> None:
        def fetch(sha256: str) -> None:
            _fetch_patiently(link, urls.get(sha256), sha256, sizes[sha256], places[sha256])
            transfer.advance(sizes[sha256])

        in_parallel(fetch, sorted(sizes))

    in_transfer(link.transfers, "fetch", sum(sizes.values()), fetch_all)


def _fetch_patiently(
    link: Fetcher, url: Optional[str], sha256: str, size_bytes: int, places: List[PieceTarget]
) -> None:
    backoff, faults, reason = Backoff(), 0, "the server gave no URL for it"
    while faults < FAULTS_ALLOWED:
        link.check()
        try:
            if url is None:
                url = link.api.downloads(link.writer, [sha256]).get(sha256)
            if url is None:
                faults += 1
            else:
                with contextlib.closing(PieceWriter(size_bytes, sha256, places)) as writer:
                    _fetch_once(link, url, writer)
                return
        except Fenced:
            raise
        except (Corrupt, Refused) as error:
            faults, reason = faults + 1, str(error)
        except Unreachable:
            link.gone.wait(backoff.next_s())
        url = None  # a fresh one for the next try
    raise Corrupt(f"{_names(places)}: {reason}", sha256)


def _fetch_once(link: Fetcher, url: str, writer: PieceWriter) -> None:
    with link.transport.exchange("GET", url, headers={}, timeout_s=STALL_TIMEOUT_S) as answer:
        if answer.status != 200:
            raise refusal(answer.status, answer.read(4096))
        block = memoryview(bytearray(BLOCK_BYTES))
        for count in iter(lambda: answer.readinto(block), 0):
            link.check()
            writer.write(block[:count])
    writer.check()


def _write_at(descriptor: int, offset: int, data: memoryview) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        offset, data = offset + written, data[written:]


def _names(places: List[PieceTarget]) -> str:
    return ", ".join(sorted({place.path.name for place in places})[:3])
