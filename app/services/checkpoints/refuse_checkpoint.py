"""Take in that a checkpoint, or an output file, cannot be kept: its owner is told, and no plan moves the job. And that
a tracker does not get its metrics, which its owner is told once."""

from __future__ import annotations

from allpass.wire.agent import Refusal
from app.core.model.move import MoveState
from app.db.checkpoints.unsaved import at_risk, set_refused
from app.db.engine import Database
from app.db.fences import hold_fence
from app.db.lock_order import lock_jobs
from app.db.moves.planned_moves import open_move_of_job
from app.db.nodes.agents import NodeIdentity
from app.db.reading.event_tail import has_event
from app.db.text import storable_text
from app.db.transitions import Event, add_job_event
from app.ports.clock import IdSource
from app.services.checkpoints.open_part import refuse_part
from app.services.moves.advance_move import call_off_move

UNTRACKED = "tracking_refused"


async def refuse_checkpoint(
    database: Database, ids: IdSource, node: NodeIdentity, request: Refusal, *, now_ms: int
) -> None:
    """The first refusal of a job is an event; later ones, until a checkpoint is kept, change what `show` says. A move
    that is being prepared is called off. What a further machine of a job cannot keep, the first one hears of.

    Raises Fenced for a run that is over, NotFound.
    """
    why = storable_text(request.why)
    async with database.transaction() as connection:
        await lock_jobs(connection, [request.job_id])  # a move that is called off reaches another machine
        of_part = request.what == "checkpoint"
        who = node.node_id, request.job_id, request.epoch
        writer = await hold_fence(connection, *who, run_id=request.run_id, exclusive=True, following=of_part)
        if of_part:
            await refuse_part(connection, ids, writer, request.step, why, now_ms=now_ms)
        if writer.follows:  # the first machine tells it, of which the step was to be
            return
        data = {"run_id": request.run_id, "step": request.step, "why": why}
        if request.what == "tracking":
            told = f"its metrics do not reach their tracker: {why}. The training goes on, and Allpass has them all"
            if not await has_event(connection, request.job_id, UNTRACKED):
                await add_job_event(connection, request.job_id, Event(UNTRACKED, told, data), now_ms=now_ms)
            return
        if request.what == "output":
            event = Event("output_refused", f"not all that it leaves behind is kept: {why}", data)
            await add_job_event(connection, request.job_id, event, now_ms=now_ms)
            return
        if not await set_refused(connection, request.job_id, why, now_ms=now_ms):
            return
        risk = await at_risk(connection, request.job_id, now_ms=now_ms)
        move = await open_move_of_job(connection, request.job_id)
        if move is not None and move.state is MoveState.PREPARING:  # nobody was asked to leave yet
            await call_off_move(connection, ids, move, f"the job cannot save: {why}", now_ms=now_ms)
        told = (
            f"the checkpoint of step {request.step} cannot be kept: {why}. "
            f"Until one is kept, the job is not moved; the steps since {risk.since()} would be lost"
        )
        await add_job_event(
            connection,
            request.job_id,
            Event("checkpoint_refused", told, {**data, "kept_step": risk.kept_step}),
            now_ms=now_ms,
        )
