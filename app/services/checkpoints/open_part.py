"""Open what one machine of a job on several has written of a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from allpass.wire.agent import CheckpointOpen, CheckpointOpened
from app.core.model.parts import MAX_OPEN_STEPS, Part
from app.db.checkpoints.objects import claim_objects
from app.db.checkpoints.parts import PartRow, add_part, delete_oldest_parts, parts_of_step, set_part_opened
from app.db.connection import Connection
from app.db.engine import Database
from app.db.fences import Writer, hold_fence
from app.db.nodes.agents import NodeIdentity
from app.db.runs.members import gang_of, seat_of, wake_gang
from app.errors import InvalidInput
from app.ports.clock import IdSource
from app.ports.objects import ObjectStore
from app.services.checkpoints.find_pieces import find_missing, sizes_of_pieces
from app.services.checkpoints.sign_transfers import signed_puts
from app.services.checkpoints.told_files import ToldFiles


async def open_part(
    database: Database,
    objects: ObjectStore,
    ids: IdSource,
    node: NodeIdentity,
    request: CheckpointOpen,
    told: ToldFiles,
    *,
    now_ms: int,
    ttl_s: int,
) -> CheckpointOpened:
    """Write the part under the run that leads, and sign URLs for what the store lacks. The other machines hear of it
    when it is the first one's.

    Asking again for the same step and content gives the same part; other content of that step takes its place. Raises
    InvalidInput for a job on one machine, Fenced for a run that is over, Unavailable while a piece is being deleted.
    """
    sizes = sizes_of_pieces(told.files)
    async with database.transaction() as connection:
        writer = await hold_fence(
            connection,
            node.node_id,
            request.job_id,
            request.epoch,
            run_id=request.run_id,
            exclusive=True,
            following=True,
        )
        lead_run_id, rank = await _seat(connection, writer.run_id)
        known = await parts_of_step(connection, lead_run_id, request.step)
        row = next((one for one in known if one.rank == rank and one.digest == told.digest), None)
        if row is None or row.refused_why is not None:
            size_bytes = sum(file.size_bytes for file in told.files)
            row = replace(
                _new(ids, writer, (lead_run_id, rank), request.step), digest=told.digest, size_bytes=size_bytes
            )
            await claim_objects(connection, writer.project_id, sizes, now_ms=now_ms)
            part = Part(rank, told.files, told.listing)
            await add_part(connection, row, part, sizes, request.metrics, now_ms=now_ms)
            await delete_oldest_parts(connection, row, most=MAX_OPEN_STEPS)
            if rank == 0:
                await wake_gang(connection, await gang_of(connection, lead_run_id))
    if row.is_whole:
        return CheckpointOpened(checkpoint_id=row.part_id, urls={}, part=True)
    missing = await find_missing(database, objects, writer.project_id, sizes, now_ms=now_ms)
    async with database.statement() as connection:
        await set_part_opened(connection, row.part_id, sum(sizes[sha256] for sha256 in missing))
    urls = signed_puts(objects, writer.project_id, sizes, missing, expires_ms=now_ms + ttl_s * 1000)
    return CheckpointOpened(checkpoint_id=row.part_id, urls=urls, part=True)


async def refuse_part(
    connection: Connection, ids: IdSource, writer: Writer, step: int, why: str, *, now_ms: int
) -> None:
    """What this machine was to write of the step cannot be kept: the step never becomes a checkpoint, and the first
    machine hears why. Nothing for a job on one machine. The caller holds the fence."""
    seat = await seat_of(connection, writer.run_id)
    if seat is None:
        return
    lead_run_id, rank = seat
    known = [one for one in await parts_of_step(connection, lead_run_id, step) if one.rank == rank]
    if any(one.is_whole for one in known) or (rank == 0 and not known):
        return
    row = replace(_new(ids, writer, seat, step), refused_why=why)
    await add_part(connection, row, Part(rank, ()), {}, {}, now_ms=now_ms)
    await delete_oldest_parts(connection, row, most=MAX_OPEN_STEPS)


def _new(ids: IdSource, writer: Writer, seat: tuple[str, int], step: int) -> PartRow:
    """Of nothing yet."""
    lead_run_id, rank = seat
    return PartRow(
        part_id=ids.new("ckpt"),
        project_id=writer.project_id,
        job_id=writer.job_id,
        lead_run_id=lead_run_id,
        run_id=writer.run_id,
        rank=rank,
        epoch=writer.epoch,
        step=step,
        digest="",
        size_bytes=0,
    )


async def _seat(connection: Connection, run_id: str) -> tuple[str, int]:
    seat = await seat_of(connection, run_id)
    if seat is None:
        raise InvalidInput("only machines of a job on several write parts of a checkpoint", param="part")
    return seat
