"""A job with a range of GPUs whose speeds at some sizes are known, and machines of three sizes on offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import Tier
from app.db.tables import metric_points, runs, size_speeds
from tests.control.fake_provider import make_offer
from tests.control.test_lending import Pool

STEP_MS = 1_000


class MeasuredPool(Pool):
    """`offers` and `measure` make it so, once the job has begun."""

    def offers(self, gpu_usd: float) -> None:
        """Machines of one, two and four GPUs, at so much for a GPU and hour."""
        self.world.cloud.on_offer = [
            replace(
                make_offer("cloud", f"market-{gpus}", Tier.MARKETPLACE, f"{gpu_usd * gpus:.2f}", startup_ms=30_000),
                gpu_count=gpus,
                cpus=8 * gpus,
            )
            for gpus in (1, 2, 4)
        ]

    async def measure(self, connection: AsyncConnection, speeds: Mapping[int, float]) -> None:
        """Its code runs from now on, has told of eight steps, and its app knows these steps a second by GPUs."""
        now_ms = self.world.clock.now_ms()
        await connection.execute(update(runs).where(runs.c.id == self.run_id).values(running_ms=now_ms))
        for gpus, steps_per_s in speeds.items():
            known = {"steps_per_s": steps_per_s, "noise": 0.0, "samples": 1, "updated_ms": 1}
            row = {"app_id": self.world.app[0], "shape": "", "gpu_type": "a100", "gpus": gpus} | known
            await connection.execute(size_speeds.insert().values(row))
        for step in range(1, 9):
            point = {"job_id": self.lender, "epoch": 1, "step": step, "at_ms": now_ms + step * STEP_MS}
            await connection.execute(metric_points.insert().values(**point, values={}))
