"""Index the pieces of a job's log that its agent has stored."""

from __future__ import annotations

from allpass.wire.agent import LogReport
from app.db.engine import Database
from app.db.fences import find_writer
from app.db.nodes.agents import NodeIdentity
from app.db.runs.log_index import ChunkEntry, add_chunks
from app.errors import Conflict, InvalidInput
from app.ports.objects import ObjectStore
from app.services.checkpoints.find_pieces import find_missing


async def record_logs(
    database: Database, objects: ObjectStore, node: NodeIdentity, request: LogReport, *, now_ms: int
) -> None:
    """Add the chunks, from runs that are over too: a log is never lost to fencing. Repeating it is harmless.

    Raises Conflict when a chunk's text is not stored (a reader would find a hole), NotFound.
    """
    sizes: dict[str, int] = {}
    for index, chunk in enumerate(request.chunks):
        if sizes.setdefault(chunk.sha256, chunk.size_bytes) != chunk.size_bytes:
            raise InvalidInput(f"{chunk.sha256} is given two sizes", param=f"chunks[{index}].size_bytes")
    async with database.statement() as connection:
        writer = await find_writer(connection, node.node_id, request.job_id, request.epoch, run_id=request.run_id)
    missing = await find_missing(database, objects, writer.project_id, sizes, now_ms=now_ms)
    if missing:
        raise Conflict(f"log text {missing[0]} is not stored; upload it first")
    chunks = [
        ChunkEntry(c.sequence, c.sha256, c.size_bytes, c.line_count, c.first_ms, c.last_ms) for c in request.chunks
    ]
    async with database.transaction() as connection:
        await add_chunks(connection, writer.run_id, writer.job_id, writer.epoch, chunks)
