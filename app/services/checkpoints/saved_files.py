"""The files of a checkpoint, between the wire's words and ours."""

from __future__ import annotations

from collections.abc import Iterable

from allpass.wire.agent import SavedFile as WireFile
from allpass.wire.agent import SavedPiece
from app.core.model.checkpoint import SavedFile, Span
from app.errors import InvalidInput


def saved_files(told: Iterable[WireFile]) -> tuple[SavedFile, ...]:
    """What an agent tells. Raises InvalidInput naming a file that has both forms, or none."""
    return tuple(_saved(index, file) for index, file in enumerate(told))


def wire_file(file: SavedFile) -> WireFile:
    """What an agent is told."""
    sha256 = file.sha256
    if sha256 is not None:
        return WireFile(path=file.path, size_bytes=file.size_bytes, sha256=sha256)
    pieces = [
        SavedPiece(sha256=one.sha256, size_bytes=one.piece_bytes, start=one.start_byte, length=one.length_bytes)
        for one in file.spans
    ]
    return WireFile(path=file.path, size_bytes=file.size_bytes, pieces=pieces)


def _saved(index: int, file: WireFile) -> SavedFile:
    if (file.sha256 is None) == (file.pieces is None):
        raise InvalidInput("give a file its sha256, or its pieces", param=f"files[{index}].pieces")
    if file.pieces is None:
        return SavedFile.whole(file.path, file.sha256 or "", file.size_bytes)
    spans = tuple(Span(one.sha256, one.size_bytes, one.start, one.length) for one in file.pieces)
    return SavedFile(file.path, file.size_bytes, spans)
