"""Replays a trace as the public Tiresias simulator does (SymbioticLab/Tiresias, counting GPUs only), to the job.

What it means there, and so here:
- All instants are whole seconds; fractions of a second are cut off.
- A cluster is a number of GPUs. Any free ones do, moving and preempting cost nothing.
- At one instant first all ends happen, then all arrivals, in the order of the file; then everything is planned anew.
- A job that needs more GPUs than there are never ends. Under `fifo` it holds up all jobs behind it.

Its slips are reproduced too, where they show; each is told where it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from app.errors import InvalidInput
from app.simulator.compat.las import replay_dlas
from app.simulator.compat.queueing import replay_fifo, replay_first_fit
from app.simulator.compat.record import CompatOutcome, JobRecord
from app.simulator.compat.shortest import replay_shortest, replay_shortest_gpu
from app.simulator.traces.job import Trace

SCHEDULES: Mapping[str, Callable[[list[JobRecord], int], None]] = MappingProxyType(
    {
        "fifo": replay_fifo,
        "fjf": replay_first_fit,
        "shortest": replay_shortest,
        "shortest-gpu": replay_shortest_gpu,
        "dlas-gpu": replay_dlas,
    }
)


def replay(trace: Trace, schedule: str, gpus: int) -> list[CompatOutcome]:
    """When each job starts and ends on a cluster of `gpus` GPUs, in the order of the trace.

    `schedule` is one of SCHEDULES: `fifo` (the head of the line blocks), `fjf` (jobs that do not fit are skipped),
    `shortest` (least remaining time first), `shortest-gpu` (remaining time x GPUs), `dlas-gpu` (Tiresias-L).
    A job that never ends has no `finish_s`.
    """
    if schedule not in SCHEDULES:
        raise InvalidInput(f"policy: {schedule!r} is none of {', '.join(SCHEDULES)}", param="policy")
    if gpus < 1:
        raise InvalidInput(f"gpus: {gpus} is below 1; give how many GPUs the cluster has", param="gpus")
    in_file_order = sorted(trace.jobs, key=lambda job: (int(job.submit_s), job.line))
    records = [JobRecord(job, place) for place, job in enumerate(in_file_order)]
    SCHEDULES[schedule](records, gpus)
    outcomes = {record.job.job_id: record.outcome() for record in records}
    return [outcomes[job.job_id] for job in trace.jobs]
