"""How many GPUs a job has had over time, why they changed, and how fast it was with them."""

from __future__ import annotations

from dataclasses import replace

from app.core.size_history import Size, explained
from app.core.throughput import plain_gpu
from app.db.connection import Connection
from app.db.learning.size_speeds import speeds_of_job
from app.db.reading.sizes import sizes_after, wishes_of


async def list_sizes(connection: Connection, job_id: str, after: tuple[int, str] | None, *, limit: int) -> list[Size]:
    """Oldest first, of those that come after a (from_ms, id). The caller has checked that the job is of its project."""
    held = await sizes_after(connection, job_id, after, limit=limit)
    several = any(one.machines > 1 for one in held)
    changed = {one.run_id for one in held if several or one.before is not None}
    wishes = await wishes_of(connection, job_id, sorted(changed)) if changed else []
    speeds = await speeds_of_job(connection, job_id) if held else {}
    return [
        size
        if size.held.machines > 1  # between them there is a network, of whose speed nothing is kept
        else replace(size, speed=speeds.get((plain_gpu(size.held.gpu_type), size.held.gpus)))
        for size in explained(held, wishes)
    ]
