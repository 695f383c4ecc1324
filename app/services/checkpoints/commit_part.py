"""Commit what one machine of a job on several has written of a step: all parts together are the checkpoint, or none."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from allpass.wire.agent import CheckpointCommit
from allpass.wire.gangs import CheckpointCommitted
from app.core.model.checkpoint import CheckpointState, SavedFile
from app.core.model.parts import Part, UnsureFile, Whole, clash, doubts_of, put_together, without_part
from app.db.checkpoints.listings import add_listing
from app.db.checkpoints.manifests import CheckpointRow, add_checkpoint, mark_committed, set_stored
from app.db.checkpoints.objects import claim_objects
from app.db.checkpoints.parts import (
    PartRow,
    contents_of,
    get_part,
    has_the_job,
    parts_of_step,
    refuse_part,
    set_part_stored,
    set_whole,
)
from app.db.connection import Connection
from app.db.engine import Database
from app.db.fences import hold_fence
from app.db.nodes.agents import NodeIdentity
from app.db.runs.members import gang_of, gang_size
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, Fenced, InvalidInput, NotFound
from app.ports.objects import ObjectStore, content_key
from app.services.checkpoints.find_pieces import find_missing, sizes_of_pieces
from app.services.checkpoints.prune_checkpoints import prune_checkpoints
from app.storage.manifests import Manifest, listed_sha256, manifest_sha256

_COMPARED_BYTES = 256 * 1024 * 1024  # read here of files that several machines have written, at the very most
_READ_BYTES = 4 * 1024 * 1024
_DONE = CheckpointCommitted()


async def commit_part(
    database: Database,
    objects: ObjectStore,
    node: NodeIdentity,
    part_id: str,
    request: CheckpointCommit,
    *,
    keep_last: int,
    now_ms: int,
) -> CheckpointCommitted:
    """Note that all of it is stored. Whoever comes last makes the checkpoint of all parts, in one transaction.

    Repeating it is harmless, and tells what is lacking: so the first machine waits, and a server that died before the
    last step does it then. Raises Conflict when pieces are missing, Fenced for a run that is over, NotFound.
    """
    async with database.transaction() as connection:
        row = await get_part(connection, part_id)
        if row is None:
            raise NotFound(f"{request.job_id} has no part {part_id}")
        await _hold(connection, node, request, row)
        contents = [] if row.is_stored else await contents_of(connection, [part_id])
    if row.is_whole:
        return _DONE
    if not row.is_stored and row.refused_why is None:
        sizes = sizes_of_pieces(file for part in contents for file in part.files)
        missing = await find_missing(database, objects, row.project_id, sizes, now_ms=now_ms, look_again=True)
        if missing:
            raise Conflict(
                f"{len(missing)} of the pieces of {part_id} are not stored, first {missing[0]}; "
                "open it again for their upload URLs"
            )
        async with database.transaction() as connection:
            await _hold(connection, node, request, row)
            await set_part_stored(connection, part_id, now_ms=now_ms)
    return await _complete(database, objects, node, request, row, keep_last=keep_last, now_ms=now_ms)


async def _complete(
    database: Database,
    objects: ObjectStore,
    node: NodeIdentity,
    request: CheckpointCommit,
    row: PartRow,
    *,
    keep_last: int,
    now_ms: int,
) -> CheckpointCommitted:
    """What is lacking of the step; where nothing is, the checkpoint is written."""
    async with database.transaction() as connection:
        await _hold(connection, node, request, row)
        parts = await parts_of_step(connection, row.lead_run_id, row.step)
        lacking = await _lacking(connection, row, parts)
        if lacking is not None:
            return lacking
        contents = await contents_of(connection, [part.part_id for part in parts])
    try:
        whole = await _put_together(objects, row.project_id, contents)
    except InvalidInput as error:
        return await _refuse(database, node, request, row, error.message)
    sizes = sizes_of_pieces(whole.files)
    missing = await find_missing(database, objects, row.project_id, sizes, now_ms=now_ms)
    if missing:
        return await _refuse(database, node, request, row, f"{len(missing)} of its pieces are not stored any more")
    digest = await asyncio.to_thread(_digest, parts[0], whole)
    async with database.transaction() as connection:
        await _hold(connection, node, request, row)
        if await parts_of_step(connection, row.lead_run_id, row.step) != parts:  # another one was quicker, or is new
            return CheckpointCommitted(waits_for=[row.rank])
        await claim_objects(connection, row.project_id, sizes, now_ms=now_ms)
        await _write(connection, parts, whole, digest, keep_last=keep_last, now_ms=now_ms)
    return _DONE


async def _hold(connection: Connection, node: NodeIdentity, request: CheckpointCommit, row: PartRow) -> None:
    """The job's row, under the fence of the run that opened the part; and the run that leads still has the job."""
    writer = await hold_fence(connection, node.node_id, request.job_id, request.epoch, exclusive=True, following=True)
    if (row.job_id, row.epoch, row.run_id) != (request.job_id, request.epoch, writer.run_id):
        raise NotFound(f"{request.job_id} has no checkpoint {row.part_id} at epoch {request.epoch}")
    if not await has_the_job(connection, row.lead_run_id, row.job_id):
        raise Fenced(f"the run that leads has {row.job_id} no more; stop this run")
    if await get_part(connection, row.part_id) is None:
        raise Conflict(f"{row.part_id} was given up; open a new one")


async def _lacking(connection: Connection, row: PartRow, parts: Sequence[PartRow]) -> CheckpointCommitted | None:
    """None: all parts are stored, and are no checkpoint yet."""
    if parts and parts[0].rank == 0 and parts[0].is_whole:
        return _DONE
    refused = next((part for part in parts if part.refused_why is not None), None)
    if refused is not None:
        why = refused.refused_why if refused.rank == 0 else f"machine {refused.rank}: {refused.refused_why}"
        return CheckpointCommitted(waits_for=[refused.rank], why=why)
    here = {part.rank: part for part in parts}
    count = await gang_size(connection, row.lead_run_id)
    waits_for = [rank for rank in range(count) if rank not in here or not here[rank].is_stored]
    if not waits_for:
        return None
    live = {one.rank for one in await gang_of(connection, row.lead_run_id) if one.exit_told is None}
    over = [rank for rank in waits_for if rank not in live]
    why = f"{without_part(over)} of step {row.step}, and its code is over" if over else None
    return CheckpointCommitted(waits_for=waits_for, unheard=[rank for rank in waits_for if rank not in here], why=why)


async def _put_together(objects: ObjectStore, project_id: str, contents: Sequence[Part]) -> Whole:
    """Raises InvalidInput where two machines have written one path, and other bytes."""
    doubts = await asyncio.to_thread(doubts_of, contents)
    left_bytes = _COMPARED_BYTES
    for doubt in doubts:
        left_bytes -= doubt.one[1].size_bytes
        if left_bytes < 0 or not await _are_same(objects, project_id, doubt):
            raise clash(doubt.path, doubt.one[0], doubt.other[0])
    return await asyncio.to_thread(put_together, contents)


async def _are_same(objects: ObjectStore, project_id: str, doubt: UnsureFile) -> bool:
    one = await _hash_of(objects, project_id, doubt.one[1])
    return one == await _hash_of(objects, project_id, doubt.other[1])


async def _hash_of(objects: ObjectStore, project_id: str, file: SavedFile) -> str:
    """Of its bytes, read from the store a few at a time."""
    digest = hashlib.sha256()
    for span in file.spans:
        end = span.start_byte + span.length_bytes
        for start in range(span.start_byte, end, _READ_BYTES):
            key = content_key(project_id, span.sha256)
            digest.update(await objects.get(key, start=start, end=min(end, start + _READ_BYTES)))
    return digest.hexdigest()


async def _refuse(
    database: Database, node: NodeIdentity, request: CheckpointCommit, row: PartRow, why: str
) -> CheckpointCommitted:
    """Kept with the first machine's part, whose agent tells it: nothing is compared twice."""
    async with database.transaction() as connection:
        await _hold(connection, node, request, row)
        for part in await parts_of_step(connection, row.lead_run_id, row.step):
            if part.rank == 0:
                await refuse_part(connection, part.part_id, why)
    return CheckpointCommitted(waits_for=[0], why=why)


def _digest(lead: PartRow, whole: Whole) -> str:
    if whole.listing is None:
        return manifest_sha256(Manifest(lead.job_id, lead.epoch, lead.step, whole.files))
    (stream,) = whole.files
    return listed_sha256(lead.job_id, lead.epoch, lead.step, whole.listing, stream)


async def _write(
    connection: Connection, parts: Sequence[PartRow], whole: Whole, digest: str, *, keep_last: int, now_ms: int
) -> None:
    lead = parts[0]
    row = CheckpointRow(
        checkpoint_id=lead.part_id,
        project_id=lead.project_id,
        job_id=lead.job_id,
        run_id=lead.run_id,
        epoch=lead.epoch,
        step=lead.step,
        state=CheckpointState.OPEN,
        manifest_sha256=digest,
        size_bytes=whole.size_bytes,
    )
    await add_checkpoint(connection, row, whole.files, lead.metrics, now_ms=now_ms)
    if whole.listing is not None:
        await add_listing(connection, row.checkpoint_id, whole.listing, whole.file_count)
    await set_stored(connection, row.checkpoint_id, sum(part.stored_bytes for part in parts))
    await mark_committed(connection, row, now_ms=now_ms)
    await set_whole(connection, lead.lead_run_id, lead.step, now_ms=now_ms)
    data = {"checkpoint_id": row.checkpoint_id, "step": row.step, "size_bytes": row.size_bytes, "epoch": row.epoch}
    told = f"checkpoint of step {row.step} saved ({row.size_bytes} bytes, in parts of {len(parts)} machines)"
    event = Event("checkpoint_committed", told, {**data, "parts": len(parts)})
    await add_job_event(connection, row.job_id, event, now_ms=now_ms)
    await prune_checkpoints(connection, row.job_id, keep_last=keep_last, now_ms=now_ms)
