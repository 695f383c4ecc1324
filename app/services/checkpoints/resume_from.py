"""A checkpoint as an agent is told it that begins with it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

from allpass.wire.agent import ListedPiece, Listing, ResumeFrom
from app.core.model.listing import MAX_LISTED_FILES, files_in, unpack
from app.db.checkpoints.listings import listing_of
from app.db.checkpoints.manifests import CheckpointRow, files_of
from app.db.connection import Connection
from app.services.checkpoints.saved_files import wire_file

_LISTING = "listing"


def reads_listings(host: Mapping[str, Any]) -> bool:
    """Whether the agent on this host takes the files of a checkpoint as a listing. Those of older releases do not."""
    reads = host.get("reads")
    return isinstance(reads, list) and _LISTING in reads


async def resume_from(
    connection: Connection, checkpoint: CheckpointRow, *, learned: bool = False, lists: bool
) -> ResumeFrom:
    """`learned`: it is another job's, of which only what that has learned is taken: the run begins at step 0. `lists`:
    the agent takes a listing; else it is told every file, however many there are."""
    files = await files_of(connection, checkpoint.checkpoint_id)
    packed = await listing_of(connection, checkpoint.checkpoint_id)
    told = ResumeFrom(checkpoint_id=checkpoint.checkpoint_id, step=checkpoint.step, files=[], learned=learned)
    if packed is None:
        told.files = [wire_file(file) for file in files]
    elif lists:
        (stream,) = files
        pieces = [ListedPiece(sha256=span.sha256, size_bytes=span.piece_bytes) for span in stream.spans]
        told.listing = Listing(files=base64.b64encode(packed).decode(), pieces=pieces)
    else:
        (stream,) = files
        listed = await asyncio.to_thread(lambda: files_in(stream, unpack(packed), None, MAX_LISTED_FILES))
        told.files = [wire_file(file) for file in listed]
    return told
