"""On which host of a pool a machine is cut, where several have room for it: rankers by name (ADR 0118). Pure.

A policy takes the host with the fewest GPUs left (`fewest-left`). By another ranker, what it has planned on one host is
put on another of the same pool, kind, size and price. That costs nobody his place: what the rest of the plan takes of a
host is left to it.

`spotgpu`: the SpotGPU paper's three criteria (section 4.2), with a count of evictions that halves each day.
`best-fit`: where the least CPUs and GPUs stay free, as shares of the largest host.
`gradient`: where GPUs that the jobs there are could not use grow least (Weng et al., USENIX ATC 2023, section 4).

Of a job on several machines the hosts are put in this order before they are chosen (`HostOrder`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from app.core.eviction import DecayedCount, NodeRoom, place_beside, rank_beside
from app.core.machine_lives import weighed_micros
from app.core.market import is_for, kind_fits, offer_fits
from app.core.model.offer import Offer
from app.core.model.plan import Plan, Provision, Start
from app.core.model.pool import JOINED, OwnHost
from app.core.model.snapshot import JobView
from app.core.pools import kinds_of, shared_host
from app.core.queue import is_spot
from app.core.ranking import NodeLeft, PodNeed, RankerName, Ranking, ranking_of

_MIB = 2**20
_WHOLE_MILLI = 1_000
_MOST_EXPECTED = 2_000  # pods of the mix that `gradient` expects: each shape as often as its share of these

Cut = Start | Provision


class HostRanker(StrEnum):
    """The module says what each is."""

    FEWEST_LEFT = "fewest-left"
    SPOTGPU = "spotgpu"
    BEST_FIT = "best-fit"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class HostUse:
    """By host: how many guaranteed jobs are on it, and how many evictions happened there, as they fade."""

    guaranteed: Mapping[str, int]
    evictions: Mapping[str, DecayedCount]


NO_USE = HostUse({}, {})


def is_cut(action: object) -> bool:
    """Whether a ranker has a say in it: a machine that is cut of what is free of a host, for whomever."""
    return isinstance(action, Start | Provision) and _is_plain(action.offer)


def rank_hosts(
    plan: Plan,
    offers: Iterable[Offer],
    jobs: Mapping[str, JobView],
    hosts: Iterable[OwnHost],
    ranker: HostRanker,
    use: HostUse,
    now_ms: int,
) -> Plan:
    """The plan with its machines on the hosts that the ranker puts first, and told why. `offers`: those that it was
    made on; `hosts`: of the pools, as they are."""
    if ranker is HostRanker.FEWEST_LEFT or not any(map(is_cut, plan.actions)):
        return plan
    ranked = _Ranked(plan, offers, jobs, hosts, ranker, use, now_ms)
    placed = (
        ranked.placed(one) if isinstance(one, Start | Provision) and _is_plain(one.offer) else one
        for one in plan.actions
    )
    return replace(plan, actions=tuple(placed))


def _is_plain(offer: Offer) -> bool:
    """Of what nobody has: not of what is lent to spot jobs, nor of what is kept for a project."""
    return offer.provider == JOINED and offer.shared_gpus > 0 and "~" not in offer.offer_id


class HostOrder:
    """In which order the hosts of a pool come that a job on several machines could have: each of these is on a host of
    its own, so that none changes what another's is worth."""

    def __init__(
        self,
        offers: Iterable[Offer],
        jobs: Mapping[str, JobView],
        hosts: Iterable[OwnHost],
        ranker: HostRanker,
        use: HostUse,
        now_ms: int,
    ) -> None:
        self.ranker = ranker
        self._ranked = _Ranked(Plan("", ()), offers, jobs, hosts, ranker, use, now_ms)

    def of(self, job: JobView, offers: Sequence[Offer]) -> list[Offer]:
        """The cheapest first, and the smallest machine, as they come; then by the ranker. What is kept for the job's
        project comes before what is anybody's; what is no host of a pool stays where it is."""
        if not all(one.provider == JOINED for one in offers):
            return list(offers)
        return sorted(
            offers,
            key=lambda one: (
                one.price_per_hour.micros,
                one.gpu_count,
                _is_plain(one),
                self._ranked.rank(job, one) if _is_plain(one) else (),
            ),
        )


class _Ranked:
    """The hosts while one machine after the other is placed on them."""

    def __init__(
        self,
        plan: Plan,
        offers: Iterable[Offer],
        jobs: Mapping[str, JobView],
        hosts: Iterable[OwnHost],
        ranker: HostRanker,
        use: HostUse,
        now_ms: int,
    ) -> None:
        self._jobs, self._ranker, self._use, self._now_ms = jobs, ranker, use, now_ms
        self._taken: Counter[str] = Counter()  # GPUs of each place by this plan, wherever it has put them by now
        self._given: Counter[str] = Counter()  # and by what was placed so far, or is not to be
        for one in plan.actions:
            if isinstance(one, Start | Provision) and one.offer.provider == JOINED:
                self._taken[one.offer.host] += one.offer.gpu_count
                self._given[one.offer.host] += 0 if _is_plain(one.offer) else one.offer.gpu_count
        self._newly_guaranteed: Counter[str] = Counter()
        self._like: dict[tuple[object, ...], list[Offer]] = defaultdict(list)
        for offer in offers:
            if _is_plain(offer):
                self._like[_likeness(offer)].append(offer)
        self._whole = {
            shared_host(host.host_id, kind): _whole(host, kind, len(gpus))
            for host in hosts
            for kind, gpus in kinds_of(host).items()
        }
        self._rankings: dict[str, Ranking] = {}

    def placed(self, action: Cut) -> Cut:
        job, now = self._jobs.get(_job_of(action)), action.offer
        if job is None:
            return action
        self._taken[now.host] -= now.gpu_count
        others = [one for one in self._like[_likeness(now)] if one.host != now.host and self._may_have(job, one)]
        best, why = self._best(job, now, [now, *others]) if others else (now, "")
        self._taken[best.host] += best.gpu_count
        self._given[best.host] += best.gpu_count
        self._newly_guaranteed[_host_of(best)] += not is_spot(job)
        told = f"{action.reason}; {why}" if why else action.reason
        return replace(action, offer=best, reason=told)

    def _may_have(self, job: JobView, offer: Offer) -> bool:
        return (
            offer.gpu_count <= offer.shared_gpus - self._taken[offer.host]
            and offer_fits(job.resources, offer)
            and is_for(job, offer)
            and offer.key not in job.avoided_offers
            and offer.key not in job.unreached_offers
        )

    def _best(self, job: JobView, now: Offer, rivals: Sequence[Offer]) -> tuple[Offer, str]:
        by_host = {one.host: one for one in rivals}
        if self._ranker is HostRanker.SPOTGPU:
            best, what = self._by_three_criteria(job, by_host)
        else:
            best, what = self._by_what_is_left(now, by_host)
        words = f"by the ranker {self._ranker} on {_host_of(best)}, of {len(by_host)} hosts of {now.region}: {what}"
        return best, words

    def _free(self, offer: Offer) -> int:
        return offer.shared_gpus - self._given[offer.host]

    def _by_three_criteria(self, job: JobView, by_host: Mapping[str, Offer]) -> tuple[Offer, str]:
        rooms = [
            NodeRoom(place, (self._free(offer),), self._guaranteed_on(offer), self._evictions_on(offer))
            for place, offer in sorted(by_host.items())
        ]
        gpus = next(iter(by_host.values())).gpu_count
        room = place_beside((gpus,), is_spot(job), rooms, self._now_ms)
        assert room is not None, "each of them has room"
        words = (
            f"{room.free[0] - gpus} GPUs stay idle there, beside {room.guaranteed_jobs} guaranteed jobs, after "
            f"{room.evictions.at(self._now_ms):.2f} evictions"
        )
        return by_host[room.node_id], words

    def rank(self, job: JobView, offer: Offer) -> tuple[object, ...]:
        """Of a host by itself: the lower, the better; comparable among those of one pool, kind and size."""
        free = self._free(offer)
        if self._ranker is HostRanker.SPOTGPU:
            room = NodeRoom(offer.host, (free,), self._guaranteed_on(offer), self._evictions_on(offer))
            return rank_beside(room, (offer.gpu_count,), is_spot(job), self._now_ms)
        return (*self._grown(offer), offer.host)

    def _grown(self, offer: Offer) -> tuple[float, ...]:
        free = self._free(offer)
        return self._ranking(offer)(self._left(offer, free), self._left(offer, free - offer.gpu_count))

    def _guaranteed_on(self, offer: Offer) -> int:
        host = _host_of(offer)
        return self._use.guaranteed.get(host, 0) + self._newly_guaranteed[host]

    def _evictions_on(self, offer: Offer) -> DecayedCount:
        return self._use.evictions.get(_host_of(offer), DecayedCount())

    def _by_what_is_left(self, now: Offer, by_host: Mapping[str, Offer]) -> tuple[Offer, str]:
        ranks = {place: self._grown(offer) for place, offer in by_host.items()}
        best = min(sorted(by_host), key=lambda place: ranks[place])
        (figure,) = ranks[best]
        if self._ranker is HostRanker.BEST_FIT:
            return by_host[best], f"{figure:.2f} of the largest host's CPUs and GPUs stay free there, together"
        grown = figure / _WHOLE_MILLI
        return by_host[best], f"GPUs that the jobs there are could not use grow by {grown:.2f} there"

    def _ranking(self, now: Offer) -> Ranking:
        """Of the hosts of this pool and kind."""
        place = f"{now.region}/{now.gpu_type}"
        if place not in self._rankings:
            named = {one.host for likes in self._like.values() for one in likes if _pool_of(one) == _pool_of(now)}
            whole = [self._whole[one] for one in sorted(named) if one in self._whole]
            name = RankerName.BEST_FIT if self._ranker is HostRanker.BEST_FIT else RankerName.GRADIENT
            self._rankings[place] = ranking_of(name, whole, self._expected(now))
        return self._rankings[place]

    def _left(self, offer: Offer, free: int) -> NodeLeft:
        """A host with so many GPUs free: processors and memory are cut with them."""
        whole = self._whole.get(offer.host)
        gpus = max(len(whole.gpus_milli), free) if whole else free
        cpu_milli = _WHOLE_MILLI * offer.cpus * free // offer.gpu_count
        memory_mib = offer.memory_bytes // _MIB * free // offer.gpu_count
        return NodeLeft(offer.gpu_type, cpu_milli, memory_mib, (_WHOLE_MILLI,) * free + (0,) * (gpus - free))

    def _expected(self, now: Offer) -> list[PodNeed]:
        """The jobs there are, by what they ask for of such GPUs; of very many the same mix."""
        asked = Counter(
            PodNeed(
                _WHOLE_MILLI * job.resources.cpus_min,
                job.resources.memory_bytes_min // _MIB,
                job.resources.gpus_min,
                _WHOLE_MILLI,
            )
            for job in self._jobs.values()
            if kind_fits(job.resources, now.gpu_type, now.gpu_memory_bytes)
        )
        many = max(1.0, sum(asked.values()) / _MOST_EXPECTED)
        return [need for need, count in sorted(asked.items()) for _ in range(max(1, round(count / many)))]


def _likeness(offer: Offer) -> tuple[object, ...]:
    """What is the same to the job, the bill and the policy, whichever host it is on."""
    return (*_pool_of(offer), offer.gpu_count, offer.price_per_hour, weighed_micros(offer), offer.startup_ms)


def _pool_of(offer: Offer) -> tuple[str, str]:
    return offer.region, offer.gpu_type


def _host_of(offer: Offer) -> str:
    return offer.host.partition("/")[0]


def _whole(host: OwnHost, kind: str, gpus: int) -> NodeLeft:
    """What a host has of a kind when nothing is on it."""
    total = len(host.gpus) or gpus
    memory_mib = host.memory_bytes // _MIB * gpus // total
    return NodeLeft(kind, _WHOLE_MILLI * host.cpus * gpus // total, memory_mib, (_WHOLE_MILLI,) * gpus)


def _job_of(action: Cut) -> str:
    return action.for_job_id if isinstance(action, Provision) else action.job_id
