"""End a run, whoever found out that it is over: its agent, the reconciler, a cancellation, a cap."""

from __future__ import annotations

from app.core.lifecycle import Outcome
from app.core.model.job import JobState
from app.core.model.node import Tier
from app.core.model.run import RunEnd, RunState
from app.db.checkpoints import abort_open_checkpoints
from app.db.handles import Connection
from app.db.job_endings import give_back_job
from app.db.runs import RunRow, close_allocations, lock_run
from app.db.transitions import Event, bump_desired, move_job, move_run
from app.ports.clock import IdSource
from app.services.release_node import release_node

_PLANNED_MOVES = frozenset({RunEnd.DEMOTED, RunEnd.MIGRATED, RunEnd.PREEMPTED})


async def end_run(
    connection: Connection,
    ids: IdSource,
    run_id: str,
    outcome: Outcome,
    *,
    now_ms: int,
    avoid_offer: str | None = None,
    not_before_ms: int = 0,
) -> bool:
    """Close the run, hand its jobs on as `outcome` says, and let go of a node that dies with its run.

    False, with nothing written, when the run is already over: the first to find out decides. The jobs' epoch is
    raised, so that nothing this run still sends can count. `avoid_offer` keeps the next placement from the same
    offer; `not_before_ms` is a back-off.
    """
    run = await lock_run(connection, run_id)
    if run is None or run.state is RunState.ENDED:
        return False
    event = Event(f"run_{outcome.run_end}", outcome.message, {"tier": run.tier})
    await move_run(
        connection,
        run_id,
        RunState.ENDED,
        event,
        now_ms=now_ms,
        end_reason=outcome.run_end,
        end_message=outcome.message,
        ended_ms=now_ms,
    )
    await close_allocations(connection, run_id, now_ms=now_ms)
    await abort_open_checkpoints(connection, run_id)
    for job_id in run.job_ids:
        await give_back_job(
            connection,
            job_id,
            serverless_ms=_serverless_ms(run, now_ms),
            fault=outcome.fault,
            planned_move=outcome.run_end in _PLANNED_MOVES,
            avoid_offer=avoid_offer,
            not_before_ms=not_before_ms,
        )
        await _move_job_on(connection, job_id, outcome, now_ms=now_ms)
    if run.tier is Tier.SERVERLESS:
        await release_node(connection, ids, run.node_id, f"its run ended: {outcome.message}", now_ms=now_ms)
    await bump_desired(connection, run.node_id)
    return True


async def _move_job_on(connection: Connection, job_id: str, outcome: Outcome, *, now_ms: int) -> None:
    final = outcome.job_state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    columns: dict[str, object] = {"wait_reason": None}
    if final:
        columns |= {"end_reason": outcome.job_end, "end_message": outcome.message, "ended_ms": now_ms}
    await move_job(
        connection,
        job_id,
        outcome.job_state,
        Event(outcome.job_state, outcome.message, {"reason": outcome.job_end} if final else {}),
        now_ms=now_ms,
        **columns,
    )


def _serverless_ms(run: RunRow, now_ms: int) -> int:
    if run.tier is not Tier.SERVERLESS or run.running_ms is None:
        return 0
    return max(0, now_ms - run.running_ms)
