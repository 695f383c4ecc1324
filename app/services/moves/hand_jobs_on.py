"""A machine could not be had, or never called home: its jobs take the next offer. Nobody's fault."""

from __future__ import annotations

from enum import StrEnum

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.run import RunEnd, RunState
from app.db.connection import Connection
from app.db.nodes.lifecycle import NodeRow, any_ran, avoid_offer_for, has_avoided, is_over
from app.db.offers.listed import delete_offer
from app.db.runs.live_runs import live_runs_of_node, lock_run
from app.db.transitions import Event, add_job_event
from app.ports.clock import IdSource
from app.services.runs.end_run import end_run

# The first time an offer fails a job, the next one is tried almost at once; when it fails again, later.
FIRST_BACK_OFF_MS = 1_000
NEXT_BACK_OFF_MS = 30_000


class Against(StrEnum):
    """What speaks against the offer of a machine that could not be had."""

    OFFER = "offer"  # itself: another one is taken next
    MOMENT = "moment"  # its provider failed in passing: it is left for its like, and for nothing larger
    NOTHING = "nothing"  # our account was refused, or the image is not built


async def hand_jobs_on(
    connection: Connection, ids: IdSource, node: NodeRow, message: str, *, now_ms: int, against: Against = Against.OFFER
) -> None:
    """Give the node's jobs back to the queue, with a reason to take another offer next.

    Call it with the node locked (`lock_node`). A job that never ran is queued again; one that did waits to go on.
    This uses up no fault budget. What becomes of the node itself is the caller's matter.
    """
    if against is Against.OFFER:
        await delete_offer(connection, node.offer)
    run_ids = await live_runs_of_node(connection, node.node_id)
    for run_id in run_ids:
        run = await lock_run(connection, run_id)
        if run is None:
            continue
        if run.state is RunState.STANDBY:  # its job trains elsewhere, and rather moves to another machine next
            for job_id in run.job_ids:
                await _leave_alone(connection, job_id, node, against, not_before_ms=now_ms + FIRST_BACK_OFF_MS)
        ran = await any_ran(connection, run.job_ids)
        state = JobState.WAITING if ran else JobState.QUEUED
        outcome = Outcome(RunEnd.NODE_LOST, state, None, False, message)
        not_before_ms = await _not_before_ms(connection, run.job_ids, node.offer.key, now_ms=now_ms)
        await end_run(
            connection,
            ids,
            run_id,
            outcome,
            now_ms=now_ms,
            avoid_offer=node.offer.key if against is Against.OFFER else None,
            unreached_offer=node.offer.key if against is Against.MOMENT else None,
            not_before_ms=not_before_ms,
        )
    if not run_ids and node.rented_for_job_id is not None:
        await _tell_who_waits(connection, node, message, now_ms=now_ms)
        job_ids = (node.rented_for_job_id,)
        not_before_ms = await _not_before_ms(connection, job_ids, node.offer.key, now_ms=now_ms)
        await _leave_alone(connection, node.rented_for_job_id, node, against, not_before_ms=not_before_ms)


async def _leave_alone(
    connection: Connection, job_id: str, node: NodeRow, against: Against, *, not_before_ms: int
) -> None:
    """The job rather takes another offer next, if anything speaks against this one."""
    if against is not Against.NOTHING:
        in_passing = against is Against.MOMENT
        await avoid_offer_for(connection, job_id, node.offer.key, not_before_ms=not_before_ms, in_passing=in_passing)


async def _tell_who_waits(connection: Connection, node: NodeRow, message: str, *, now_ms: int) -> None:
    """The job that the node was rented for, while it may still want one."""
    if node.rented_for_job_id is None or await is_over(connection, node.rented_for_job_id):
        return
    told = Event("node_given_up", message, {"node_id": node.node_id, "offer": node.offer.key})
    await add_job_event(connection, node.rented_for_job_id, told, now_ms=now_ms)


async def _not_before_ms(connection: Connection, job_ids: tuple[str, ...], offer_key: str, *, now_ms: int) -> int:
    again = await has_avoided(connection, job_ids, offer_key)
    return now_ms + (NEXT_BACK_OFF_MS if again else FIRST_BACK_OFF_MS)
