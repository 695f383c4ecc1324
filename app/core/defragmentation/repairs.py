"""Jobs on several machines that run under more switches than they need, and can come together (ADR 0123). Pure.

Such a job was spread because others were busy when it began. It comes together by the moves that jobs on several
machines have (`app.core.gangs`): the machines that it lacks are rented while it trains; it leaves once all are ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.core.defragmentation.closer import Closer, closer
from app.core.defragmentation.packing import OwnPlace, own_cut_fits
from app.core.defragmentation.seen_fleet import SeenFleet
from app.core.defragmentation.staying import Stays, why_it_may_not_leave
from app.core.gang_offers import GangNode
from app.core.gang_wishes import is_gang
from app.core.model.job import ANY_NUMBER
from app.core.model.offer import Offer
from app.core.model.pool import JOINED, OwnHost, Pool
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.policies.reasons import duration
from app.core.pools import cut_of, free_of, gives, kinds_of, shared_host, used_gpus
from app.core.queue import is_placeable, is_running
from app.core.remaining import remaining_ms
from app.core.topology import Domain, SwitchRule, domain_in_words, spread

WORTH = 2  # times its pause a move has to save, where nobody asks for it
_MOST = 20  # jobs that are brought together by one plan
_UNSAID: Domain = ("", "")


class RepairState(StrEnum):
    WAITING = "waiting"
    MOVING = "moving"  # its next machines are rented, or it is on its way to them
    DONE = "done"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class SwitchRepair:
    """One job that comes together. `run_id`: that leads it where it is. `places`: the hosts, as their offers name them,
    that it has beside those it keeps; `gpus`: on each. `here`, `there`: under which switches its machines are and will
    be, `spread`, `spread_there`: over racks and switches (`app.core.topology.spread`). `pause_ms`: that it is expected
    to cost the whole job, `gain_ms`: what it saves of what is left of it; None: nobody knows. `moved_gpus`: of jobs
    that move first, so that it has room. `tries`: how often its beginning was dropped. `why`: what has come of it."""

    job_id: str
    run_id: str
    machines: int
    gpus: int
    places: tuple[str, ...]
    here: str
    there: str
    spread: float
    spread_there: float
    pause_ms: int
    gain_ms: int | None = None
    moved_gpus: int = 0
    state: RepairState = RepairState.WAITING
    begun_ms: int | None = None
    tries: int = 0
    why: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in (RepairState.DONE, RepairState.DROPPED)

    @property
    def in_words(self) -> str:
        """After "comes together: "."""
        gain = "what it saves is not known" if self.gain_ms is None else f"it saves about {duration(self.gain_ms)}"
        first = f", once jobs on {self.moved_gpus} GPUs have moved," if self.moved_gpus else ""
        others = f"{len(self.places)} other machine{'s' * (len(self.places) != 1)}{first}"
        return (
            f"its {self.machines} machines are {self.here} (entropy {self.spread:.2f}), and with {others} "
            f"{self.there} (entropy {self.spread_there:.2f}); {gain}, for a pause of {duration(self.pause_ms)}"
        )


@dataclass(frozen=True, slots=True)
class GangHere:
    """A job on several machines where it trains. `here`: its places in the pool, with their rack and switch."""

    job: JobView
    lead: RunView
    pool: Pool
    kind: str
    here: Mapping[str, Domain]


class Repairs:
    """What of the fleet concerns jobs on several machines that train in own pools."""

    def __init__(self, seen: SeenFleet) -> None:
        self.seen, self._now_ms = seen, seen.snapshot.now_ms
        self._pools = {one.name: one for one in seen.pools if one.launcher == JOINED and gives(one, self._now_ms)}
        self._runs = {run.node_id: run for run in seen.snapshot.runs}
        self._nodes = {node.node_id: node for node in seen.snapshot.nodes}
        self._waiting = [job for job in seen.snapshot.jobs if is_placeable(job) and not job.leaving]
        self._beside = frozenset().union(*(job.affinity.beside for job in seen.snapshot.jobs))
        self._rented: dict[str, list[GangNode]] = {}
        for one in seen.rented:
            run = self._runs.get(one.node_id)  # another job's: on a machine that it has left
            if one.node_id in self._nodes and (run is None or one.job_id in run.job_ids):
                self._rented.setdefault(one.job_id, []).append(one)
        self._used = used_gpus(seen.hosts)
        self._waited_for: dict[tuple[str, str, int], bool] = {}

    def trains(self, job: JobView) -> GangHere | None:
        """Where it has all of its machines on hosts of one pool. What leads it is not known of code that does not say
        how it stops: then any of its runs stands for all."""
        its = [one for one in self._rented.get(job.job_id, ()) if one.node_id in self._runs]
        sites = {(node.provider, node.region, node.gpu_type) for one in its for node in [self._nodes[one.node_id]]}
        here = {one.host: self._domain(one.host) for one in its}
        if len(sites) != 1 or len(here) != job.resources.nodes:
            return None
        provider, pool, kind = sites.pop()
        if provider != JOINED or pool not in self._pools:
            return None
        lead = next((one for one in its if one.leads), its[0])
        return GangHere(job, self._runs[lead.node_id], self._pools[pool], kind, here)

    def why_it_stays(self, gang: GangHere) -> Stays | None:
        """None: it may be moved."""
        job, lead, habits = gang.job, gang.lead, self.seen.habits
        held = self.seen.held.get(lead.run_id)
        if held is None or not is_running(lead):
            return Stays.NOT_TRAINING
        if self.beside(job.job_id):
            return Stays.MOVES
        if all(one.leads != lead.run_id for one in self._rented[job.job_id]):
            return Stays.LEAVES_ONE_BY_ONE
        stays = why_it_may_not_leave(job, lead, held, self._beside, self._now_ms, habits)
        spare_ms = job.deadline_ms - self._now_ms - remaining_ms(job, lead, self._now_ms)
        if stays is None and 0 <= spare_ms < habits.cost_ms:
            return Stays.DUE
        if stays is None and self.is_waited_for(gang.pool, gang.kind):
            return Stays.WAITED_FOR
        return stays

    def beside(self, job_id: str) -> list[tuple[str, NodeView]]:
        """Machines that were rented for it, and on which it does not train, by place."""
        return [
            (one.host, self._nodes[one.node_id])
            for one in self._rented.get(job_id, [])
            if one.node_id not in self._runs
        ]

    def is_waited_for(self, pool: Pool, kind: str, for_ms: int = 0) -> bool:
        """Whether a job waits, for so long already, that could have some of these hosts."""
        key = pool.name, kind, for_ms
        if key not in self._waited_for:
            shapes = {
                (len(host.gpus), host.cpus, host.memory_bytes, kinds_of(host)[kind]): OwnPlace(pool, host, kind)
                for host in self.seen.hosts
                if host.is_open and host.pool == pool.name and kind in kinds_of(host)
            }
            since_ms = self._now_ms - for_ms
            waits = (job for job in self._waiting if max(job.not_before_ms, job.submitted_ms) <= since_ms)
            found = any(own_cut_fits(place, job, job.resources.gpus_min) for job in waits for place in shapes.values())
            self._waited_for[key] = found
        return self._waited_for[key]

    def free(self, gang: GangHere) -> dict[str, Offer]:
        """What it could have beside its own, by place, those with the fewest free GPUs first. Not where nobody says the
        rack or the switch: nobody knows what that would be close to."""
        found = []
        for host in self.seen.hosts:
            offer = self._offer(gang, host)
            if offer is not None and offer.host not in gang.here and any(self._domain(offer.host)):
                found.append(offer)
        return {one.host: one for one in sorted(found, key=lambda one: (one.shared_gpus, one.host))}

    def beyond(self, gang: GangHere) -> dict[str, Domain]:
        """Hosts that could be one of its machines if nobody was on them, where their switch is said."""
        found = {}
        for host in self.seen.hosts:
            place = shared_host(host.host_id, gang.kind)
            domain = self._domain(place)
            if domain[-1] and place not in gang.here and self._takes(gang, host):
                found[place] = domain
        return found

    def domains(self, places: Sequence[str]) -> dict[str, Domain]:
        return {place: self._domain(place) for place in places}

    def rule_for(self, job: JobView) -> SwitchRule:
        """The paper's knows no bounds."""
        return self.seen.rule if job.most_under_one == ANY_NUMBER else SwitchRule.FEWEST

    def left_in(self, pool: Pool) -> int | None:
        """How many more of its GPUs may be used; None: all that are free."""
        return None if pool.most_gpus is None else pool.most_gpus - self._used.get(pool.name, 0)

    def _offer(self, gang: GangHere, host: OwnHost) -> Offer | None:
        gpus = gang.job.resources.gpus_min
        if not self._takes(gang, host):
            return None
        free = free_of(host, gang.kind)
        return cut_of(gang.pool, host, gang.kind, gpus, free, len(free)) if len(free) >= gpus else None

    def _takes(self, gang: GangHere, host: OwnHost) -> bool:
        """Whether the host, if it has room, could be one of its machines."""
        job, kinds = gang.job, kinds_of(host)
        if not host.is_open or host.pool != gang.pool.name or gang.kind not in kinds:
            return False
        place = OwnPlace(gang.pool, host, gang.kind)
        if self.seen.is_shut(shared_host(host.host_id, gang.kind)) or not own_cut_fits(
            place, job, job.resources.gpus_min
        ):
            return False
        every = kinds[gang.kind]
        offer = cut_of(gang.pool, host, gang.kind, job.resources.gpus_min, every, len(every))
        return offer.key not in job.avoided_offers | job.unreached_offers

    def _domain(self, place: str) -> Domain:
        return self.seen.domains.get(place.partition("/")[0], _UNSAID)


@dataclass(frozen=True, slots=True)
class PlannedRepairs:
    """`found`: who comes together now. `stays`: how many that are spread do not, by why. `blocked`: those that could
    move, and for which nothing closer is free."""

    found: tuple[SwitchRepair, ...]
    stays: Counter[Stays]
    blocked: tuple[GangHere, ...]


def plan_repairs(repairs: Repairs, pool: str | None, most_moves: int, *, worth_only: bool = False) -> PlannedRepairs:
    """On hosts that are free, those that are spread most first. No host counts for two of them. `most_moves`: machines
    that all of them go to. `worth_only`: those of which it is known that it is worth its pause."""
    found: list[SwitchRepair] = []
    stays: Counter[Stays] = Counter()
    blocked: list[GangHere] = []
    taken: set[str] = set()
    gpus: Counter[str] = Counter()  # by pool
    for gang in _spread(repairs, pool):
        why = repairs.why_it_stays(gang)
        repair = None if why else _repair(repairs, gang, taken, gpus[gang.pool.name])
        if repair is None:
            stays[why or Stays.NOTHING_CLOSER] += 1
            blocked += [] if why else [gang]
        elif worth_only and not is_worth(repair):
            stays[Stays.NOT_WORTH] += 1
        elif len(found) == _MOST or sum(len(one.places) for one in (*found, repair)) > most_moves:
            stays[Stays.BUDGET] += 1
        else:
            found.append(repair)
            taken |= {*repair.places, *gang.here}
            gpus[gang.pool.name] += len(repair.places) * repair.gpus
    return PlannedRepairs(tuple(found), stays, tuple(blocked))


def is_worth(repair: SwitchRepair) -> bool:
    """In hours of GPUs, with the pauses of those that move for it."""
    gpus = repair.machines * repair.gpus
    return repair.gain_ms is not None and repair.gain_ms * gpus > WORTH * repair.pause_ms * (gpus + repair.moved_gpus)


def under(counts: Mapping[Domain, int]) -> str:
    """`2 under leaf-1, 1 under leaf-2`."""
    ranked = sorted(counts, key=lambda domain: (-counts[domain], domain))
    return ", ".join(f"{counts[domain]} {domain_in_words(domain)}" for domain in ranked if counts[domain])


def _spread(repairs: Repairs, pool: str | None) -> Iterator[GangHere]:
    """Those that are under several switches, or in several racks, the most spread first."""
    gangs = [repairs.trains(job) for job in repairs.seen.snapshot.jobs if is_gang(job)]
    spreads = [(spread(Counter(one.here.values())), one) for one in gangs if one and pool in (None, one.pool.name)]
    ranked = sorted(spreads, key=lambda pair: (-pair[0] * len(pair[1].here), pair[1].job.job_id))
    return (one for entropy, one in ranked if entropy > 0)


def _repair(repairs: Repairs, gang: GangHere, taken: set[str], gpus: int) -> SwitchRepair | None:
    """`taken`: places that others go to, with so many GPUs of this pool."""
    job, seen = gang.job, repairs.seen
    free = repairs.domains([place for place in repairs.free(gang) if place not in taken])
    found = closer(repairs.rule_for(job), gang.here, free, job.most_under_one.by_level)
    left = repairs.left_in(gang.pool)
    if found is None or (left is not None and left < gpus + len(found.places) * job.resources.gpus_min):
        return None
    return repair_of(gang, found, seen)


def repair_of(gang: GangHere, found: Closer, seen: SeenFleet, moved_gpus: int = 0) -> SwitchRepair:
    before, job = Counter(gang.here.values()), gang.job
    return SwitchRepair(
        job_id=job.job_id,
        run_id=gang.lead.run_id,
        machines=len(gang.here),
        gpus=job.resources.gpus_min,
        places=found.places,
        here=under(before),
        there=under(found.after),
        spread=round(spread(before), 4),
        spread_there=round(spread(found.after), 4),
        pause_ms=seen.habits.cost_ms,
        gain_ms=_gain_ms(gang, found.after, seen),
        moved_gpus=moved_gpus,
    )


def _gain_ms(gang: GangHere, after: Mapping[Domain, int], seen: SeenFleet) -> int | None:
    """Of what is left of the job, where it is known what a step takes less under one switch, and it will be there."""
    saved_ms, job = seen.gains_ms.get(gang.job.job_id), gang.job
    if saved_ms is None or job.total_steps is None or len(after) > 1:
        return None
    left_ms = remaining_ms(job, gang.lead, seen.snapshot.now_ms)
    return min(left_ms, round(saved_ms * max(0, job.total_steps - job.step)))
