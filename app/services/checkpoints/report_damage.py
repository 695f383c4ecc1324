"""A checkpoint that cannot be read: find out whether the store is to blame, and if so, go on from the one before."""

from __future__ import annotations

import hashlib

from allpass.wire.agent import DamageAnswer, DamageReport
from app.core.model.checkpoint import CheckpointState
from app.db.checkpoints.damage import damaged_jobs, mark_damaged, resumed_by
from app.db.checkpoints.garbage import condemn_damaged
from app.db.checkpoints.manifests import CheckpointRow, files_of, get_checkpoint, newest_before
from app.db.connection import Connection
from app.db.engine import Database
from app.db.fences import Writer, hold_fence
from app.db.nodes.agents import NodeIdentity, host_of
from app.db.runs.desired_state import replace_resume
from app.db.transitions import Event, add_job_event
from app.errors import Conflict, NotFound, ObjectCorrupt, ObjectMissing
from app.ports.clock import Clock
from app.ports.objects import ObjectStore, content_key
from app.services.checkpoints.collect_garbage import delete_condemned
from app.services.checkpoints.find_pieces import sizes_of_pieces
from app.services.checkpoints.resume_from import reads_listings, resume_from
from app.services.runs.capabilities import was_given

_READ_BYTES = 8 * 1024 * 1024


async def report_damage(
    database: Database,
    objects: ObjectStore,
    node: NodeIdentity,
    checkpoint_id: str,
    request: DamageReport,
    clock: Clock,
) -> DamageAnswer:
    """What the run begins with instead. Every checkpoint of the project that holds the piece is marked as damaged,
    with an event for its job, and the piece is deleted, so that it is stored anew when it comes again.

    The stored bytes are read and hashed first. Raises Conflict when they are right (the machine or its network spoils
    them) or when the job was submitted to begin with this checkpoint and has none of its own; NotFound, Fenced.
    Repeating it is harmless.
    """
    now_ms = clock.now_ms()
    async with database.transaction() as connection:
        writer = await hold_fence(connection, node.node_id, request.job_id, request.epoch)
        row = await _told(connection, writer, checkpoint_id)
        sizes = sizes_of_pieces(await files_of(connection, checkpoint_id))
    if row.state is not CheckpointState.DAMAGED:
        if request.sha256 not in sizes:
            raise NotFound(f"{checkpoint_id} has no piece {request.sha256}", param="sha256")
        if await is_right(objects, row.project_id, request.sha256, sizes[request.sha256]):
            raise Conflict(
                f"the stored piece {request.sha256} of {checkpoint_id} has its hash: it is spoilt on its way to this "
                "machine, or on it"
            )
        await _mark_all(database, row.project_id, request.sha256, now_ms=now_ms)
        async with database.transaction() as connection:
            await condemn_damaged(connection, row.project_id, request.sha256, now_ms=now_ms)
        await delete_condemned(database, objects, clock, row.project_id)
    return await _instead(database, node, request, row, now_ms=now_ms)


async def _told(connection: Connection, writer: Writer, checkpoint_id: str) -> CheckpointRow:
    """The checkpoint, which the run was told to begin with, or was before it reported it once already."""
    row = await get_checkpoint(connection, checkpoint_id)
    told = await resumed_by(connection, writer.run_id)
    if row is None or row.project_id != writer.project_id:
        raise NotFound(f"{writer.job_id} has no checkpoint {checkpoint_id}")
    if checkpoint_id != told and row.state is not CheckpointState.DAMAGED:
        raise NotFound(f"{writer.run_id} was not told to begin with {checkpoint_id}")
    return row


async def is_right(objects: ObjectStore, project_id: str, sha256: str, size_bytes: int) -> bool:
    """Whether the store holds this piece with its very bytes: all of them are read. Raises StoreUnavailable."""
    digest, position = hashlib.sha256(), 0
    key = content_key(project_id, sha256)
    try:
        while block := await objects.get(key, start=position, end=position + _READ_BYTES):
            digest.update(block)
            position += len(block)
            if position >= size_bytes:
                break
    except (ObjectMissing, ObjectCorrupt):
        return False
    info = await objects.head(key)
    return digest.hexdigest() == sha256 and info is not None and info.size_bytes == size_bytes


async def _mark_all(database: Database, project_id: str, sha256: str, *, now_ms: int) -> None:
    """One job after the other: each holds its own row alone."""
    async with database.transaction() as connection:
        job_ids = await damaged_jobs(connection, project_id, sha256)
    for job_id in job_ids:
        async with database.transaction() as connection:
            for step in await mark_damaged(connection, job_id, sha256):
                event = Event(
                    "checkpoint_damaged",
                    f"the checkpoint of step {step} is damaged in the object store: it is not used any more",
                    {"step": step, "sha256": sha256},
                )
                await add_job_event(connection, job_id, event, now_ms=now_ms)


async def _instead(
    database: Database, node: NodeIdentity, request: DamageReport, damaged: CheckpointRow, *, now_ms: int
) -> DamageAnswer:
    async with database.transaction() as connection:
        writer = await hold_fence(connection, node.node_id, request.job_id, request.epoch, exclusive=True)
        found = await newest_before(connection, request.job_id, request.epoch)
        learned = await was_given(connection, request.job_id, damaged.checkpoint_id)
        if found is None and damaged.job_id != request.job_id and not learned:
            raise Conflict(
                f"the checkpoint of step {damaged.step} of {damaged.job_id}, which this job was to begin with, is "
                "damaged: submit it again from another one"
            )
        if await resumed_by(connection, writer.run_id) == damaged.checkpoint_id:
            new_id, step = (None, None) if found is None else (found.checkpoint_id, found.step)
            await replace_resume(connection, writer.run_id, new_id, step)
            where = "from the beginning" if found is None else f"from the checkpoint of step {found.step}"
            event = Event("resume_replaced", f"goes on {where} instead of step {damaged.step}", {"step": step or 0})
            await add_job_event(connection, request.job_id, event, now_ms=now_ms)
        lists = reads_listings(await host_of(connection, node.node_id))
        return DamageAnswer(resume=None if found is None else await resume_from(connection, found, lists=lists))
