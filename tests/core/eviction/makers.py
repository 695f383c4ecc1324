"""Spot jobs, nodes and small cases for the tests of eviction, and the plain answers that they are held to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from hypothesis import strategies as st

from app.core.eviction import Amounts, GrowingCost, GuaranteedNeed, NodeRoom, SpotJob
from app.core.eviction.amounts import covers, how_often, plus

SECOND_US = 1_000_000


def spot(
    job_id: str,
    gpus: int,
    cost: int = 0,
    node: str = "n1",
    *,
    growth: int = 0,
    saved_ms: int = 0,
    started_ms: int = 0,
    protected_until_ms: int = 0,
) -> SpotJob:
    """A job on one node, `cost` in GPU-microseconds."""
    line = GrowingCost(cost, growth)
    return SpotJob(job_id, {node: (gpus,)}, gpus, started_ms, saved_ms, line, protected_until_ms)


def room(node: str = "n1", free: int = 0) -> NodeRoom:
    return NodeRoom(node, (free,))


def fits(need: GuaranteedNeed, rooms: Iterable[NodeRoom], ended: Iterable[SpotJob]) -> bool:
    """Whether all parts fit once these jobs have ended, counted node by node."""
    free = {one.node_id: one.free for one in rooms}
    for job in ended:
        for node_id, held in job.holds.items():
            if node_id in free:
                free[node_id] = plus(free[node_id], held)
    return sum(how_often(need.part, amounts) for amounts in free.values()) >= need.parts


def cheapest_ending(
    need: GuaranteedNeed, rooms: Sequence[NodeRoom], jobs: Sequence[SpotJob], now_ms: int = 0
) -> int | None:
    """What the cheapest set of jobs costs, by trying all sets; None where even all are not enough."""
    costs = [
        sum(job.ending_gpu_us(now_ms) for job in some)
        for size in range(len(jobs) + 1)
        for some in combinations(jobs, size)
        if fits(need, rooms, some)
    ]
    return min(costs, default=None)


def cheapest_subset(options: Mapping[str, tuple[Amounts, int]], missing: Amounts) -> int | None:
    """The same for one node with vectors."""
    costs = []
    for size in range(len(options) + 1):
        for some in combinations(options.values(), size):
            freed = tuple(sum(one[0][place] for one in some) for place in range(len(missing)))
            if covers(freed, missing):
                costs.append(sum(one[1] for one in some))
    return min(costs, default=None)


@st.composite
def worlds(draw: st.DrawFn, most_nodes: int = 3) -> tuple[list[NodeRoom], list[SpotJob]]:
    """Nodes of eight GPUs, filled with spot jobs (some over two nodes) as far as it goes."""
    names = [f"n{number}" for number in range(draw(st.integers(1, most_nodes)))]
    free = dict.fromkeys(names, 8)
    jobs: list[SpotJob] = []
    for number in range(draw(st.integers(0, 8))):
        wanted = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        gpus = draw(st.integers(1, 4))
        if any(free[node] < gpus for node in wanted):
            continue
        for node in wanted:
            free[node] -= gpus
        cost = GrowingCost(draw(st.integers(0, 50)), draw(st.integers(0, 2_000)), draw(st.integers(0, 20)))
        holds = dict.fromkeys(wanted, (gpus,))
        age = draw(st.integers(0, 20))
        jobs.append(SpotJob(f"j{number}", holds, gpus * len(wanted), age, age, cost, draw(st.sampled_from([0, 0, 30]))))
    return [room(name, free[name]) for name in names], jobs
