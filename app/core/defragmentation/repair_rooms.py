"""Hosts are vacated so that a job on several machines comes together under one switch (ADR 0123). Pure.

A chain of moves whose last one is the job's own: small jobs leave hosts under a switch, by the moves there are, and it
goes there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from app.core.defragmentation.closer import Closer, is_closer, reached
from app.core.defragmentation.gang_room import GangRoom, GangWish
from app.core.defragmentation.model import NodeRelease, SearchBounds
from app.core.defragmentation.packed_fleet import PackedFleet
from app.core.defragmentation.packing import Packing
from app.core.defragmentation.planning import rooms_for_gangs
from app.core.defragmentation.repairs import GangHere, Repairs, SwitchRepair, repair_of
from app.core.topology import Domain

_MOST_SWITCHES = 16  # that are looked at for one job
Vacated = tuple[SwitchRepair, GangRoom, tuple[NodeRelease, ...]]


def room_for_one(
    repairs: Repairs, blocked: Iterable[GangHere], packing: Packing, bounds: SearchBounds, taken: Collection[str]
) -> Vacated | None:
    """For the first of these jobs for which as many hosts can be vacated under one switch as it lacks there; `bounds`
    of the moves of all, its own included. `taken`: places that others come together on."""
    others = [number for number, node in enumerate(packing.nodes) if node.id in taken]
    for gang in blocked:
        wishes = _wishes(repairs, gang, bounds.max_moves)
        fleet = PackedFleet(packing.nodes, packing.tasks)
        for room, releases in rooms_for_gangs(fleet, [wishes], bounds, others) if wishes else ():
            repair = _repair(repairs, gang, room, packing)
            if repair is not None and len(fleet.log) + len(repair.places) <= bounds.max_moves:
                return repair, room, releases
    return None


def _wishes(repairs: Repairs, gang: GangHere, most_moves: int) -> list[GangWish]:
    """By switch what it lacks there, where fewest are lacking first."""
    job, here, left = gang.job, Counter(gang.here.values()), repairs.left_in(gang.pool)
    by_switch: dict[Domain, dict[str, Domain]] = {}
    for place, domain in repairs.beyond(gang).items():
        by_switch.setdefault(domain, {})[place] = domain
    most = most_moves if left is None else min(most_moves, left // job.resources.gpus_min)
    lacking = {domain: len(gang.here) - here[domain] for domain in by_switch}
    able = [domain for domain, nodes in by_switch.items() if 0 < lacking[domain] <= min(len(nodes), most)]
    return [
        GangWish(
            job.job_id,
            lacking[domain],
            job.resources.gpus_min,
            by_switch[domain],
            f"pool {gang.pool.name}",
            is_more=True,
        )
        for domain in sorted(able, key=lambda domain: (lacking[domain], domain))[:_MOST_SWITCHES]
    ]


def _repair(repairs: Repairs, gang: GangHere, room: GangRoom, packing: Packing) -> SwitchRepair | None:
    """None where it would be no closer there, or not within its bounds."""
    places = tuple(sorted(packing.nodes[node].id for node in room.nodes))
    rule, most = repairs.rule_for(gang.job), gang.job.most_under_one.by_level
    after = reached(rule, gang.here, repairs.domains(places), most)
    if after is None or not is_closer(after, Counter(gang.here.values())):
        return None
    return repair_of(gang, Closer(places, after), repairs.seen, room.gpus)
