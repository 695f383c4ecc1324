"""May this agent still write for this job? Asked under a lock, in the transaction of the write itself."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.run import RunState
from app.db.tables import allocations, jobs, run_jobs, runs
from app.errors import Fenced, NotFound


@dataclass(frozen=True, slots=True)
class Writer:
    """A run's right to write for one of its jobs."""

    run_id: str
    job_id: str
    project_id: str
    epoch: int
    run_state: RunState
    follows: bool = False  # it is live, and one of the further machines of a job on several


async def hold_fence(
    connection: AsyncConnection,
    node_id: str,
    job_id: str,
    epoch: int,
    *,
    run_id: str | None = None,
    exclusive: bool = False,
    to_read: bool = False,
    leaving: bool = False,
    following: bool = False,
) -> Writer:
    """Let the writer through only while its run is live on this node and holds the job's current epoch.
    `to_read`: or stands by for the job, or follows the run that has it, on a further machine. `following`: or follows
    it: for what counts only with what that run writes. `leaving`: or has handed it over, and has not told its end.

    The job and run rows stay locked until the transaction ends (shared; `exclusive` when the job row is going to be
    written), so that nobody can end the run between this check and the write. Raises NotFound for jobs that
    never ran on this node, Fenced for writers whose time is over.
    """
    writer, current_epoch = await _writer(connection, node_id, job_id, epoch, run_id, lock=True, exclusive=exclusive)
    if to_read and (writer.run_state is RunState.STANDBY or writer.follows):
        return writer
    if following and writer.follows:
        return writer
    if leaving and writer.run_state is RunState.STOPPING:
        return writer
    if writer.run_state is RunState.ENDED or current_epoch != epoch:
        raise Fenced(f"epoch {epoch} of {job_id} is over (it is now {current_epoch}); stop this run")
    return writer


async def find_writer(
    connection: AsyncConnection, node_id: str, job_id: str, epoch: int, *, run_id: str | None = None
) -> Writer:
    """Like `hold_fence`, but a run that is over is let through too, and nothing is locked.

    Only for what must not be lost to fencing and cannot harm: logs, and bytes named by their own hash.
    """
    writer, _current_epoch = await _writer(connection, node_id, job_id, epoch, run_id, lock=False, exclusive=False)
    return writer


async def _writer(
    connection: AsyncConnection,
    node_id: str,
    job_id: str,
    epoch: int,
    run_id: str | None,
    *,
    lock: bool,
    exclusive: bool,
) -> tuple[Writer, int]:
    on_this_node = exists().where(allocations.c.run_id == runs.c.id, allocations.c.node_id == node_id)
    statement = (
        select(runs.c.id, runs.c.state, runs.c.member_of, jobs.c.project_id, jobs.c.epoch)
        .select_from(run_jobs)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .where(run_jobs.c.job_id == job_id, run_jobs.c.epoch == epoch, on_this_node)
    )
    if lock:
        statement = statement.with_for_update(read=not exclusive, key_share=exclusive, of=[jobs, runs])
    row = (await connection.execute(statement)).one_or_none()
    if row is None or (run_id is not None and row.id != run_id):
        await _refuse(connection, node_id, job_id, epoch)
        raise AssertionError("unreachable")
    state = read_as(RunState, row.state)
    follows = row.member_of is not None and state is not RunState.ENDED
    return Writer(row.id, job_id, row.project_id, epoch, state, follows), row.epoch


async def _refuse(connection: AsyncConnection, node_id: str, job_id: str, epoch: int) -> None:
    ran_here = await connection.execute(
        select(run_jobs.c.run_id)
        .join(allocations, allocations.c.run_id == run_jobs.c.run_id)
        .where(run_jobs.c.job_id == job_id, allocations.c.node_id == node_id)
        .limit(1)
    )
    if ran_here.first() is None:
        raise NotFound(f"no run of {job_id} is on this node", param="job_id")
    raise Fenced(f"this node holds no run of {job_id} at epoch {epoch}; stop it")
