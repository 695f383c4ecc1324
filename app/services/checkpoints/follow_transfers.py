"""Large checkpoints take their time. Whoever waits for one is patient as long as something of it comes."""

from __future__ import annotations

import asyncio

from allpass.wire.agent import TransferReport
from app.core.model.transfer import TransferKind
from app.db.checkpoints.parts import last_part_arrival_ms, part_pieces_awaited
from app.db.checkpoints.transfers import last_arrival_ms, pieces_awaited, set_arrival, set_transfer
from app.db.engine import Database
from app.db.fences import hold_fence
from app.db.nodes.agents import NodeIdentity
from app.errors import InvalidInput, StoreError
from app.ports.objects import ObjectStore
from app.services.checkpoints.find_pieces import find_missing

_PIECES_LOOKED_FOR = 256
_LOOK_S = 20.0


async def take_transfer(database: Database, node: NodeIdentity, request: TransferReport, *, now_ms: int) -> None:
    """Note how far a run says it is. Raises InvalidInput for more than all, Fenced for a run that is over."""
    if request.done_bytes > request.total_bytes:
        raise InvalidInput(f"{request.done_bytes} of {request.total_bytes} bytes cannot be done", param="done_bytes")
    async with database.transaction() as connection:
        writer = await hold_fence(
            connection, node.node_id, request.job_id, request.epoch, run_id=request.run_id, to_read=True, leaving=True
        )
        await set_transfer(
            connection,
            writer.run_id,
            TransferKind(request.kind),
            request.done_bytes,
            request.total_bytes,
            now_ms=now_ms,
        )


async def still_comes(
    database: Database, objects: ObjectStore | None, run_id: str, *, since_ms: int, now_ms: int
) -> bool:
    """Whether something of the checkpoint that this run sends has come since then, or of a part of it that it waits
    for, from another machine of its job.

    An agent's word that it sends is not enough: the store is asked for pieces that are not known yet. While the store
    does not answer, nobody could send anything, and nothing is concluded.
    """
    async with database.statement() as connection:
        if max(await last_arrival_ms(connection, run_id), await last_part_arrival_ms(connection, run_id)) > since_ms:
            return True
        project_id, awaited = await pieces_awaited(connection, run_id, most=_PIECES_LOOKED_FOR)
        if not awaited:
            project_id, awaited = await part_pieces_awaited(connection, run_id, most=_PIECES_LOOKED_FOR)
    if not awaited or objects is None:
        return False
    try:
        async with asyncio.timeout(_LOOK_S):
            missing = await find_missing(database, objects, project_id, awaited, now_ms=now_ms)
    except (StoreError, TimeoutError):
        return True
    except InvalidInput:  # a piece is stored with another size than the manifest says: it can never be committed
        return False
    if len(missing) == len(awaited):
        return False
    async with database.statement() as connection:
        await set_arrival(connection, run_id, now_ms=now_ms)
    return True
