"""Checkpoints of very many files, told as one stream: their paths and sizes in its order, packed, and its pieces.

Where each file lies follows from the order, so a listing of 100,000 files is about a megabyte.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from workers.agent.errors import Corrupt

_MOST_TEXT_BYTES = 48 * 1024 * 1024
Place = Tuple[str, int, int, int]  # hash and size of a piece, and the part of it: where it starts, how long it is


def as_listing(files: Sequence[Tuple[str, int]], pieces: Sequence[Tuple[str, int]]) -> Dict[str, Any]:
    """The wire's words. `files`: path and size; `pieces`: hash and size. Both in the order of the stream."""
    packed = zlib.compress(json.dumps(files, ensure_ascii=False, separators=(",", ":")).encode(), 6)
    return {
        "files": base64.b64encode(packed).decode(),
        "pieces": [{"sha256": sha256, "size_bytes": size} for sha256, size in pieces],
    }


def files_listed(told: Mapping[str, Any]) -> Iterator[Tuple[str, int, List[Place]]]:
    """Path, size and places of each file. Raises Corrupt for what adds up to something else."""
    unpacker = zlib.decompressobj()
    try:
        files = json.loads(unpacker.decompress(base64.b64decode(told["files"]), _MOST_TEXT_BYTES))
        pieces = [(str(one["sha256"]), int(one["size_bytes"])) for one in told["pieces"]]
    except (zlib.error, ValueError) as error:
        raise Corrupt(f"the list of its files cannot be read: {error}") from error
    if sum(size for _, size in files) != sum(size for _, size in pieces):
        raise Corrupt("its pieces do not add up to its files")
    return _placed(files, pieces)


def _placed(
    files: Sequence[Sequence[Any]], pieces: Sequence[Tuple[str, int]]
) -> Iterator[Tuple[str, int, List[Place]]]:
    number, start = 0, 0
    for path, size in files:
        places: List[Place] = []
        left = size
        while left > 0:
            sha256, piece_bytes = pieces[number]
            length = min(left, piece_bytes - start)
            places.append((sha256, piece_bytes, start, length))
            left, start = left - length, start + length
            if start == piece_bytes:
                number, start = number + 1, 0
        yield str(path), size, places
