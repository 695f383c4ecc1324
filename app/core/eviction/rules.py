"""Rules for whom to end on one node, by name.

`lost-work`: the cheapest exact cover of what is missing. Ours.
`literal`: the paper's (SpotGPU, section 4.2): jobs by G * (now - last checkpoint), the smallest prefix whose GPUs reach
the need; what is idle on the node does not count.
`newest`, `random`: the same prefix by latest start, and by numbers that were drawn; what is idle counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.core.eviction.amounts import Amounts, covers, lacking, plus
from app.core.eviction.cover import Cover, GiveUp, all_of, cheapest_cover
from app.core.eviction.spot_job import Shrink, SpotJob

Draws = Mapping[str, float]  # by job id, for the rule `random`


class EvictionRule(StrEnum):
    """Whom to end; the module says more."""

    LOST_WORK = "lost-work"
    LITERAL = "literal"
    NEWEST = "newest"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class NodeCover:
    """Whom to end or shrink on a node. Of several nodes the one of the lowest rank is taken."""

    rank: tuple[float, float, str]
    cover: Cover


@dataclass(frozen=True, slots=True)
class NodeQuestion:
    """A node with `free` that nobody else has a right to, where `need` in all is to fit for one more part."""

    node_id: str
    free: Amounts
    need: Amounts
    part: Amounts
    jobs: tuple[SpotJob, ...]
    shrunk: Mapping[str, Shrink]


def cover_on_node(rule: EvictionRule, asked: NodeQuestion, now_ms: int, draws: Draws) -> NodeCover | None:
    """None where the node's jobs are not enough. Raises KeyError for `random` without a draw for each job."""
    if rule is EvictionRule.LOST_WORK:
        return by_lost_work(asked, now_ms)
    if rule is EvictionRule.LITERAL:
        return _by_literal_cost(asked, now_ms)
    orders: Mapping[EvictionRule, Callable[[SpotJob], float]] = {
        EvictionRule.NEWEST: lambda job: -job.started_ms,
        EvictionRule.RANDOM: lambda job: draws[job.job_id],
    }
    missing = lacking(asked.need, asked.free)
    return _prefix(asked, missing, orders[rule], now_ms, lambda ordered: orders[rule](ordered[0]))


def by_lost_work(asked: NodeQuestion, now_ms: int) -> NodeCover | None:
    """Nodes where shrinking is enough come first, then the least that is wasted by ending."""
    options = [
        option for job in asked.jobs for option in job.options(asked.node_id, now_ms, asked.shrunk.get(job.job_id))
    ]
    cover = cheapest_cover(options, lacking(asked.need, asked.free))
    if cover is None:
        return None
    return NodeCover((cover.ended_gpu_us > 0, cover.ended_gpu_us or cover.shrunk_gpu_us, asked.node_id), cover)


def _by_literal_cost(asked: NodeQuestion, now_ms: int) -> NodeCover | None:
    def cost(job: SpotJob) -> float:
        return job.literal_cost_gpu_us(now_ms)

    return _prefix(asked, asked.part, cost, now_ms, lambda ordered: sum(map(cost, ordered)))


def _prefix(
    asked: NodeQuestion,
    missing: Amounts,
    order: Callable[[SpotJob], float],
    now_ms: int,
    rank: Callable[[list[SpotJob]], float],
) -> NodeCover | None:
    """The first jobs in this order that together free what is missing. Nobody shrinks."""
    freed = tuple(0 for _ in missing)
    taken: list[SpotJob] = []
    for job in sorted(asked.jobs, key=lambda one: (order(one), one.job_id)):
        if covers(freed, missing):
            break
        freed = plus(freed, job.holds[asked.node_id])
        taken.append(job)
    if not taken or not covers(freed, missing):
        return None
    ended = [GiveUp(job.job_id, job.holds[asked.node_id], job.ending_gpu_us(now_ms)) for job in taken]
    return NodeCover((0, rank(taken), asked.node_id), all_of(ended))
