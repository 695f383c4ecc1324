"""Jobs on several machines at once get all of their machines, or none (ADR 0100). Pure.

No policy sees such a job, nor the machines that it has or waits for: this goes around every policy. A job's machines
are of one kind, of one **site**: a pool, a cluster or a region of one provider whose machines reach each other by a
private network. They are rented together, once all of them are on offer, so that no job ever holds some while it waits
for others that another one holds. For one that has waited long, as many hosts of a pool are kept as it needs, so that
they come to be free together: only where it could have all of them, and for one job in each pool. What others were
asked to leave for it (`app.core.evicting`) nobody else gets either.

One that trains on rented machines goes to cheaper ones (`app.core.gang_moves`): after all that wait have been placed.
One whose owner wants it on another number of machines (ADR 0131) goes on with those that it has and what it lacks, once
all of these are ready; or, of fewer, with some of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.core import queue
from app.core.gang_moves import Stay, hourly
from app.core.gang_offers import COMING, EmptyPool, GangMarket, GangNode, LackingGang
from app.core.gang_sites import GangRental, Site, site_of
from app.core.gang_wishes import as_wanted, is_gang, wants_more, with_single_ones
from app.core.host_ranking import HostOrder
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.node import NodeState
from app.core.model.plan import AssignGang, Demote, GangPlace, ProvisionGang, Release
from app.core.model.pool import JOINED
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot, versions_of
from app.core.policies.reasons import duration
from app.core.policy import PolicyConfig
from app.core.roofline import is_as_fast
from app.core.set_aside import SetAside
from app.core.topology import Domain, SwitchRule

MOST_PLACED = 100  # jobs that machines are looked for in one decision: who comes after them comes in the next
RESERVE_AFTER_MS = 300_000  # that a job has waited, after which own hosts are kept for it
_KEEPS_MS = 120_000  # that a job which is to be begun again, or of which one did not come, keeps its machines for
_WAITS_MOST_MS = 1_200_000  # that machines which are ready are kept for those that failed to come
_LEAVING = frozenset({JobState.CHECKPOINTING, *PLACEABLE_JOB_STATES})
_FREES = "not all machines of its job can be had"

_FREED = "begins as soon as the GPUs that are kept for it are free"

_STAYS = "its job stays where it is"

Claim = AssignGang | ProvisionGang | Release | Demote


@dataclass(frozen=True, slots=True)
class ComingTogether:
    """A job that trains, and for which machines were rented on these places, so that it has all of its machines under
    fewer switches (ADR 0123). `why`: in words. `run_id`: that it is to leave."""

    job_id: str
    run_id: str
    places: frozenset[str]
    why: str


@dataclass(frozen=True, slots=True)
class GatheredGangs:
    """The world as it is for all other jobs, and what is to be done for those on several machines, in this order.
    `waiting`: why others of them wait. `given_up`: those that let go of machines, as not all could be had; one that
    trains stays where it is. `stays`: those that train, for which nothing cheaper was worth a move, with how many
    offers were looked at for that: to look at many again soon would only take time. `fewer`: those that train and are
    to have more machines, which cannot be had now, and why.
    `kept_hosts`: own hosts, as their offers name them, that are kept for one that has waited long, by whose they are.
    `lacking`: those for which others could leave. `wake_at_ms`: when to decide anew, though nothing happens."""

    snapshot: Snapshot
    claims: tuple[Claim, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    given_up: frozenset[str] = frozenset()
    stays: Mapping[str, int] = field(default_factory=dict)
    fewer: Mapping[str, str] = field(default_factory=dict)
    kept_hosts: Mapping[str, str] = field(default_factory=dict)
    lacking: tuple[LackingGang, ...] = ()
    wake_at_ms: int | None = None


def gather(
    snapshot: Snapshot,
    rented: Sequence[GangNode],
    *,
    resting: Mapping[str, int] | None = None,
    pools: Sequence[EmptyPool] = (),
    patience_ms: int = RESERVE_AFTER_MS,
    domains: Mapping[str, Domain] | None = None,
    asides: Sequence[SetAside] = (),
    config: PolicyConfig | None = None,
    rule: SwitchRule = SwitchRule.FEWEST,
    order: HostOrder | None = None,
    together: Sequence[ComingTogether] = (),
) -> GatheredGangs:
    """Decide on all jobs on several machines. `rented`: the machines that were rented for them. `resting`: jobs that
    rent nothing before a moment, as they could not have all of theirs. `pools`: of whose hosts some may be kept for who
    has waited for `patience_ms`. `domains`: rack and switch of each own host, by its id; hosts that are not there are
    taken to be under one. `rule`: which of these machines are taken from (`app.core.topology`). `asides`: what others
    leave, or have left, for some of these jobs. `config`: what moves are weighed with; None: nobody moves. `order`: in
    which order hosts come that are alike otherwise; None: those with the fewest GPUs left first. `together`: jobs that
    come together on machines which were rented for that."""
    held = {job_id for run in snapshot.runs for job_id in run.job_ids}
    snapshot = with_single_ones(snapshot, {*held, *(one.job_id for one in rented)})
    gangs = [job for job in snapshot.jobs if is_gang(job)]
    single = [job for job in snapshot.jobs if wants_more(job) and not is_gang(job)]
    if not gangs and not single:
        return GatheredGangs(snapshot)
    gathering = _Gathering(snapshot, rented, resting or {}, pools, patience_ms, domains or {}, asides, rule, order)
    gathering.together = {one.job_id: one for one in together}
    gangs += [job for job in single if job.job_id not in held and gathering.has_machines(job)]
    waiting = [job for job in gangs if job.job_id not in held and job.state in PLACEABLE_JOB_STATES and not job.leaving]
    waiting.sort(key=queue.edf_key)
    for job in waiting[:MOST_PLACED]:
        gathering.place(job)
    for job in waiting[MOST_PLACED:]:
        gathering.let_wait(job)
    if config is not None:
        for job in sorted((job for job in gangs if job.job_id in held), key=queue.edf_key):
            gathering.stay(job, config)
        alone = sorted((job for job in single if job.job_id in held), key=queue.edf_key)
        gangs += [job for job in alone if gathering.is_about_to_grow(job)]
    return gathering.result({job.job_id for job in gangs})


def without_gangs(snapshot: Snapshot) -> Snapshot:
    """The world without jobs on several machines and the machines that they run on: they only wait."""
    gangs = {job.job_id for job in snapshot.jobs if is_gang(job)}
    return _Gathering(snapshot, (), {}, (), 0, {}, ()).result(gangs).snapshot


class _Gathering:
    def __init__(
        self,
        snapshot: Snapshot,
        rented: Sequence[GangNode],
        resting: Mapping[str, int],
        pools: Sequence[EmptyPool],
        patience_ms: int,
        domains: Mapping[str, Domain],
        asides: Sequence[SetAside],
        rule: SwitchRule = SwitchRule.FEWEST,
        order: HostOrder | None = None,
    ) -> None:
        self._seen = snapshot
        self._market = GangMarket(snapshot, rented, domains, asides, rule, order)
        self.together: Mapping[str, ComingTogether] = {}
        self._resting = resting
        self._pools = {pool.name: pool for pool in pools}  # those that have not kept hosts for anybody
        self._patience_ms = patience_ms
        self._nodes = {node.node_id: node for node in snapshot.nodes}
        self._runs = {run.node_id: run for run in snapshot.runs}
        self._rented: dict[str, list[GangNode]] = {}
        for one in sorted(rented, key=lambda one: one.node_id):
            run = self._runs.get(one.node_id)  # another job's: on a machine that it has left
            if one.node_id in self._nodes and (run is None or one.job_id in run.job_ids):
                self._rented.setdefault(one.job_id, []).append(one)
        self._claims: list[Claim] = []
        self._waiting: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._stays: dict[str, int] = {}
        self._fewer: dict[str, str] = {}
        self._kept: set[str] = set()
        self._lacking: list[JobView] = []
        self._wakes: list[int] = []

    def place(self, job: JobView) -> None:
        """Begin the job where all its machines are ready; else rent what is missing where all of it is on offer; else
        let go of what it has, and wait. One that is to have more machines than it had waits for no more than these."""
        now_ms = self._seen.now_ms
        own = [one for one in self._rented.get(job.job_id, []) if one.node_id not in self._runs]
        self._kept |= {one.node_id for one in own}
        wanted = as_wanted(job)
        if self._begins(wanted, own):
            return
        if not wants_more(job):
            job = wanted
        elif self._begins(job, own):
            return
        rests_until_ms = max(job.not_before_ms, self._resting.get(job.job_id, 0))
        if rests_until_ms > now_ms:
            self._wakes.append(rests_until_ms)
            lets_go = own if rests_until_ms - now_ms > _KEEPS_MS else ()
            self._wait(job, lets_go, f"tries again in {duration(rests_until_ms - now_ms)}")
            return
        best = self._market.best(job, own)
        if best is None and job.avoided_offers and not self._waits_in_vain(own):
            self._market.again.add(job.job_id)
            best = self._market.best(job, own)
        if best is None:
            lets_go = () if self._is_listed_soon(job, own) else own
            self._wait(job, lets_go, _FREED if job.job_id in self._market.awaiting else self._market.why_not(job))
            self._reserve(job)
            if not own:
                self._lacking.append(job)
        else:
            self._rent(job, own, best)
            if not best.offers:
                self._wait(job, (), f"{len(best.has)} machines for it are there or coming, of {job.resources.nodes}")

    def _is_listed_soon(self, job: JobView, own: Sequence[GangNode]) -> bool:
        """Whether a machine has just failed to come, and its others are kept for a little while: what failed is on no
        list until the next one is read. Not where it could have all of them elsewhere."""
        until_ms = job.not_before_ms + _KEEPS_MS
        if not own or not job.avoided_offers or until_ms <= self._seen.now_ms or self._waits_in_vain(own):
            return False
        if self._market.best(job, ()) is not None:
            return False
        self._wakes.append(until_ms)
        return True

    def _waits_in_vain(self, own: Sequence[GangNode]) -> bool:
        """Whether machines of it have been ready for so long that what is missing has failed again and again: they are
        paid for meanwhile."""
        since = (self._nodes[one.node_id].idle_since_ms for one in own)
        return any(one is not None and self._seen.now_ms - one > _WAITS_MOST_MS for one in since)

    def let_wait(self, job: JobView) -> None:
        """Others come first. What it has it keeps: there is hardly anything, of a job so far back."""
        self._kept |= {one.node_id for one in self._rented.get(job.job_id, []) if one.node_id not in self._runs}
        self._waiting[job.job_id] = f"waits behind {MOST_PLACED} other jobs on several machines"

    def stay(self, job: JobView, config: PolicyConfig) -> None:
        """What a job that has its machines has beside them, where that is cheaper, is what it moves to: its alone until
        it has left. Where it trains, it leaves once all of that is ready, or is rented as much as it needs."""
        its = self._rented.get(job.job_id, [])
        lead = next((run for one in its if (run := self._runs.get(one.node_id)) and run.run_id == one.leads), None)
        here = [self._nodes[one.node_id] for one in its if one.node_id in self._runs]
        if lead is None or len(here) != job.resources.nodes:
            if job.state in _LEAVING and not job.leaving:  # its machines are left one after the other
                self._kept |= {one.node_id for one in its if one.node_id not in self._runs}
            return
        if self._comes_together(job, lead, its) or self._grows(job, lead, its, here):
            return
        at, least = site_of(here[0]), min(hourly([node], job) for node in here)
        beside = [self._nodes[one.node_id] for one in its if one.node_id not in self._runs]
        cheaper = {node.node_id for node in beside if site_of(node) != at and hourly([node], job) < least}
        own = [one for one in its if one.node_id in cheaper]
        idle = {node.node_id for node in beside if site_of(node) == at and node.state in COMING}
        self._let_go((one for one in its if one.node_id in idle), _STAYS)
        if job.state is not JobState.RUNNING and not job.leaving:
            self._kept |= cheaper
            return
        stay = Stay(job, lead, here, config, self._seen.now_ms)
        best = self._cheapest_of(stay, own, at) if stay.may_move() else None
        self._wakes += stay.wakes
        if best is None:
            if self._let_go(own, _STAYS):
                self._given_up.add(job.job_id)
            return
        self._kept |= {node.node_id for node in best.has}
        ready = {one.node_id for one in own if one.joins and self._nodes[one.node_id].state is NodeState.READY}
        if best.offers:
            self._rent(job, own, best, f" while it trains: {stay.why(best)}")
        elif ready >= {node.node_id for node in best.has}:
            versions = tuple(sorted([*versions_of(job), (lead.run_id, lead.row_version)]))
            self._claims.append(Demote(job.job_id, lead.run_id, f"moves: {stay.why(best)}", versions))

    def _comes_together(self, job: JobView, lead: RunView, its: Sequence[GangNode]) -> bool:
        """Whether it has machines beside those it trains on, to have all under fewer switches. They are its alone; it
        leaves once all are ready, and they are let go where not all of them come, or it is to stay."""
        wanted = self.together.get(job.job_id)
        if wanted is None or wanted.run_id != lead.run_id:
            return False
        coming = [one for one in its if one.node_id not in self._runs and one.host in wanted.places]
        nodes = [self._nodes[one.node_id] for one in coming]
        joins = {one.node_id for one in coming if one.joins}
        if not coming:
            return False
        if job.state is not JobState.RUNNING and not job.leaving:
            self._kept |= {node.node_id for node in nodes}
            return True
        able = {
            one.host
            for one, node in zip(coming, nodes, strict=True)
            if node.state in COMING or self._market.is_useful(job, node, joins)
        }
        if job.leaving or job.stays or able < wanted.places:
            self._let_go(coming, _STAYS)
            return True
        self._kept |= {node.node_id for node in nodes}
        if all(self._market.is_useful(job, node, joins) for node in nodes):
            versions = tuple(sorted([*versions_of(job), (lead.run_id, lead.row_version)]))
            self._claims.append(Demote(job.job_id, lead.run_id, f"comes together: {wanted.why}", versions))
        return True

    def has_machines(self, job: JobView) -> bool:
        """Of one that has left the only machine that it had: whether there are some that it may begin on together."""
        return any(self._market.reaches(one.node_id) for one in self._rented.get(job.job_id, []))

    def is_about_to_grow(self, job: JobView) -> bool:
        """Of a job on one machine that is to have several: whether it is no policy's for now, as machines are rented
        for it. Its own goes on to be one of them, so it has to have been rented for it, and to be its alone."""
        its = self._rented.get(job.job_id, [])
        here = [one for one in its if one.node_id in self._runs]
        why = self._why_not_from_here(job, here)
        if why is not None:
            self._fewer[job.job_id] = why
            return False
        (one,) = here
        if job.state is not JobState.RUNNING and not job.leaving:
            at = site_of(self._nodes[one.node_id])
            beside = {other.node_id for other in its if other is not one and self._may_come(other, at)}
            self._kept |= beside
            return bool(beside)
        had = len(self._claims)
        self._grows(job, self._runs[one.node_id], its, [self._nodes[one.node_id]])
        rents = any(not isinstance(claim, Release) for claim in self._claims[had:])
        return rents or any(other.node_id in self._kept for other in its)

    def _why_not_from_here(self, job: JobView, here: Sequence[GangNode]) -> str | None:
        """Why the machine that it trains on cannot be one of several."""
        by_hand = "to begin on others, pause it and resume it"
        its = [run for run in self._seen.runs if job.job_id in run.job_ids]
        if len(its) != 1:
            return "it is on its way to another machine"
        if not self._market.reaches(its[0].node_id):
            return f"machines like its own do not reach each other; {by_hand}"
        if sum(run.node_id == its[0].node_id for run in self._seen.runs) != 1 or self._is_merged(job):
            return f"it shares its machine with another job; {by_hand}"
        if [one.node_id for one in here] != [its[0].node_id]:
            return f"its machine was rented for another job; {by_hand}"
        return None if here[0].joins else f"the agent of its machine is of an earlier release; {by_hand}"

    def _is_merged(self, job: JobView) -> bool:
        return any(job.job_id in (merge.lead_id, merge.companion_id) for merge in self._seen.merges)

    def _grows(self, job: JobView, lead: RunView, its: Sequence[GangNode], here: Sequence[NodeView]) -> bool:
        """Whether it is to have more machines. Those that it lacks are rented where it is, all or none, and are its
        alone; it leaves once all are ready. Where they cannot be had they are let go, and it trains on as it is."""
        if not wants_more(job):
            return False
        wanted, at, trains_on = as_wanted(job), site_of(here[0]), frozenset(node.node_id for node in here)
        beside = [one for one in its if one.node_id not in trains_on and self._may_come(one, at)]
        if job.state is not JobState.RUNNING and not job.leaving:
            self._kept |= {one.node_id for one in beside}
            return True
        rests_until_ms = self._resting.get(job.job_id, 0)
        rests = rests_until_ms > self._seen.now_ms
        its = [one for one in its if one.node_id in trains_on or one in beside]
        found = None if job.leaving or job.unsaved else self._market.completed(wanted, its, at, trains_on)
        if found is not None and found.offers and ((rests and not beside) or self._waits_in_vain(beside)):
            found = None
        if found is None:
            if self._let_go(beside, _STAYS):
                self._given_up.add(job.job_id)
            if rests:
                self._wakes.append(rests_until_ms)
            elif not job.leaving:
                self._fewer[job.job_id] = self._why_no_more(wanted, at, len(here), beside)
            return True
        self._kept |= {node.node_id for node in found.has}
        joins = {one.node_id for one in beside if one.joins}
        ready = [node for node in found.has if self._market.is_useful(job, node, joins) or node.node_id in trains_on]
        if found.offers:
            why = f" while it trains: its owner wants it on {wanted.resources.nodes}, not {len(here)}"
            self._rent(job, its, found, why)
        elif self._market.closest(wanted, ready):
            versions = tuple(sorted([*versions_of(job), (lead.run_id, lead.row_version)]))
            why = f"goes on with {wanted.resources.nodes} machines, not {len(here)}: all of them are ready"
            self._claims.append(Demote(job.job_id, lead.run_id, why, versions))
        return True

    def _may_come(self, one: GangNode, at: Site) -> bool:
        node = self._nodes[one.node_id]
        return site_of(node) == at and (node.state is NodeState.READY or node.state in COMING)

    def _why_no_more(self, job: JobView, at: Site, here: int, beside: Sequence[GangNode]) -> str:
        if job.unsaved:
            return "its checkpoints are not kept, and to leave would lose what it has done since the last one"
        if beside:
            return "not all of its next machines came"
        return self._market.why_no_more(job, at, job.resources.nodes - here)

    def _cheapest_of(self, stay: Stay, own: Sequence[GangNode], at: Site) -> GangRental | None:
        """Where all of its machines would cost so much less that a move there is worth it; where it has some already,
        there. Of the kind of GPU that it has, or of one that is known to be as fast: prices are by the hour. Nothing
        new where it could not have all of them a while ago."""
        job = stay.job
        rests_until_ms = self._resting.get(job.job_id, 0)
        if rests_until_ms > stay.now_ms:
            self._wakes.append(rests_until_ms)
        if own:
            sites = {site_of(self._nodes[one.node_id]) for one in own}
        else:
            sites = {site for site in self._market.by_site if rests_until_ms <= stay.now_ms and site != at}
        quick = (site for site in sites if is_as_fast(site[3], at[3]))
        cheaper = sorted(site for site in quick if self._may_be_cheaper(stay, site))
        found = (self._market.completed(job, own, site) for site in cheaper)
        worth = [one for one in found if one is not None and stay.is_worth(one)]
        if cheaper and not worth and not own:
            self._stays[job.job_id] = sum(len(self._market.by_site[site]) for site in cheaper)
        return min(worth, key=lambda one: (hourly((*one.offers, *one.has), job), one.rank), default=None)

    def _may_be_cheaper(self, stay: Stay, site: Site) -> bool:
        """Before anything else is looked at: there are hundreds of regions, and thousands of offers in each."""
        offers = self._market.by_site.get(site, ())
        return not offers or offers[0].price_per_hour.micros * stay.job.resources.nodes <= stay.most_hourly

    def result(self, gangs: Collection[str]) -> GatheredGangs:
        """Others see neither the jobs, nor their runs, nor their machines."""
        theirs = {run.node_id for run in self._seen.runs if any(job_id in gangs for job_id in run.job_ids)}
        hidden = self._kept | theirs
        snapshot = replace(
            self._seen,
            jobs=tuple(job for job in self._seen.jobs if job.job_id not in gangs),
            runs=tuple(run for run in self._seen.runs if run.node_id not in theirs),
            nodes=tuple(node for node in self._seen.nodes if node.node_id not in hidden),
            offers=tuple(self._market.for_others()),
        )
        wake_at_ms = min(self._wakes, default=None)
        given_up, kept = frozenset(self._given_up), dict(self._market.kept_hosts)
        lacking = tuple(self._market.lacks(job) for job in self._lacking)
        claims, stays = tuple(self._claims), self._stays
        return GatheredGangs(snapshot, claims, self._waiting, given_up, stays, self._fewer, kept, lacking, wake_at_ms)

    def _begins(self, job: JobView, own: Sequence[GangNode]) -> bool:
        joins = {one.node_id for one in own if one.joins}
        ready = [node for one in own if self._market.is_useful(job, node := self._nodes[one.node_id], joins)]
        ready.sort(key=lambda node: hourly([node], job))  # of more than it needs, the dearest are left
        by_site: dict[Site, list[NodeView]] = {}
        for node in ready:
            by_site.setdefault(site_of(node), []).append(node)
        whole = [(nodes, taken) for _, nodes in sorted(by_site.items()) if (taken := self._market.closest(job, nodes))]
        if not whole or job.not_before_ms > self._seen.now_ms:
            return False
        _, taken = min(whole, key=lambda one: min(hourly([node], job) for node in one[0]))
        count = job.resources.gpus_min
        places = tuple(GangPlace(node.node_id, node.free_gpus[:count]) for node in taken)
        why = f"all of its {len(places)} machines are ready"
        self._claims.append(AssignGang(job.job_id, places, why, versions_of(job, *taken)))
        return True

    def _rent(self, job: JobView, own: Sequence[GangNode], best: GangRental, why: str = "") -> None:
        self._let_go(one for one in own if self._nodes[one.node_id] not in best.has)
        if not best.offers:
            return
        count = len(best.offers)
        what = f"rents {count} machines at once" if count > 1 else "rents the machine that is missing"
        if any(one.key in job.avoided_offers for one in best.offers):
            why = f"{why}, though it failed to come before: there are no others"
        if self._market.order is not None and any(one.provider == JOINED for one in best.offers):
            why = f"{why}; of hosts that are alike by the ranker {self._market.order.ranker}"
        claim = ProvisionGang(job.job_id, best.offers, f"{what}{why}", versions_of(job), chosen_by=best.chosen_by)
        self._claims.append(claim)
        self._market.take(best.offers)

    def _wait(self, job: JobView, own: Sequence[GangNode], why: str) -> None:
        """What it has is let go: it would be paid for, or missed by others, for nothing."""
        self._waiting[job.job_id] = why
        if self._let_go(own):
            self._given_up.add(job.job_id)

    def _let_go(self, own: Iterable[GangNode], why: str = _FREES) -> bool:
        nodes = [self._nodes[one.node_id] for one in own]
        nodes = [node for node in nodes if node.state is NodeState.READY or node.state in COMING]
        self._claims += [Release(node.node_id, why, versions_of(node)) for node in nodes]
        return bool(nodes)

    def _reserve(self, job: JobView) -> None:
        """A job that has waited long has what is free of own machines kept for it: the first in each pool alone."""
        since_ms = max(job.submitted_ms, job.not_before_ms)
        if self._seen.now_ms - since_ms < self._patience_ms:
            self._wakes.append(since_ms + self._patience_ms)
            return
        for name, pool in sorted(self._pools.items()):
            hosts = self._market.hosts_for(job, pool)
            if hosts:
                self._market.kept_hosts |= dict.fromkeys(hosts, job.job_id)
                del self._pools[name]
                told = self._waiting[job.job_id]
                self._waiting[job.job_id] = f"{told}; {len(hosts)} hosts of {name} are kept for it as they become free"
                return
