"""Keep what a run's processes and GPUs use: apart from what user code measures, under names that are ours."""

from __future__ import annotations

import re

from allpass.wire.agent import SystemReport
from app.core.machine_clock import put_right
from app.db.engine import Database
from app.db.fences import hold_fence
from app.db.nodes.agents import NodeIdentity, clock_behind_ms
from app.db.runs.system import add_samples

_NAMES = re.compile(r"system/(cpu_percent|memory_bytes|gpu\d{1,3}/(util_percent|memory_bytes))")
_LARGEST = 2.0**62


async def record_system(database: Database, node: NodeIdentity, request: SystemReport) -> None:
    """Write the samples; names and values that nobody knows are left out. Raises Fenced for a run that is over,
    NotFound."""
    async with database.transaction() as connection:
        await hold_fence(connection, node.node_id, request.job_id, request.epoch, run_id=request.run_id)
        behind = await clock_behind_ms(connection, node.node_id)
        samples = {put_right(one.at_ms, behind): _known(one.values) for one in request.samples}
        kept = {at_ms: values for at_ms, values in samples.items() if values}
        if kept:
            await add_samples(connection, request.job_id, request.epoch, kept)


def _known(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if _NAMES.fullmatch(name) and 0 <= value <= _LARGEST}
