"""The files of a checkpoint, or of a part of one, as an agent tells them: checked, and named by what they hold."""

from __future__ import annotations

import base64
from typing import NamedTuple

from allpass.wire.agent import CheckpointOpen
from app.core.model.checkpoint import SavedFile, check_saved
from app.core.model.listing import MAX_LISTING_BYTES, stream_of, unpack
from app.errors import InvalidInput
from app.services.checkpoints.saved_files import saved_files
from app.storage.manifests import Manifest, listed_sha256, manifest_sha256


class ToldFiles(NamedTuple):
    """`listing`: of very many files, which are one stream in `files`."""

    files: tuple[SavedFile, ...]
    digest: str
    listing: bytes | None = None
    file_count: int = 0


def told_files(request: CheckpointOpen) -> ToldFiles:
    """For a thread of its own: there may be very many files. Raises InvalidInput."""
    who = request.job_id, request.epoch, request.step
    if request.listing is None:
        if not request.files and not request.part:
            raise InvalidInput("a checkpoint has at least one file", param="files")
        files = saved_files(request.files)
        check_saved(files)
        return _sized(ToldFiles(files, manifest_sha256(Manifest(*who, files))))
    if request.files:
        raise InvalidInput("give the files of a checkpoint, or a listing of all of them", param="files")
    try:
        listing = base64.b64decode(request.listing.files, validate=True)
    except ValueError:
        raise InvalidInput("not base64", param="listing.files") from None
    if len(listing) > MAX_LISTING_BYTES:
        raise InvalidInput(
            f"the list of its files has {len(listing)} bytes when it is packed, and at most {MAX_LISTING_BYTES} can be "
            "kept: pack files together, or give them shorter names",
            param="listing.files",
        )
    listed = unpack(listing)
    stream = stream_of(listed, [(piece.sha256, piece.size_bytes) for piece in request.listing.pieces])
    return _sized(ToldFiles((stream,), listed_sha256(*who, listing, stream), listing, len(listed)))


def _sized(told: ToldFiles) -> ToldFiles:
    total_bytes = sum(file.size_bytes for file in told.files)
    if total_bytes >= 2**63:
        raise InvalidInput(f"the files add up to {total_bytes} bytes; no checkpoint is that large", param="files")
    return told
