"""Register the files that a job leaves behind."""

from __future__ import annotations

from allpass.wire.agent import ArtifactReport
from app.core.model.checkpoint import FileEntry, check_entries
from app.db.agents import NodeIdentity
from app.db.artifacts import replace_artifacts
from app.db.engine import Database
from app.db.fences import hold_fence
from app.errors import Conflict
from app.ports.objects import ObjectStore
from app.services.find_pieces import find_missing, sizes_by_hash


async def record_artifacts(
    database: Database, objects: ObjectStore, node: NodeIdentity, request: ArtifactReport, *, now_ms: int
) -> None:
    """Make the reported files the job's whole set of artifacts, under its current epoch.

    Raises Conflict when a file's bytes are not stored, InvalidInput for paths outside the folder, Fenced for a run
    that is over, NotFound.
    """
    files = tuple(FileEntry(file.path, file.sha256, file.size_bytes) for file in request.files)
    check_entries(files)
    async with database.transaction() as connection:
        writer = await hold_fence(connection, node.node_id, request.job_id, request.epoch, run_id=request.run_id)
    missing = await find_missing(database, objects, writer.project_id, sizes_by_hash(files), now_ms=now_ms)
    if missing:
        raise Conflict(f"artifact content {missing[0]} is not stored; upload it first")
    async with database.transaction() as connection:
        await hold_fence(connection, node.node_id, request.job_id, request.epoch, run_id=request.run_id, exclusive=True)
        await replace_artifacts(connection, writer.run_id, request.job_id, files, now_ms=now_ms)
