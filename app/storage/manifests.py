"""A checkpoint's manifest as bytes: one spelling per content, so that its sha256 identifies the checkpoint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from app.core.model.checkpoint import FileEntry, check_entries
from app.errors import InvalidInput, ObjectCorrupt

MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that `job_id` had at `step`, written under `epoch`."""

    job_id: str
    epoch: int
    step: int
    files: tuple[FileEntry, ...]


def manifest_bytes(manifest: Manifest) -> bytes:
    """Canonical JSON: sorted keys, files sorted by path, ASCII, no spaces, one line break at the end.

    Raises InvalidInput naming a file entry that no checkpoint may hold.
    """
    check_entries(manifest.files)
    body = {
        "version": MANIFEST_VERSION,
        "job_id": manifest.job_id,
        "epoch": manifest.epoch,
        "step": manifest.step,
        "files": [
            {"path": entry.path, "sha256": entry.sha256, "size_bytes": entry.size_bytes}
            for entry in sorted(manifest.files, key=lambda entry: entry.path)
        ],
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def manifest_sha256(manifest: Manifest) -> str:
    return hashlib.sha256(manifest_bytes(manifest)).hexdigest()


def read_manifest(data: bytes) -> Manifest:
    """The manifest in these bytes. Raises ObjectCorrupt unless they are exactly what `manifest_bytes` writes."""
    try:
        body: Any = json.loads(data)
        manifest = Manifest(
            job_id=str(body["job_id"]),
            epoch=int(body["epoch"]),
            step=int(body["step"]),
            files=tuple(FileEntry(str(f["path"]), str(f["sha256"]), int(f["size_bytes"])) for f in body["files"]),
        )
        canonical = manifest_bytes(manifest)
    except (ValueError, KeyError, TypeError, RecursionError, InvalidInput) as error:
        raise ObjectCorrupt(f"this is not a checkpoint manifest: {error}") from error
    if canonical != data:
        raise ObjectCorrupt("this manifest is not spelled canonically: it was changed after it was written")
    return manifest
