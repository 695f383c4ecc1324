"""Signed URLs: how bytes travel between a machine and the object store, past the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from allpass.wire.agent import DownloadReply, DownloadRequest, UploadReply, UploadRequest
from app.core.model.checkpoint import FileEntry
from app.db.checkpoints.readable_content import readable_content
from app.db.engine import Database
from app.db.fences import find_writer, hold_fence
from app.db.nodes.agents import NodeIdentity
from app.errors import NotFound
from app.ports.objects import ObjectStore, content_key
from app.services.checkpoints.find_pieces import find_missing, sizes_by_hash


def signed_puts(
    objects: ObjectStore, project_id: str, sizes: Mapping[str, int], sha256s: Iterable[str], *, expires_ms: int
) -> dict[str, str]:
    """An upload URL for each of `sha256s`; hash and size are inside the signature."""
    return {
        sha256: objects.sign_put(
            content_key(project_id, sha256), sha256=sha256, size_bytes=sizes[sha256], expires_ms=expires_ms
        )
        for sha256 in sha256s
    }


async def sign_uploads(
    database: Database, objects: ObjectStore, node: NodeIdentity, request: UploadRequest, *, now_ms: int, ttl_s: int
) -> UploadReply:
    """URLs for the content that the store lacks.

    Given to a run of this node that is over, too: the last lines of its log are still wanted, and bytes named by
    their own hash replace nothing. What gives bytes a meaning (a checkpoint, an artifact) is fenced.
    """
    sizes = sizes_by_hash(FileEntry(file.path, file.sha256, file.size_bytes) for file in request.files)
    async with database.transaction() as connection:
        writer = await find_writer(connection, node.node_id, request.job_id, request.epoch)
    missing = await find_missing(database, objects, writer.project_id, sizes, now_ms=now_ms)
    urls = signed_puts(objects, writer.project_id, sizes, missing, expires_ms=now_ms + ttl_s * 1000)
    return UploadReply(urls=urls)


async def sign_downloads(
    database: Database, objects: ObjectStore, node: NodeIdentity, request: DownloadRequest, *, now_ms: int, ttl_s: int
) -> DownloadReply:
    """URLs for the job's code and the files of its committed checkpoints.

    Raises NotFound for any other content, whether or not it exists, and Fenced for a run that is over.
    """
    async with database.transaction() as connection:
        writer = await hold_fence(connection, node.node_id, request.job_id, request.epoch, to_read=True)
        readable = await readable_content(connection, request.job_id, request.sha256s)
    for index, sha256 in enumerate(request.sha256s):
        if sha256 not in readable:
            raise NotFound(f"{request.job_id} has no content {sha256}", param=f"sha256s[{index}]")
    expires_ms = now_ms + ttl_s * 1000
    urls = {
        sha256: objects.sign_get(content_key(writer.project_id, sha256), expires_ms=expires_ms)
        for sha256 in sorted(readable)
    }
    return DownloadReply(urls=urls)
