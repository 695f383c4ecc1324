"""The two readings of the paper, by name. ADR 0097 has the reason for each difference."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ElasticRules:
    """`by_own_second_gpu`: a gain is normalised as in equation 1, else by the job's speed on its first size.
    `preempts_by_gain`: a victim is chosen by what its next GPU would bring, else by what its last one brings.
    `least_served`: among equals of a queue, less GPU time received goes first and may preempt; else first come.
    `resets`: a promoted job's counter starts again. `heeds_costs`: a job grows only where that outweighs the resize.
    """

    name: str
    by_own_second_gpu: bool
    preempts_by_gain: bool
    least_served: bool
    resets: bool
    heeds_costs: bool


LITERAL = ElasticRules(
    "literal",
    by_own_second_gpu=True,
    preempts_by_gain=True,
    least_served=False,
    resets=False,
    heeds_costs=False,
)
MENDED = ElasticRules(
    "mended",
    by_own_second_gpu=False,
    preempts_by_gain=False,
    least_served=True,
    resets=True,
    heeds_costs=True,
)
RULES = {one.name: one for one in (LITERAL, MENDED)}
