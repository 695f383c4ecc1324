"""The order in which rows are locked, and the door through which a transaction locks more than one.

**Jobs, then runs, then nodes; each by ascending id.** Whoever locks in this order waits only for rows that come later
than all it holds, so that no two transactions ever wait for each other. Whatever belongs to one of these rows (moves,
allocations, checkpoints, operations, events, lines of the ledger) is written after its owner was locked, and a leader's
term is looked at before anything is locked.

A transaction that ends or moves a run writes the rows of other runs and nodes as well: of the machine at the other end
of a move. It finds these out as it goes, and two moves that cross between the same two machines would find them in
opposite orders. So a job is locked with its **reach**: its live runs, and the nodes that these hold. A job's runs come
and go under its lock only, and a node's under its own: once a row is locked, what it reaches stays as it is.

Jobs that belong together are locked together, whichever of them is meant: what happens to one is news for the others.
Which these are is said by the capabilities that join them (`app.db.locked_together`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable

from sqlalchemy import ColumnElement, Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.run import RunState
from app.db.arrays import is_one_of
from app.db.locked_together import LOCKED_TOGETHER
from app.db.tables import allocations, jobs, nodes, run_jobs, runs

# Ids carry their noun as a prefix.
LOCK_ORDER: tuple[tuple[str, Table], ...] = (("job_", jobs), ("run_", runs), ("node_", nodes))

Owners = Callable[[AsyncConnection, Collection[str]], Awaitable[set[str]]]


async def lock_rows(connection: AsyncConnection, ids: Iterable[str]) -> dict[str, int]:
    """Lock these rows and nothing else; the row version of each that there is. Held until the transaction ends."""
    wanted = sorted(set(ids))
    found: dict[str, int] = {}
    for prefix, table in LOCK_ORDER:
        mine = [row_id for row_id in wanted if row_id.startswith(prefix)]
        if mine:
            found |= await _lock(connection, table, is_one_of(table.c.id, mine))
    return found


async def lock_jobs(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, int]:
    """Lock jobs with those that they belong together with; the row version of each.

    Who these are is only certain once the jobs are locked: a job that was joined to them meanwhile costs a second try,
    as in `lock_nodes`.
    """
    known = {*job_ids, *await _joined(connection, job_ids)}
    while True:
        async with connection.begin_nested() as savepoint:
            found = await _lock(connection, jobs, is_one_of(jobs.c.id, known))
            certain = await _joined(connection, job_ids)
            if certain <= known:
                return found
            await savepoint.rollback()
        known |= certain


async def lock_scope(connection: AsyncConnection, ids: Iterable[str]) -> dict[str, int]:
    """Lock these rows, and of each job, and of those that belong together with it, the live runs with the nodes that
    they hold; the row version of each row."""
    wanted = set(ids)
    job_ids = {row_id for row_id in wanted if row_id.startswith("job_")}
    found = await lock_jobs(connection, job_ids) if job_ids else {}
    reached = await _reach(connection, found) if found else set()
    return found | await lock_rows(connection, (wanted - job_ids) | reached)


async def lock_run_reach(connection: AsyncConnection, run_id: str) -> tuple[str, ...]:
    """Lock the jobs of a run, and those that belong together with them, with their reach; the run's jobs, ascending. A
    run that is over is not locked itself: nothing is written to it any more."""
    rows = await connection.execute(select(run_jobs.c.job_id).where(run_jobs.c.run_id == run_id))
    job_ids = sorted(rows.scalars())
    if job_ids:
        found = await lock_jobs(connection, job_ids)
        await lock_rows(connection, await _reach(connection, found))
    return tuple(job_ids)


async def lock_nodes(connection: AsyncConnection, node_ids: Collection[str], owners: Owners, *, reach: bool) -> None:
    """Lock nodes, and before them the jobs that `owners` names (with their reach).

    Who they are is only certain once the nodes are locked. When somebody came meanwhile, the locks are given back
    (as a savepoint that is rolled back does) and taken anew.
    """
    known = await owners(connection, node_ids)
    lock = lock_scope if reach else lock_rows
    while True:
        async with connection.begin_nested() as savepoint:
            await lock(connection, {*node_ids, *known})
            certain = await owners(connection, node_ids)
            if certain <= known:
                return
            await savepoint.rollback()
        known |= certain


async def tenants_of(connection: AsyncConnection, node_ids: Collection[str]) -> set[str]:
    """The jobs of the live runs on these nodes, and those that the nodes were rented for."""
    live = (
        select(run_jobs.c.job_id)
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .where(
            is_one_of(allocations.c.node_id, node_ids), allocations.c.to_ms.is_(None), runs.c.state != RunState.ENDED
        )
    )
    rented_for = select(nodes.c.rented_for_job_id).where(
        is_one_of(nodes.c.id, node_ids), nodes.c.rented_for_job_id.is_not(None)
    )
    return set((await connection.execute(live.union(rented_for))).scalars())


async def _reach(connection: AsyncConnection, job_ids: Collection[str]) -> set[str]:
    rows = await connection.execute(
        select(allocations.c.run_id, allocations.c.node_id)
        .join(runs, runs.c.id == allocations.c.run_id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .where(is_one_of(run_jobs.c.job_id, job_ids), allocations.c.to_ms.is_(None), runs.c.state != RunState.ENDED)
    )
    return {row_id for row in rows for row_id in row}


async def _joined(connection: AsyncConnection, job_ids: Collection[str]) -> set[str]:
    return {job_id for hook in LOCKED_TOGETHER for job_id in await hook(connection, job_ids)}


async def _lock(connection: AsyncConnection, table: Table, which: ColumnElement[bool]) -> dict[str, int]:
    """By ascending id. No id is ever changed, so that whoever only refers to a row need not wait (`key_share`)."""
    rows = await connection.execute(
        select(table.c.id, table.c.row_version).where(which).order_by(table.c.id).with_for_update(key_share=True)
    )
    return {row.id: row.row_version for row in rows}
