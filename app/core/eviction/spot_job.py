"""A spot job as the one who looks for victims sees it: where it holds what, and what ending or shrinking it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.core.eviction.amounts import Amounts, lacking
from app.core.eviction.cost import GrowingCost
from app.core.eviction.cover import GiveUp


@dataclass(frozen=True, slots=True)
class Shrink:
    """What an elastic job would give back by node without ending, and what that costs."""

    frees: Mapping[str, Amounts]
    cost: GrowingCost


@dataclass(frozen=True, slots=True)
class SpotJob:
    """A job that may be ended. It ends on all its nodes at once, so its cost is that of all its GPUs.

    `saved_ms`: its last checkpoint, or its start where there is none. Before `protected_until_ms` nothing is taken
    from it. `shrinks`: ways to give less than all, of which one is taken at most.
    `unsaved_gpu_ms`: of several jobs that end together, the sum that the paper's rule counts; None: one job's.
    """

    job_id: str
    holds: Mapping[str, Amounts]
    gpus: int
    started_ms: int
    saved_ms: int
    cost: GrowingCost
    protected_until_ms: int = 0
    shrinks: tuple[Shrink, ...] = ()
    unsaved_gpu_ms: int | None = None

    def options(self, node_id: str, now_ms: int, shrunk: Shrink | None = None) -> Iterator[GiveUp]:
        """What it can give on a node now. One that has shrunk already can give the rest by ending."""
        held = self.holds.get(node_id)
        if held is None:
            return
        given = shrunk.frees.get(node_id) if shrunk else None
        yield GiveUp(self.job_id, lacking(held, given) if given else held, self.ending_gpu_us(now_ms))
        if shrunk is None:
            for number, one in enumerate(self.shrinks):
                if node_id in one.frees:
                    yield GiveUp(self.job_id, one.frees[node_id], one.cost.at(now_ms), number)

    def ending_gpu_us(self, now_ms: int) -> int:
        """What ending it costs: always something, so that it never looks as good as shrinking."""
        return 1 + self.cost.at(now_ms)

    def literal_cost_gpu_us(self, now_ms: int) -> int:
        """The paper's C_t = G_t * (now - last checkpoint)."""
        if self.unsaved_gpu_ms is not None:
            return 1000 * self.unsaved_gpu_ms
        return 1000 * self.gpus * max(0, now_ms - self.saved_ms)
