"""How fast a job is with each number of GPUs, as far as jobs of its app were measured."""

from __future__ import annotations

from app.core.explaining.facts import Remark
from app.core.policies.reasons import gpus
from app.core.throughput import plain_gpu
from app.db.connection import Connection
from app.db.learning.size_speeds import speeds_of_job


async def explain_speeds(connection: Connection, job_id: str, gpu_type: str) -> list[Remark]:
    """On GPUs of the kind that it has. Nothing where fewer than two numbers were measured: then nothing is compared."""
    kind = plain_gpu(gpu_type)
    known = {count: one for (of, count), one in (await speeds_of_job(connection, job_id)).items() if of == kind}
    if len(known) < 2:
        return []
    first = known[min(known)].steps_per_s
    told = [
        f"{gpus(count, gpu_type)}: {one.steps_per_s:.3g} steps/s"
        f" ({one.steps_per_s / first:.2f} times, ±{100 * one.noise:.0f}%)"
        for count, one in sorted(known.items())
    ]
    data = {"steps_per_s": {str(count): one.steps_per_s for count, one in sorted(known.items())}}
    return [Remark(f"jobs of its app were measured with {'; '.join(told)}", data)]
