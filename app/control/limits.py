"""Hold the installation to what it may rent from companies that ask for real money.

What is decided on shows nothing that the limits do not allow (`observe.py`), what is rented is checked where it is
written (`renting.py`), and here, when the meter was read, what runs is held: jobs save and pause, what is idle ends,
and all goes on by itself when the day is over or an owner allows more.
"""

from __future__ import annotations

from app.control.context import ControlContext
from app.control.each import each
from app.core.model.health import Chore
from app.core.model.job import TERMINAL_JOB_STATES, PauseReason
from app.db.connection import Connection
from app.db.decisions.enactment import held_gpus
from app.db.jobs.steering import lock_standing
from app.db.lock_order import lock_scope
from app.db.money.limits import idle_machines, jobs_at, jobs_held_by_limit, read_limits, rented_now
from app.services.jobs.hold_job import hold_job
from app.services.jobs.let_go_on import let_go_on
from app.services.nodes.check_addresses import real_providers
from app.services.nodes.release_node import release_node

RELEASED = "the day's limit at real providers is reached, and it holds nothing"
GOES_ON = "what may be spent at real providers in a day allows it again"


async def hold_to_limits(context: ControlContext) -> int:
    """Returns how many jobs were held or let go on. Each has a transaction of its own."""
    now_ms, real = context.clock.now_ms(), real_providers(context.settings)
    over, job_ids, idle = False, [], list[str]()
    async with context.database.transaction() as connection:
        if real:
            limits = await read_limits(connection)
            over = limits.per_day is not None and (await rented_now(connection, real, now_ms=now_ms)).over_day(limits)
        if over:
            job_ids, idle = await jobs_at(connection, real), await idle_machines(connection, real)
        else:
            job_ids = await jobs_held_by_limit(connection)

    async def hold(connection: Connection, job_id: str) -> None:
        job = await lock_standing(connection, job_id)
        if job is not None and job.state not in TERMINAL_JOB_STATES:
            await hold_job(connection, context.ids, job, PauseReason.DAY_LIMIT, now_ms=now_ms)

    async def go_on(connection: Connection, job_id: str) -> None:
        await let_go_on(connection, job_id, PauseReason.DAY_LIMIT, GOES_ON, now_ms=now_ms)

    async def end(connection: Connection, node_id: str) -> None:
        await lock_scope(connection, {node_id})
        if not await held_gpus(connection, node_id):
            await release_node(connection, context.ids, node_id, RELEASED, now_ms=now_ms)

    await each(context, Chore.LIMITS, job_ids, hold if over else go_on)
    await each(context, Chore.LIMITS, idle, end)
    return len(job_ids)
