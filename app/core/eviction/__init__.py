"""Whom to end when a guaranteed job does not fit: spot jobs, by the work that ending them loses (SpotGPU, section 4.2).

Owns: what ending a job costs (`cost`), the cheapest cover of a node (`cover`), rules by name (`rules`), the choice over
nodes and for gangs (`choosing`), the same kept ready over many nodes (`index`), who may use what was freed
(`reserving`), and where jobs start without ending any (`placing`). It decides and does nothing: saving, stopping and
starting are others' work. Instants, draws and histories are arguments.
"""

from app.core.eviction.amounts import Amounts
from app.core.eviction.choosing import GuaranteedNeed, NoVictims, Victims, choose_victims
from app.core.eviction.cost import (
    GraceSaves,
    GrowingCost,
    PoolHabits,
    Saving,
    cost_of_ending,
    literal_cost,
    pool_habits,
)
from app.core.eviction.index import VictimIndex
from app.core.eviction.placing import DecayedCount, NodeRoom, place_beside, rank_beside
from app.core.eviction.reserving import Reservation, free_for, still_reserved
from app.core.eviction.rules import EvictionRule
from app.core.eviction.spot_job import Shrink, SpotJob

__all__ = [
    "Amounts",
    "DecayedCount",
    "EvictionRule",
    "GraceSaves",
    "GrowingCost",
    "GuaranteedNeed",
    "NoVictims",
    "NodeRoom",
    "PoolHabits",
    "Reservation",
    "Saving",
    "Shrink",
    "SpotJob",
    "VictimIndex",
    "Victims",
    "choose_victims",
    "cost_of_ending",
    "free_for",
    "literal_cost",
    "place_beside",
    "pool_habits",
    "rank_beside",
    "still_reserved",
]
