"""A job that leads in turn looks at the rows of the one that will begin with its weights: what it is told, and says."""

from __future__ import annotations

from allpass.wire.agent import RunReport, Watch
from app.core.model.run import RunPurpose, RunState
from app.db.connection import Connection
from app.db.decisions.enactment import node_of_run
from app.db.engine import Database
from app.db.merging.merges import set_fruitless, watched_by
from app.db.runs.desired_state import RunOrder
from app.db.runs.live_runs import live_run_of_job
from app.db.transitions import bump_desired

_TRAINS = (RunState.ASSIGNED, RunState.STARTING, RunState.PROMOTING, RunState.RUNNING)


async def watch_of(connection: Connection, order: RunOrder) -> Watch | None:
    """Whose rows the run is to look at, as long as it trains and the two are merged."""
    if order.state not in _TRAINS or order.purpose is not RunPurpose.TRAIN:
        return None
    found = await watched_by(connection, order.job_id)
    if found is None:
        return None
    return Watch(
        job_id=found.job_id,
        bundle_sha256=found.bundle_sha256,
        bundle_size_bytes=found.bundle_size_bytes,
        parameters=found.parameters,
    )


async def tell_watcher(connection: Connection, lead_id: str) -> None:
    """Whom the lead is to look at has changed, and it may be training."""
    run_id = await live_run_of_job(connection, lead_id)
    node_id = None if run_id is None else await node_of_run(connection, run_id)
    if node_id is not None:
        await bump_desired(connection, node_id)


async def take_watch(database: Database, report: RunReport) -> None:
    """For how many epochs the companion has gained nothing from the lead's weights. Saying it again changes nothing."""
    if report.watch is not None:
        async with database.statement() as connection:
            await set_fruitless(
                connection, report.job_id, report.epoch, report.watch.job_id, float(report.watch.fruitless_epochs)
            )
