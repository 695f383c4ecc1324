"""A checkpoint's manifest as bytes: one spelling per content, so that its sha256 identifies the checkpoint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass
from typing import Any

from app.core.model.checkpoint import SavedFile, Span, check_saved
from app.errors import InvalidInput, ObjectCorrupt

MANIFEST_VERSION = 2  # 1: each file was one piece, named by its hash


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that `job_id` had at `step`, written under `epoch`."""

    job_id: str
    epoch: int
    step: int
    files: tuple[SavedFile, ...]


def manifest_bytes(manifest: Manifest) -> bytes:
    """Canonical JSON: sorted keys, files sorted by path, ASCII, no spaces, one line break at the end.

    Raises InvalidInput naming a file entry that no checkpoint may hold.
    """
    check_saved(manifest.files)
    body = {
        "version": MANIFEST_VERSION,
        "job_id": manifest.job_id,
        "epoch": manifest.epoch,
        "step": manifest.step,
        "files": [
            {"path": file.path, "size_bytes": file.size_bytes, "pieces": [list(astuple(span)) for span in file.spans]}
            for file in sorted(manifest.files, key=lambda file: file.path)
        ],
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def manifest_sha256(manifest: Manifest) -> str:
    return hashlib.sha256(manifest_bytes(manifest)).hexdigest()


def listed_sha256(job_id: str, epoch: int, step: int, listing: bytes, stream: SavedFile) -> str:
    """The same of a checkpoint of very many files, which is told by a listing."""
    pieces = [[span.sha256, span.piece_bytes] for span in stream.spans]
    body = [job_id, epoch, step, hashlib.sha256(listing).hexdigest(), pieces]
    return hashlib.sha256(json.dumps(body, separators=(",", ":")).encode()).hexdigest()


def read_manifest(data: bytes) -> Manifest:
    """The manifest in these bytes. Raises ObjectCorrupt unless they are exactly what `manifest_bytes` writes."""
    try:
        body: Any = json.loads(data)
        manifest = Manifest(
            job_id=str(body["job_id"]),
            epoch=int(body["epoch"]),
            step=int(body["step"]),
            files=tuple(_file(entry) for entry in body["files"]),
        )
        canonical = manifest_bytes(manifest)
    except (ValueError, KeyError, TypeError, RecursionError, InvalidInput) as error:
        raise ObjectCorrupt(f"this is not a checkpoint manifest: {error}") from error
    if canonical != data:
        raise ObjectCorrupt("this manifest is not spelled canonically: it was changed after it was written")
    return manifest


def _file(entry: Any) -> SavedFile:
    spans = tuple(
        Span(str(sha256), int(size), int(start), int(length)) for sha256, size, start, length in entry["pieces"]
    )
    return SavedFile(str(entry["path"]), int(entry["size_bytes"]), spans)
