"""Checkpoints of very many files: one after the other they are one stream of bytes, which is cut into pieces.

A listing has their paths and sizes in the order of the stream, so where each file lies in the pieces follows. It is
kept as one value: what the database and each request has to carry does not grow with the number of files.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from app.core.model.checkpoint import MAX_PIECES, SHA256_HEX, SavedFile, Span, check_paths
from app.errors import InvalidInput

STREAM_PATH = "/"  # no file of a checkpoint can have it: all of a listed checkpoint's pieces are those of this one
MAX_LISTED_FILES = 200_000
MAX_LISTING_BYTES = 4 * 1024 * 1024  # packed
_MAX_TEXT_BYTES = 48 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ListedFile:
    path: str
    size_bytes: int


def unpack(listing: bytes) -> tuple[ListedFile, ...]:
    """Raises InvalidInput for what is no listing, or one of too many files."""
    try:
        entries: Any = json.loads(_unpacked(listing))
        files = tuple(ListedFile(_text(path), _size(size)) for path, size in entries)
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"the listing cannot be read: {error}", param="listing.files") from None
    if not 0 < len(files) <= MAX_LISTED_FILES:
        raise InvalidInput(
            f"a checkpoint has 1 to {MAX_LISTED_FILES} files, this one {len(files)}", param="listing.files"
        )
    return files


def stream_of(files: Sequence[ListedFile], pieces: Sequence[tuple[str, int]]) -> SavedFile:
    """The stream of a listed checkpoint; `pieces`: hash and size of each, in order. Raises InvalidInput for what no
    checkpoint may hold."""
    check_paths(files)
    if len(pieces) > MAX_PIECES:
        raise InvalidInput(f"a checkpoint has at most {MAX_PIECES} pieces; cut larger ones", param="listing.pieces")
    for index, (sha256, size) in enumerate(pieces):
        if not SHA256_HEX.match(sha256) or size <= 0:
            raise InvalidInput("a piece has a lower-case sha256 in hex, and bytes", param=f"listing.pieces[{index}]")
    total, listed = sum(size for _, size in pieces), sum(file.size_bytes for file in files)
    if total != listed:
        raise InvalidInput(f"its pieces hold {total} bytes, its files {listed}", param="listing.pieces")
    return SavedFile(STREAM_PATH, total, tuple(Span(sha256, size, 0, size) for sha256, size in pieces))


def files_in(stream: SavedFile, files: Sequence[ListedFile], after: str | None, limit: int) -> list[SavedFile]:
    """By path, of those above `after`; at most `limit`. Each with its spans of the stream's pieces."""
    places = zip(files, accumulate((file.size_bytes for file in files), initial=0), strict=False)
    wanted = sorted(
        ((file, start) for file, start in places if after is None or file.path > after), key=lambda one: one[0].path
    )
    ends = list(accumulate(span.length_bytes for span in stream.spans))
    return [
        SavedFile(file.path, file.size_bytes, _spans(stream, ends, start, file.size_bytes))
        for file, start in wanted[:limit]
    ]


def _spans(stream: SavedFile, ends: Sequence[int], start: int, length: int) -> tuple[Span, ...]:
    found, number = [], bisect_right(ends, start)
    while length > 0:
        piece = stream.spans[number]
        within = start - (ends[number] - piece.piece_bytes)
        taken = min(length, piece.piece_bytes - within)
        found.append(Span(piece.sha256, piece.piece_bytes, within, taken))
        start, length, number = start + taken, length - taken, number + 1
    return tuple(found)


def _unpacked(listing: bytes) -> bytes:
    """A few bytes can be packed gigabytes."""
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(listing, _MAX_TEXT_BYTES)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"it has more than {_MAX_TEXT_BYTES} bytes, or is cut off")
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no path")
    value.encode()  # UnicodeEncodeError is a ValueError
    return value


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 2**53:
        raise TypeError(f"{value!r} is no size in bytes")
    return value
