"""What could be rented: the offers of one group of tiers, answered per need and cheapest first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

from app.core.billing import first_unit
from app.core.due import begins_ms, due_of, quicker_ones
from app.core.gpu_speeds import UNKNOWN_SPEEDS, GpuSpeeds
from app.core.job_prices import entered_micros, staying_ms, stretch_ms
from app.core.machine_lives import weighed_micros
from app.core.model.image import ImageState, ImageView
from app.core.model.job import Resources
from app.core.model.money import ZERO, Money
from app.core.model.node import ProviderTraits, Tier
from app.core.model.offer import X86_64, Offer, cpu_architecture
from app.core.model.pool import CPU
from app.core.model.snapshot import JobView, NodeView
from app.core.offers_by_size import OffersBySize, Place, SizedOffer, WorkCost
from app.core.queue import is_spot
from app.core.spot_places import is_of_its_class, may_be_interrupted

_Kind = tuple[Resources, int, int, int, GpuSpeeds | None]


@dataclass(frozen=True, slots=True)
class Choice:
    """The offer to take, out of `rivals` of its tier that fit (itself included).

    `left_out` others would come first but failed this job recently. `again`: so did this one, as did all that fit.
    `unreached`: its provider failed in passing when it was asked, and nothing like it is on offer. `image`: what has to
    be built there before it can be had. `failing`: the offer of a tier that comes first, where work costs more.
    `beside`: the best of its tier that is rented in the other way, on demand instead of by a bid or the other way
    round. `no_bids`: there are bids, and none for this spot job, which would begin again from nothing. `too_slow`: what
    costs less, and would have it done later than its deadline. `other_way`: `beside` costs less, and
    is not worth a move.
    """

    offer: Offer
    rivals: int
    left_out: int
    again: bool
    unreached: bool = False
    image: ImageView | None = None
    failing: Offer | None = None
    beside: Offer | None = None
    no_bids: bool = False
    too_slow: Offer | None = None
    other_way: bool = False

    @property
    def can_be_had(self) -> bool:
        """Whether nothing has to be built for it first."""
        return self.image is None

    def in_way(self, *, bids: bool) -> Choice | None:
        """The same by a bid, or on demand; None where there is none."""
        if self.offer.interruptible is bids:
            return self
        return None if self.beside is None else replace(self, offer=self.beside, beside=self.offer, other_way=True)


@dataclass(frozen=True, slots=True)
class TooDear:
    """Of the offers that fit, none of which the job's limits allow, the one that is nearest to them: with the cheapest
    first billing unit (`least`), or the cheapest by the hour where that is what all of them exceed."""

    offer: Offer
    least: Money


class Market:
    """The offers of one group of tiers, answered per need and cheapest first.

    `traits` say how they are billed: an offer whose first billing unit costs more than a job may still spend is not
    for that job. They also say which machines are no containers: those are for jobs that name no image; and which
    providers build an image before they run it: `images` says how far they are.
    """

    def __init__(
        self,
        offers: Iterable[Offer],
        tiers: tuple[Tier, ...],
        traits: tuple[ProviderTraits, ...] = (),
        images: Iterable[ImageView] = (),
    ) -> None:
        self._rules = {(trait.provider, trait.tier): trait.billing for trait in traits}
        self._lives_ms = {(trait.provider, trait.tier): trait.max_lifetime_ms for trait in traits}
        self._without_images = {(trait.provider, trait.tier) for trait in traits if not trait.takes_images}
        self._builders = {(trait.provider, trait.tier) for trait in traits if trait.builds_images}
        self._images = {(view.provider, view.image): view for view in images}
        self._rank = rank = {tier: place for place, tier in enumerate(tiers)}
        self.offers = tuple(
            sorted(
                (offer for offer in offers if offer.tier in rank),
                key=lambda offer: (
                    rank[offer.tier],
                    weighed_micros(offer),
                    offer.startup_ms,
                    offer.gpu_memory_bytes,
                    offer.gpu_count,
                    offer.shared_gpus,  # the host that has the fewest left: others keep room for who needs many
                    offer.key,
                ),
            )
        )
        self.has_bids = any(offer.interruptible for offer in self.offers)
        self._is_for_some = any(
            offer.projects or (offer.spot_only and not offer.interruptible) for offer in self.offers
        )
        self._fail = any(offer.mean_life_ms for offer in self.offers)
        self._arrive = any(offer.arrival_ms or offer.arrival_micros for offer in self.offers)
        self._fitting: dict[Resources, tuple[Offer, ...]] = {}
        self._sorted: dict[_Kind, tuple[Offer, ...]] = {}
        self._plain: dict[_Kind, Choice | None] = {}
        self._quicker: dict[_Kind, tuple[Offer, ...]] = {}
        self._least_by_type: dict[str, int] = {}
        self._now_ms: int | None = None
        self._wakes: list[int] = []

    def at(self, now_ms: int, wakes: list[int]) -> Market:
        """The same at this moment: what would be done too late is passed over. `wakes` is told when that may change."""
        now = Market.__new__(Market)
        now.__dict__.update(self.__dict__)  # what is kept of its offers is kept for both
        now._now_ms, now._wakes = now_ms, wakes
        return now

    def without(self, gone: Collection[Offer]) -> Market:
        """The same with fewer offers."""
        fewer = copy(self)
        fewer.offers = tuple(offer for offer in self.offers if offer not in gone)
        fewer._fitting, fewer._sorted, fewer._plain, fewer._quicker = {}, {}, {}, {}
        fewer._least_by_type = {}
        fewer.__dict__.pop("_by_size", None)
        return fewer

    def choose(self, job: JobView, left_ms: int | None = None) -> Choice | None:
        """The first tier's cheapest fitting offer by the hour of work (`weighed_micros`), then the quickest to start;
        then as HAS ranks nodes: the smallest memory that is enough, the fewest GPUs, the fewest left on its host.
        Another tier's, where machines of the first fail so often that work costs less there. What an hour of work costs
        is another for a job that saves seldom, for one that is done soon, and on GPUs of another speed (`job_prices`).
        Where GPUs differ in that, those on which the job would miss its deadline are passed over, as long as there are
        others. `left_ms`: what it has still to run, of a job that runs and of which that is known.

        Offers that failed the job recently are passed over, and of one that never saves those whose machines end before
        it is done; when that leaves none, the best of them is tried again. What is only not to be had for a moment, as
        its provider failed in passing or builds the image, is replaced by its like (`is_like`) and by nothing else.
        Those that the job's limits, or budgets, do not allow are never taken.
        """
        limited = job.caps.max_cost is not None or job.caps.max_hourly is not None or job.allowances
        if job.avoided_offers or job.unreached_offers or limited or job.never_saves or self._is_for_some:
            return self._in_time(job, self._choose(job), left_ms)
        kind = self._kind(job)
        if kind not in self._plain:
            self._plain[kind] = self._choose(job)
        plain = self._plain[kind]
        return plain if job.speeds is None else self._in_time(job, plain, left_ms)

    def of_sizes(self, job: JobView, sizes: Collection[int]) -> dict[int, SizedOffer]:
        """By number of GPUs, where there is one: what `choose` would take with that many at least, whatever the job's
        deadline. A few offers are looked at for all of these numbers together."""
        kind = self._kind(job)
        firsts = sorted(self._firsts(job, kind, min(sizes))) if sizes else []
        found = {}
        for gpus in sizes:
            fitting = tuple(offer for _, offer in firsts if offer.gpu_count >= gpus)
            fresh = tuple(offer for offer in fitting if self._is_fresh(offer, job))
            if fitting:
                _, best = self._best_of(fresh or fitting, kind, job)
                found[gpus] = SizedOffer(best, bool(fresh) and self._awaited_image(best, job) is None)
        return found

    @cached_property
    def _by_size(self) -> OffersBySize:
        return OffersBySize(self.offers, self._rank)

    def _firsts(self, job: JobView, kind: _Kind, least: int) -> Iterator[tuple[Place, Offer]]:
        """What may come first for the job with some number of GPUs. Of those that are alike in tier, type and number
        that is the first that it may have, that has not failed it, or can be had for the moment."""
        cost = WorkCost(kind[1], kind[2], kind[4])
        for gpu_type in self._by_size.types():
            if not takes_type(job.resources, gpu_type):
                continue
            bytes_min = _least_bytes(job.resources, gpu_type)
            for group in self._by_size.groups(gpu_type, least, cost):
                seen = set()
                for place, offer in group:
                    if offer.gpu_memory_bytes < bytes_min or not self._may_have(job, offer):
                        continue
                    ways = self._is_fresh(offer, job), self._can_be_had(offer, job)
                    if ways not in seen:
                        seen.add(ways)
                        yield place, offer
                    if all(ways):
                        break

    def _may_have(self, job: JobView, offer: Offer) -> bool:
        """Of one whose GPUs do."""
        need = job.resources
        if offer.cpus < need.cpus_min or offer.memory_bytes < need.memory_bytes_min:
            return False
        if need.base_image is not None and not self._takes_images(offer):
            return False
        return is_for(job, offer) and self._may_pay(job, offer)

    def least_by_type(self) -> Mapping[str, int]:
        """What an hour of work on one GPU costs at least, in micro-dollars, by type."""
        if not self._least_by_type:
            self._least_by_type.update(least_by_type(self.offers))
        return self._least_by_type

    def _in_time(self, job: JobView, choice: Choice | None, left_ms: int | None) -> Choice | None:
        """What has the job done by its deadline, where the choice would not."""
        if job.speeds is None or choice is None or choice.again or self._now_ms is None:
            return choice
        due = due_of(job, self._now_ms, left_ms)
        if due is None:
            return choice
        others = () if due.is_sure_on(choice.offer) else self._quicker_than(choice, job)
        for offer in (choice.offer, *others):
            self._wakes += [self._now_ms + in_ms for in_ms in due.changes_ms(offer.gpu_type, begins_ms(offer))]
        best = choice.offer if not others else due.first_in_time((choice.offer, *others))
        if best is None or best is choice.offer:
            return choice
        rivals = sum(offer.tier == best.tier for offer in others)
        beside = _other_way(best, others) if self.has_bids else None
        return replace(choice, offer=best, rivals=rivals, failing=None, beside=beside, too_slow=choice.offer)

    def _quicker_than(self, choice: Choice, job: JobView) -> tuple[Offer, ...]:
        """What the job could have instead that trains faster or begins sooner, in order."""
        kind = self._kind(job)
        if kind not in self._quicker:
            self._quicker[kind] = quicker_ones(self._in_order(kind, job), job.speeds or UNKNOWN_SPEEDS)
        return tuple(
            offer
            for offer in self._quicker[kind]
            if offer is not choice.offer
            and is_for(job, offer)
            and self._may_pay(job, offer)
            and self._can_be_had(offer, job)
            and offer.key not in job.avoided_offers
            and self._outlives(offer, job)
        )

    def _kind(self, job: JobView) -> _Kind:
        """All jobs of one are answered alike: what they need, how seldom they save, how long they stay, and whether
        bids are for them."""
        stretch, staying = stretch_ms(job) if self._fail else 0, staying_ms(job) if self._arrive else 0
        return job.resources, stretch, staying, self._class(job) if self.has_bids else 0, job.speeds

    def _class(self, job: JobView) -> int:
        return 2 if may_be_interrupted(job) else int(is_spot(job))

    def _choose(self, job: JobView) -> Choice | None:
        kind = self._kind(job)
        fitting = tuple(
            offer for offer in self._in_order(kind, job) if is_for(job, offer) and self._may_pay(job, offer)
        )
        if not fitting:
            return None
        fresh = tuple(offer for offer in fitting if self._is_fresh(offer, job))
        first = (fresh or fitting)[0]
        pool, best = self._best_of(fresh or fitting, kind, job)
        rivals = sum(offer.tier == best.tier for offer in pool)
        unreached = best.key in job.unreached_offers
        image = self._awaited_image(best, job)
        failing = first if best.tier != first.tier and first.mean_life_ms else None
        left_out = 0 if failing else fitting.index(best)
        beside = _other_way(best, pool) if self.has_bids else None
        no_bids = self.has_bids and is_spot(job) and not may_be_interrupted(job)
        return Choice(best, rivals, left_out, not fresh, unreached, image, failing, beside, no_bids)

    def _best_of(self, offers: tuple[Offer, ...], kind: _Kind, job: JobView) -> tuple[Sequence[Offer], Offer]:
        """Of offers in order: they in the order in which they are taken, and the one that is."""
        pool = _safest_first(offers, kind)
        return pool, next((one for one in pool if self._can_be_had(one, job) and is_like(one, pool[0])), pool[0])

    def _is_fresh(self, offer: Offer, job: JobView) -> bool:
        return offer.key not in job.avoided_offers and self._outlives(offer, job)

    def _can_be_had(self, offer: Offer, job: JobView) -> bool:
        return offer.key not in job.unreached_offers and self._awaited_image(offer, job) is None

    def _awaited_image(self, offer: Offer, job: JobView) -> ImageView | None:
        """What its provider has to build for the job first; None: nothing."""
        if (offer.provider, offer.tier) not in self._builders:
            return None
        image = job.resources.base_image or ""
        view = self._images.get((offer.provider, image)) or ImageView(offer.provider, image, image)
        return None if view.state == ImageState.READY else view

    def pieces(self, job: JobView, like: Offer) -> list[Offer]:
        """The offers of the same pool and kind that the job may have, with at most as many GPUs as it asks for."""
        same = like.provider, like.tier, like.region, like.gpu_type, like.gpu_memory_bytes, like.spot_only
        return [
            offer
            for offer in self._fits(job)
            if (offer.provider, offer.tier, offer.region, offer.gpu_type, offer.gpu_memory_bytes, offer.spot_only)
            == same
            and offer.gpu_count <= job.resources.gpus_max
            and offer.key not in job.avoided_offers
            and offer.key not in job.unreached_offers
            and is_for(job, offer)
            and self._may_pay(job, offer)
        ]

    def too_dear(self, job: JobView) -> TooDear | None:
        """What stands in the way when offers fit and limits or budgets of the job allow none; None otherwise."""
        fitting = [offer for offer in self._fits(job) if is_for(job, offer)]
        if not fitting or any(self._may_pay(job, offer) for offer in fitting):
            return None
        allowed = [offer for offer in fitting if job.caps.allows_hourly(offer.price_per_hour.micros)]
        if not allowed:
            cheapest = min(fitting, key=lambda offer: (offer.price_per_hour, offer.key))
            return TooDear(cheapest, self._least(cheapest))
        least, offer = min(((self._least(offer), offer) for offer in allowed), key=lambda pair: (pair[0], pair[1].key))
        return TooDear(offer, least)

    def _fits(self, job: JobView) -> tuple[Offer, ...]:
        fitting = self._fitting.get(job.resources)
        if fitting is None:
            image = job.resources.base_image
            fitting = tuple(
                offer
                for offer in self.offers
                if offer_fits(job.resources, offer) and (image is None or self._takes_images(offer))
            )
            self._fitting[job.resources] = fitting
        return fitting

    def _in_order(self, kind: _Kind, job: JobView) -> tuple[Offer, ...]:
        """What fits, cheapest first by an hour of such a job's work."""
        _, stretch, staying, _, speeds = kind
        if not stretch and not staying and speeds is None:
            return self._fits(job)
        if kind not in self._sorted:
            key = {offer: entered_micros(offer, stretch, staying, speeds) for offer in self._fits(job)}
            self._sorted[kind] = tuple(sorted(self._fits(job), key=lambda offer: (self._rank[offer.tier], key[offer])))
        return self._sorted[kind]

    def _outlives(self, offer: Offer, job: JobView) -> bool:
        """Whether a machine lives long enough for a job that cannot leave it and go on, as far as both are known."""
        life_ms = self._lives_ms.get((offer.provider, offer.tier))
        return not job.never_saves or life_ms is None or job.total_run_ms is None or job.total_run_ms < life_ms

    def _takes_images(self, offer: Offer) -> bool:
        return (offer.provider, offer.tier) not in self._without_images

    def _may_pay(self, job: JobView, offer: Offer) -> bool:
        if not job.caps.allows_hourly(offer.price_per_hour.micros):
            return False
        least = self._least(offer)
        if job.refused_by(offer.provider, least) is not None:
            return False
        return job.caps.max_cost is None or job.spent + least <= job.caps.max_cost

    def _least(self, offer: Offer) -> Money:
        rule = self._rules.get((offer.provider, offer.tier))
        return ZERO if rule is None else first_unit(rule, offer.price_per_hour)


def least_by_type(several: Iterable[Offer | NodeView]) -> dict[str, int]:
    """The least that an hour of work on one GPU costs, in micro-dollars, by type."""
    found: dict[str, int] = {}
    for one in several:
        micros = weighed_micros(one) // one.gpu_count
        found[one.gpu_type] = min(micros, found.get(one.gpu_type, micros))
    return found


def _safest_first(offers: tuple[Offer, ...], kind: _Kind) -> tuple[Offer, ...]:
    """Another tier's before those of the first, where those fail so often that work costs more there."""
    first, (_, stretch, staying, _, speeds) = offers[0], kind
    if not first.mean_life_ms:
        return offers
    cost = entered_micros(first, stretch, staying, speeds)
    dearer = (offer.tier == first.tier or entered_micros(offer, stretch, staying, speeds) >= cost for offer in offers)
    return tuple(offer for _, offer in sorted(zip(dearer, offers, strict=True), key=lambda pair: pair[0]))


def _other_way(best: Offer, pool: Iterable[Offer]) -> Offer | None:
    """The first of its tier that is rented in the other way: what it was weighed against."""
    rivals = (one for one in pool if one.tier == best.tier and one.interruptible is not best.interruptible)
    return next(rivals, None)


def is_like(offer: Offer, other: Offer) -> bool:
    """Whether a job that was to have `other` may take this one because `other` is not to be had for a moment: GPUs of
    the same type, and no more of them."""
    return _plain(offer.gpu_type) == _plain(other.gpu_type) and offer.gpu_count <= other.gpu_count


def is_for(job: JobView, offer: Offer) -> bool:
    """Whether the job may have machines of this offer: its project, and its class."""
    return is_of_its_class(job, offer) and (not offer.projects or job.project_id in offer.projects)


def offer_fits(resources: Resources, offer: Offer) -> bool:
    """Whether one machine of this offer could hold the job."""
    return (
        offer.gpu_count >= resources.gpus_min
        and kind_fits(resources, offer.gpu_type, offer.gpu_memory_bytes)
        and offer.cpus >= resources.cpus_min
        and offer.memory_bytes >= resources.memory_bytes_min
    )


def kind_fits(resources: Resources, gpu_type: str, gpu_memory_bytes: int) -> bool:
    """Whether the job takes this type of GPU, and its memory is enough."""
    return takes_type(resources, gpu_type) and gpu_memory_bytes >= _least_bytes(resources, gpu_type)


def takes_type(resources: Resources, gpu_type: str) -> bool:
    """Whether the job takes this type of GPU.

    One whose CPU is an Arm is for jobs that name it: images and wheels are mostly built for x86-64, and what was built
    for that fails there, after it was paid for. So is a host that gives its processors in place of GPUs.
    """
    asked = resources.gpu_type
    if asked is None:
        return cpu_architecture(gpu_type) == X86_64 and gpu_type != CPU
    return _plain(asked) == _plain(gpu_type)


def _least_bytes(resources: Resources, gpu_type: str) -> int:
    if not resources.gpu_memory_bytes_by_type:
        return resources.gpu_memory_bytes_min
    return dict(resources.gpu_memory_bytes_by_type).get(_plain(gpu_type), resources.gpu_memory_bytes_min)


def _plain(gpu_type: str) -> str:
    """`RTX 4090`, `rtx-4090` and `RTX4090` name one GPU."""
    return "".join(letter for letter in gpu_type.casefold() if letter.isalnum())
