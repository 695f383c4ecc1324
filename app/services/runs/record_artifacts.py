"""Register the files that a job leaves behind."""

from __future__ import annotations

from allpass.wire.agent import ArtifactReport
from app.core.model.checkpoint import FileEntry, check_entries
from app.core.model.run import RunState
from app.db.checkpoints.transfers import set_arrival
from app.db.connection import Connection
from app.db.engine import Database
from app.db.fences import find_writer, hold_fence
from app.db.lock_order import lock_rows
from app.db.nodes.agents import NodeIdentity
from app.db.runs.artifacts import join_artifacts, replace_artifacts
from app.db.runs.results import LeftBehind, is_final, set_results
from app.db.text import storable_json, storable_text
from app.db.transitions import Event, add_job_event
from app.errors import Conflict
from app.ports.objects import ObjectStore
from app.services.checkpoints.find_pieces import find_missing, sizes_by_hash


async def record_artifacts(
    database: Database, objects: ObjectStore, node: NodeIdentity, request: ArtifactReport, *, now_ms: int
) -> None:
    """Make the reported files all that the run has left, once their bytes are known to be stored.

    One that `joins` what other runs of the job have left is heard of a run that is over, too: its job may have gone on
    elsewhere, and what a later run left is not touched. Any other report is the job's whole set, under its current
    epoch. Raises Conflict when a file's bytes are not stored, InvalidInput for paths outside the folder, Fenced for a
    run that is over, NotFound.
    """
    files = tuple(FileEntry(file.path, file.sha256, file.size_bytes) for file in request.files)
    check_entries(files)
    job_id, epoch = request.job_id, request.epoch
    async with database.transaction() as connection:
        if request.joins:
            writer = await find_writer(connection, node.node_id, job_id, epoch, run_id=request.run_id)
        else:
            writer = await hold_fence(connection, node.node_id, job_id, epoch, run_id=request.run_id)
    missing = await find_missing(database, objects, writer.project_id, sizes_by_hash(files), now_ms=now_ms)
    if missing:
        raise Conflict(f"artifact content {missing[0]} is not stored; upload it first")
    async with database.transaction() as connection:
        if request.joins:
            await _join(connection, request, files, now_ms=now_ms)
            if writer.run_state is RunState.STOPPING:  # who waits for its end is patient while something comes
                await set_arrival(connection, writer.run_id, now_ms=now_ms)
            return
        await hold_fence(connection, node.node_id, job_id, epoch, run_id=request.run_id, exclusive=True)
        await replace_artifacts(connection, writer.run_id, job_id, files, now_ms=now_ms)


async def _join(connection: Connection, request: ArtifactReport, files: tuple[FileEntry, ...], *, now_ms: int) -> None:
    """The last report of a run is told once, and none that was on its way before comes after it."""
    job_id, epoch = request.job_id, request.epoch
    await lock_rows(connection, [job_id])
    is_told = await is_final(connection, job_id, epoch)
    if is_told and not request.final:
        return
    await join_artifacts(connection, request.run_id, job_id, epoch, files, now_ms=now_ms)
    left = LeftBehind([one.model_dump() for one in request.left], request.left_files, request.left_bytes)
    await set_results(connection, request.run_id, job_id, epoch, left, final=request.final, now_ms=now_ms)
    if request.final and not is_told and (files or request.left):
        await add_job_event(connection, job_id, _kept(request), now_ms=now_ms)


def _kept(request: ArtifactReport) -> Event:
    size_bytes = sum(file.size_bytes for file in request.files)
    files = "1 file of this run is" if len(request.files) == 1 else f"{len(request.files):,} files of this run are"
    message = f"{files} kept ({_size(size_bytes)})"
    if request.left:
        first = request.left[0]
        message += f"; left behind: {first.path}, {_size(first.size_bytes)} ({first.why})"
        message += f", and {len(request.left) - 1} more" if len(request.left) > 1 else ""
    data = {
        "run_id": request.run_id,
        "files": len(request.files),
        "size_bytes": size_bytes,
        "left": [one.model_dump() for one in request.left],
        "left_files": request.left_files,
        "left_bytes": request.left_bytes,
    }
    return Event("results_kept", storable_text(message), storable_json(data))


def _size(size_bytes: int) -> str:
    value, unit = float(size_bytes), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
