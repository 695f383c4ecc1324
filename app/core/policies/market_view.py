"""What could become of a job in this snapshot under these settings; and where nothing can, why not."""

from __future__ import annotations

from collections import Counter

from app.core.board import Board
from app.core.market import Choice, Market, offer_fits
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import ActionKind
from app.core.model.snapshot import JobView
from app.core.policies import reasons
from app.core.policies.placement import Fleet, Place
from app.core.policy import PolicyConfig
from app.core.spot_places import is_of_its_class


class MarketView:
    """The fleet and the two markets of one decision, and the questions asked of them together."""

    def __init__(self, board: Board, config: PolicyConfig) -> None:
        self.now_ms, self.config = board.now_ms, config
        self.fleet = Fleet(board)
        self.wakes: list[int] = []  # when a deadline has a choice be another
        self.serverless = board.serverless.at(self.now_ms, self.wakes)
        self.own = board.own.at(self.now_ms, self.wakes)
        self.serverful = board.serverful.at(self.now_ms, self.wakes)
        self.taken: Counter[tuple[str, str]] = Counter()  # GPUs of hosts that several offers share
        self._closed = reasons.closed_providers(board.closed)

    def may(self, kind: ActionKind) -> bool:
        """Whether this world can enact such an action."""
        return kind in self.config.capabilities

    def may_start(self) -> bool:
        """Whether serverless places are to be had at all."""
        return self.may(ActionKind.START) and self.config.serverless_limit > 0

    def may_rent(self) -> bool:
        """Whether serverful nodes are to be had at all; without `Assign` one would stay empty."""
        return self.may(ActionKind.PROVISION) and self.may(ActionKind.ASSIGN) and self.config.serverful_limit > 0

    def fleet_is_full(self) -> bool:
        """Whether as many serverful nodes are rented as the settings allow, those of this plan included."""
        return self.fleet.rented >= self.config.serverful_limit

    def to_be_had(self, job: JobView, left_ms: int | None = None) -> Choice | None:
        """A node for the job that may be had now: of one's own, or rented while the settings allow one more.
        `left_ms`: as for `Market.choose`."""
        choice = self.serverful.choose(job, left_ms) if self.may_rent() else None
        return None if choice is None or (self.fleet_is_full() and choice.offer.tier != Tier.OWN) else choice

    def take(self, offer: Offer) -> None:
        """This plan has a machine of the offer: what its host has left no more, nobody else of the plan is given."""
        if not offer.shared_gpus:
            self._close_host(offer)
            return
        host = offer.provider, offer.host
        self.taken[host] += offer.gpu_count
        left = offer.shared_gpus - self.taken[host]
        gone = {one for one in self.own.offers if (one.provider, one.host) == host and one.gpu_count > left}
        self.own, self.serverful = self.own.without(gone), self.serverful.without(gone)

    def _close_host(self, offer: Offer) -> None:
        """Whoever rents on demand takes a host from whoever bids for it: of one plan, it is rented in one way."""
        if not (offer.host and self.serverful.has_bids):
            return
        same = {one for one in self.serverful.offers if (one.provider, one.host) == (offer.provider, offer.host)}
        if any(one.interruptible for one in same):
            self.serverful = self.serverful.without(same)

    def serverful_possible(self, job: JobView) -> bool:
        """Whether a serverful place could hold the job, now or once others have left."""
        if self.may(ActionKind.ASSIGN) and self.fleet.could_fit(job):
            return True
        return self.may_rent() and self.serverful.choose(job) is not None

    def serverful_fresh(self, job: JobView) -> bool:
        """As `serverful_possible`, leaving out offers that failed the job."""
        if self.may(ActionKind.ASSIGN) and self.fleet.could_fit(job):
            return True
        choice = self.serverful.choose(job) if self.may_rent() else None
        return choice is not None and not choice.again

    def counts_on(self, place: Place) -> str:
        """What a job that has room on this place waits for."""
        if place.node is None:
            return f"shares the node that is being {place.place_id}"
        if place.node.state == NodeState.READY:
            return f"goes on {reasons.node(place.node)}, which is ready"
        late_ms = self.now_ms - place.expected_ready_ms
        when = f"in {reasons.duration(-late_ms)}" if late_ms <= 0 else f"{reasons.duration(late_ms)} ago"
        return f"waits for {reasons.node(place.node)}: it boots, expected {when}"

    def no_serverful_place(self, job: JobView, held: Place | None) -> str:
        """Why the job gets neither a node nor a new one now. `held`: the node kept open for it, if any."""
        need = reasons.room(job.resources)
        full = self.may_rent() and self.fleet_is_full() and self.serverful.choose(job) is not None
        limit = f": {self.fleet.rented} of {self.config.serverful_limit} serverful nodes are rented" if full else ""
        if held is not None and held.node is not None:
            return f"waits until {need} fall free on {reasons.node(held.node)}{limit}"
        if full:
            return f"waits for a node with {need}{limit}{self._other_image(job)}"
        if self.fleet.could_fit(job):
            return f"waits for a node with {need} to become reachable or ready"
        if self.may_rent() and self.serverful.choose(job) is not None:
            return f"waits for a node with {need}: none is rented yet{self._other_image(job)}"
        return self.nothing_serverful(job)

    def nothing_serverful(self, job: JobView) -> str:
        """Why no serverful place could ever hold the job."""
        if self.may_rent() and (dear := self.serverful.too_dear(job)) is not None:
            return reasons.too_dear(job, dear.offer, dear.least)
        off = "" if self.may_rent() else "; renting serverful nodes is switched off here"
        off += self._bids_alone(job)
        return reasons.nothing_fits(job.resources, self.serverful.offers, off + self._closed)

    def nothing_at_all(self, job: JobView) -> str:
        """Why no place of any tier could ever hold the job."""
        markets = [market for market, open_ in self._markets() if open_]
        dear = list(filter(None, (market.too_dear(job) for market in markets)))
        if dear:
            hourly = job.caps.max_hourly is not None
            nearest = min(dear, key=lambda one: one.offer.price_per_hour if hourly else one.least)
            return reasons.too_dear(job, nearest.offer, nearest.least)
        closed = [] if self.may_start() else ["starting on serverless"]
        closed += [] if self.may_rent() else ["renting serverful nodes"]
        off = f"; switched off here: {' and '.join(closed)}" if closed else ""
        offers = (*self.serverless.offers, *self.serverful.offers)
        return reasons.nothing_fits(job.resources, offers, off + self._closed)

    def _other_image(self, job: JobView) -> str:
        """Of a node with room for the job that only its image keeps from it; empty when there is none."""
        view = self.fleet.ready_with_other_image(job) if self.config.explains else None
        return "" if view is None else reasons.other_image(view, job.resources)

    def _bids_alone(self, job: JobView) -> str:
        """Where bids fit, and are for others."""
        bids = (one for one in self.serverful.offers if one.interruptible and not is_of_its_class(job, one))
        if not any(offer_fits(job.resources, one) for one in bids):
            return ""
        return "; what is bid for and may be lost at any time is for spot jobs that go on from a checkpoint alone"

    def _markets(self) -> tuple[tuple[Market, bool], ...]:
        return (self.serverless, self.may_start()), (self.serverful, self.may_rent())
