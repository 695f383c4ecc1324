"""The working space of one decision: what the plan has given out so far, in actions and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain

from app.core import queue
from app.core.board import Board
from app.core.due import due_of
from app.core.image_builds import USUAL_BUILD_MS
from app.core.job_prices import usual_micros
from app.core.market import Choice, is_like
from app.core.model.image import ImageState, WantedImage
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode, MergeView
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.plan import (
    ActionKind,
    Assign,
    Demote,
    Merge,
    Migrate,
    MoveOut,
    Plan,
    Preempt,
    Provision,
    Release,
    RowVersions,
    Split,
    Start,
    Waiting,
)
from app.core.model.run import RunPurpose
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.policies import ranges, reasons
from app.core.policies.market_view import MarketView
from app.core.policies.placement import Place
from app.core.policies.weighing import is_patient, move_cost, settles
from app.core.policy import PolicyConfig
from app.core.remaining import outlived_at_ms, remaining_ms

_SOON_MS = 5_000  # nobody minds so long
_PROFILED = "is profiled before it trains, to know which jobs of its base model help it,"


@dataclass(slots=True)
class _Actions:
    merges: list[Merge | Split] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    assigns: list[Assign] = field(default_factory=list)
    moves: list[Demote | Migrate | Preempt] = field(default_factory=list)
    provisions: list[Provision] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)


class PlanBuilder:
    """Used once. What is given to one job is gone for the next, so policies ask in the order of who comes first."""

    def __init__(self, board: Board, config: PolicyConfig) -> None:
        self.board, self.config, self.now_ms = board, config, board.now_ms
        self.outlook = MarketView(board, config)
        self.fleet = self.outlook.fleet
        self.serverless_nodes = board.serverless_nodes
        self.waiting: dict[str, str] = {}
        self._wakes: list[int] = []
        self._placed: set[str] = set()
        self.spoken_for: set[str] = set()  # jobs that are merged, split or held back for a merge by this plan
        self._images: set[WantedImage] = set()
        self._done = _Actions()

    def plan(self, policy: str, **signals: float) -> Plan:
        """All that was decided. `signals` are added to the counts that every policy tells."""
        done = self._done
        self._widen()
        return Plan(
            policy=policy,
            actions=(*done.merges, *done.starts, *done.assigns, *done.moves, *done.provisions, *done.releases),
            waiting=tuple(
                Waiting(job_id, why) for job_id, why in sorted(self.waiting.items()) if self.config.tells(job_id)
            ),
            signals=self._signals(signals) if self.config.explains else (),
            images=tuple(sorted(self._images, key=lambda one: (one.provider, one.image))),
            wake_at_ms=min(chain(self._wakes, self.outlook.wakes), default=None),
        )

    def left_ms(self, job: JobView, run: RunView | None) -> int:
        """What a job has still to run. Wakes when its prediction no longer counts: what is known then is another."""
        self.wake(outlived_at_ms(job, run, self.now_ms))
        return remaining_ms(job, run, self.now_ms)

    def wake(self, at_ms: int | None) -> None:
        """Decide again by then; moments that are over are left out."""
        if at_ms is not None and at_ms > self.now_ms:
            self._wakes.append(at_ms)

    def wait(self, job: JobView, reason: str) -> None:
        """Why the job is given nothing now, and how long it may be."""
        self.waiting[job.job_id] = reason + reasons.most_wait(job, self.now_ms)
        self.wake(queue.waits_until_ms(job))

    def has_waited_enough(self, job: JobView) -> bool:
        """Whether the job's owner lets it wait no longer for something cheaper."""
        return queue.has_waited_enough(job, self.now_ms)

    def _widen(self) -> None:
        """Jobs that ask for a range of GPUs have what is left over of the pool that they begin on."""
        if not any(ranges.is_range(self.board.jobs[one.job_id]) for one in self._done.starts):
            return
        waiting = [job for job in self.board.each_placeable() if self.wants_node(job)]
        self._done.starts = ranges.widened(self._done.starts, self.board, waiting, self.outlook.taken)

    # What a job can be given

    def start(self, job: JobView, choice: Choice, why: str = "", *, purpose: RunPurpose = RunPurpose.TRAIN) -> bool:
        """A machine of its own, serverless unless all are taken, or one of the team's. `why` is added to the reason."""
        limit = self.config.serverless_limit
        if not choice.can_be_had:
            self.await_image(job, choice)
            return False
        hosts = self.fleet.hosts(job)
        if hosts:
            self.wait(job, f"waits for room on {', '.join(sorted(hosts))}: it is to run beside a job that is there")
            return False
        if choice.offer.tier == Tier.SERVERLESS:
            if self.serverless_nodes >= limit:
                self.wait(job, f"waits for a serverless place: {self.serverless_nodes} of {limit} are taken")
                return False
            self.serverless_nodes += 1
        self.outlook.take(choice.offer)
        self._placed.add(job.job_id)
        on = f"on {reasons.offer(choice.offer)}, {_best_of(choice, job)}{why}"
        reason = f"starts {on}" if purpose == RunPurpose.TRAIN else f"{_PROFILED} {on}"
        self._done.starts.append(Start(job.job_id, choice.offer, reason, _versions(job), purpose=purpose))
        return True

    def start_on_own(self, job: JobView, serverless: Choice | None) -> bool:
        """A machine of the team's own, where one is free and there as soon as a serverless one would be."""
        if not (self.outlook.may(ActionKind.START) and self.outlook.may_rent()) or self.fleet.hosts(job):
            return False
        own = self.outlook.own.choose(job)
        if own is None or own.again or own.unreached or not own.can_be_had:
            return False
        if serverless is not None and own.offer.startup_ms > max(serverless.offer.startup_ms, _SOON_MS):
            return False
        if serverless is not None and self._only_in_time_on(serverless.offer, own.offer, job):
            return False
        return self.start(job, own)

    def _only_in_time_on(self, serverless: Offer, own: Offer, job: JobView) -> bool:
        """Whether the job keeps its deadline on serverless, and not on GPUs of the team's own, as they are slower."""
        due = due_of(job, self.now_ms, None)
        if due is None or due.first_in_time([own]) is not None:
            return False
        return due.first_in_time([serverless]) is not None

    def start_now(self, job: JobView, choice: Choice) -> None:
        """A serverless place for a job that has waited enough; where all are taken, a node."""
        if self.start(job, choice, reasons.waited_enough(job)) or not self.outlook.serverful_possible(job):
            return
        if choice.image is not None and choice.image.state == ImageState.FAILED:
            return  # a machine elsewhere would be paid for to find out the same
        told = self.waiting.pop(job.job_id)
        if not self.place_serverful(job) and self.config.explains:
            self.waiting.setdefault(job.job_id, told)

    def rather_rents(self, job: JobView, choice: Choice) -> bool:
        """Whether each serverless offer has failed the job lately, and a node would be something else; a job that has
        waited enough tries again rather than wait for others to leave theirs. What is not to be had for a moment is
        left for a node that is like it, and what is still to be built for one that is there sooner and costs no
        more."""
        if choice.image is not None or choice.unreached:
            return self._has_stand_in(job, choice)
        if not choice.again or (self.has_waited_enough(job) and self.outlook.fleet_is_full()):
            return False
        return self.outlook.serverful_fresh(job)

    def _has_stand_in(self, job: JobView, choice: Choice) -> bool:
        """Whether a node can be rented in the place of a serverless offer that is not to be had for a moment."""
        fresh = self.outlook.to_be_had(job)
        if fresh is None or fresh.again or fresh.unreached or not fresh.can_be_had:
            return False
        instead, image = fresh.offer, choice.image
        if image is None:
            return is_like(instead, choice.offer)
        if image.state == ImageState.FAILED or instead.gpu_count > choice.offer.gpu_count:
            return False
        left_ms = (image.ready_ms or self.now_ms + USUAL_BUILD_MS) - self.now_ms
        sooner = instead.startup_ms < left_ms + choice.offer.startup_ms
        return sooner and instead.price_per_hour <= choice.offer.price_per_hour

    def await_image(self, job: JobView, choice: Choice) -> None:
        """Its provider has to build the job's image first: the job waits, and the image is asked for."""
        image = choice.image
        if image is None:
            raise ValueError(f"{choice.offer.key} waits for no image")
        if image.state == ImageState.WANTED:
            self._images.add(WantedImage(image.provider, image.image))
        self.wait(job, reasons.awaited_image(image, self.now_ms))

    def assign(self, job: JobView, place: Place, *, purpose: RunPurpose = RunPurpose.TRAIN) -> bool:
        """GPUs of a ready node with room."""
        node = place.node
        if node is None:
            return False
        self._placed.add(job.job_id)
        free, taken = len(place.free_gpus), place.take(job)
        on = f"on {reasons.node(node)}, the cheapest ready node that fits: takes {len(taken)} of {free} free GPUs"
        reason = f"goes {on}" if purpose == RunPurpose.TRAIN else f"{_PROFILED} {on}"
        assign = Assign(job.job_id, node.node_id, taken, reason, _versions(job, node), purpose=purpose)
        self._done.assigns.append(assign)
        return True

    def provision(
        self,
        job: JobView,
        why: str = "no node of the project has room",
        *,
        ahead: bool = False,
        left_ms: int | None = None,
        bids: bool | None = None,
    ) -> bool:
        """A new node for the job, where one that fits may be rented; `ahead`: one like it, for those to come.
        None for a job whose last one could not be had a moment ago. `left_ms`: as for `Market.choose`. `bids`: by a
        bid, or on demand; None: in the way that costs less."""
        if job.not_before_ms > self.now_ms:
            self.wake(job.not_before_ms)
            return False
        choice = self.outlook.to_be_had(job, left_ms)
        if choice is not None and bids is not None:
            choice = choice.in_way(bids=bids)
        if choice is None or not choice.can_be_had or self.fleet.hosts(job):
            return False
        offer = choice.offer
        self.outlook.take(offer)
        ready = f"ready in about {reasons.duration(offer.startup_ms)}"
        reason = f"rents {reasons.offer(offer)}, {_best_of(choice, job)}, {ready}: {why}"
        self._done.provisions.append(Provision(job.project_id, job.job_id, offer, reason, _versions(job), ahead=ahead))
        if ahead:
            self.fleet.rented += 1
        else:
            self.fleet.add(job, offer, self.now_ms)
        return True

    def place_serverful(self, job: JobView) -> bool:
        """A ready node, else room on a coming one, else a new one, else the reason why not. True if placed now."""
        self.wake(queue.waits_until_ms(job))
        ready = self.ready_place(job)
        if ready is not None:
            return self.assign(job, ready)
        coming = self.coming_place(job)
        if coming is not None:
            coming.take(job)
            if self.config.explains:
                self.wait(job, self.outlook.counts_on(coming))
        elif not self.provision(job):
            self.hold_open(job)
            self._tell_awaited(job)
        return False

    def _tell_awaited(self, job: JobView) -> None:
        choice = self.outlook.serverful.choose(job) if self.outlook.may_rent() else None
        if choice is not None and not choice.can_be_had:
            self.await_image(job, choice)

    def hold_open(self, job: JobView) -> None:
        """Keep what is free for the job, which fits nowhere now, and say what it waits for."""
        self.wake(queue.waits_until_ms(job))
        if self.config.explains or self.board.open_nodes(job.project_id):
            held = self.fleet.hold_open(job)
            if self.config.explains:
                self.wait(job, self.outlook.no_serverful_place(job, held))

    def keep_room(self, job: JobView) -> Place | None:
        """Room on a node, ready or coming, for a job that comes soon, without giving it anything yet."""
        place = self.fleet.ready_place(job) or self.coming_place(job)
        if place is not None:
            place.take(job)
        return place

    def wants_node(self, job: JobView) -> bool:
        """Whether a job without a place is one that this plan has given nothing, and that may have a node."""
        placed = job.job_id in self._placed
        return not placed and job.not_before_ms <= self.now_ms and not queue.has_spent_all(job)

    def arrived(self) -> list[JobView]:
        """Jobs that this plan gives their first place."""
        return [job for job_id in self._placed if (job := self.board.jobs[job_id]).state == JobState.QUEUED]

    def is_patient(self, job: JobView) -> bool:
        """Whether a job without a place rather waits for a fresh node than starts on serverless: as it gains by that,
        or as it never saves, and would stay on serverless to its end."""
        serverless = self.outlook.serverless.choose(job)
        fresh = self.outlook.serverful.choose(job) if self.outlook.may_rent() else None
        if serverless is None or fresh is None:
            return False
        left_ms = remaining_ms(job, None, self.now_ms)
        asked = self.config, job, left_ms, serverless.offer, fresh.offer, self.now_ms
        return settles(*asked) or (is_patient(*asked) and not self._waits_in_vain(job))

    def _waits_in_vain(self, job: JobView) -> bool:
        """Whether the node that the job would wait for is long overdue. Of a job that is new, time alone ends that."""
        coming = self.coming_place(job) if job.state == JobState.WAITING else None
        if coming is None:
            return False
        given_up_ms = coming.expected_ready_ms + self.config.rules.patience_ms
        self.wake(given_up_ms + 1)
        return self.now_ms > given_up_ms

    def nothing_is_left(self) -> bool:
        """Whether no job whatever could be given a place now, or room on a node that comes."""
        return (
            (self.serverless_nodes >= self.config.serverless_limit or not self.board.serverless.offers)
            and (not self.outlook.may_rent() or self.outlook.fleet_is_full() or not self.board.serverful.offers)
            and not (self.outlook.may_rent() and self.outlook.own.offers)
            and not self.fleet.has_room()
        )

    def holds_back(self, job: JobView) -> bool:
        """Whether a job may be given nothing now: nothing may be spent on it, or its last start failed a moment ago."""
        if queue.has_spent_all(job):
            self.wait(job, reasons.nothing_to_spend(job))
        elif job.not_before_ms > self.now_ms:
            self.back_off(job)
        else:
            return False
        return True

    def back_off(self, job: JobView) -> None:
        """Its last start failed a moment ago: not yet again."""
        left_ms = job.not_before_ms - self.now_ms
        what = "start" if job.state == JobState.QUEUED else "run"
        self.wait(job, f"its last {what} failed: tries again in {reasons.duration(left_ms)}")
        self.wake(job.not_before_ms)

    def ready_place(self, job: JobView, most_micros: float = math.inf) -> Place | None:
        """Room on a node that is ready, where jobs can be put there, for at most so much per hour."""
        place = self.fleet.ready_place(job, most_micros) if self.outlook.may(ActionKind.ASSIGN) else None
        return place if place is not None and self.suits(place, job) else None

    def suits(self, place: Place, job: JobView) -> bool:
        """Whether a job without a place would take room on this ready node, if there was any."""
        return place.welcomes(job) and not (self.wastes(place, job) or self._misses(place, job, 0))

    def coming_place(self, job: JobView) -> Place | None:
        """Room on the node that comes soonest; where GPUs differ in speed, on which the job is not late."""
        if job.speeds is None:
            return self.fleet.coming_place(job)
        coming = sorted(self.fleet.coming_places(job, math.inf), key=lambda place: place.coming_rank)
        return next((one for one in coming if not self._misses(one, job, one.expected_ready_ms - self.now_ms)), None)

    def _misses(self, place: Place, job: JobView, begins_ms: int) -> bool:
        """Whether a job without a place would be late there, as its GPUs are slower than others that are to be had."""
        due = due_of(job, self.now_ms, None) if job.state in PLACEABLE_JOB_STATES else None
        if due is None or due.is_in_time(place.gpu_type, max(0, begins_ms)):
            return False
        fresh = self.outlook.to_be_had(job), self.outlook.serverless.choose(job) if self.outlook.may_start() else None
        return due.first_in_time(one.offer for one in fresh if one is not None and one.can_be_had) is not None

    def wastes(self, place: Place, job: JobView) -> bool:
        """Whether a larger node, as larger or merged jobs leave them, would be kept for this job alone for so long that
        a node of its own costs less in all, the time until that is ready on serverless included."""
        node = place.node
        if node is None or node.gpu_count <= job.resources.gpus_min or self.fleet.hosts(job):
            return False
        fresh, serverless = self.outlook.to_be_had(job), self.outlook.serverless.choose(job)
        if fresh is None or serverless is None:
            return False
        own, until_ready = usual_micros(fresh.offer, job), usual_micros(serverless.offer, job)
        longer_ms = max(0, remaining_ms(job, None, self.now_ms) - self._busy_ms(node))
        dearer = (usual_micros(node, job) - own) * longer_ms
        return dearer > until_ready * fresh.offer.startup_ms + move_cost(self.config, until_ready, own)

    def _busy_ms(self, node: NodeView) -> int:
        """For how long those that are on the node still need it."""
        runs = ((run, self.board.jobs.get(run.job_ids[0])) for run in self.board.runs_on(node.node_id))
        return max((self.left_ms(job, run) for run, job in runs if job is not None), default=0)

    def free_gpus(self, node: NodeView) -> int:
        """How many GPUs of a node this plan has left."""
        taken = sum(len(assign.gpu_indices) for assign in self._done.assigns if assign.node_id == node.node_id)
        return len(node.free_gpus) - taken

    # Jobs that become one, and two again

    def merge(
        self, lead: JobView, companion: JobView, mode: MergeMode, gpus: int, expected: tuple[float, float], why: str
    ) -> None:
        """Both are one from here on, and placed as one by the next decision. `expected`: score and gain."""
        score, gain = expected
        self.spoken_for |= {lead.job_id, companion.job_id}
        versions = _versions(lead, companion)
        self._done.merges.append(Merge(lead.job_id, companion.job_id, mode, gpus, score, gain, why, versions))

    def split(self, merge: MergeView, why: str) -> None:
        """Both are on their own from here on."""
        self.spoken_for |= {merge.lead_id, merge.companion_id}
        versions = ((merge.merge_id, merge.row_version),)
        self._done.merges.append(Split(merge.lead_id, merge.companion_id, merge.merge_id, why, versions))

    # What a run or a node can be asked

    def demote(self, run: RunView, job: JobView, riders: list[JobView], reason: str) -> None:
        """Ask a serverless run to save at the next step and leave."""
        self._done.moves.append(Demote(job.job_id, run.run_id, reason, _versions(run, *riders)))

    def preempt(self, run: RunView, job: JobView, why: str) -> None:
        """Ask the run of a rented node to save and go back to the queue."""
        self._done.moves.append(
            Preempt(job.job_id, run.run_id, f"saves and leaves its node: {why}", _versions(run, job))
        )

    def choices(self, job: JobView) -> list[Choice]:
        """What could be rented for the job now, of each tier that has a place left: serverful first."""
        serverless = self.outlook.may_start() and self.serverless_nodes < self.config.serverless_limit
        both = self.outlook.to_be_had(job), self.outlook.serverless.choose(job) if serverless else None
        return [choice for choice in both if choice is not None and choice.can_be_had]

    def move_out(self, run: RunView, job: JobView, choice: Choice, why: str) -> MoveOut:
        """Move a running job onto a machine that is rented for it, one of `choices`."""
        offer = choice.offer
        if offer.tier == Tier.SERVERLESS:
            self.serverless_nodes += 1
        else:
            self.outlook.take(offer)
            self.fleet.add(job, offer, self.now_ms)
        gpus = offer.gpu_count if offer.tier == Tier.SERVERLESS else job.resources.gpus_min
        ready = f"ready in about {reasons.duration(offer.startup_ms)}"
        reason = f"moves to {reasons.offer(offer)}, {_best_of(choice, job)}, {ready}: {why}"
        return MoveOut(job.job_id, run.run_id, offer, tuple(range(gpus)), reason, _versions(run, job))

    def migrate(self, run: RunView, job: JobView, place: Place, why: str) -> Migrate:
        """Move a running job onto a ready node: it saves there and goes on here."""
        node = place.node
        if node is None:
            raise ValueError(f"{place.place_id} is no node yet")
        taken = place.take(job)
        reason = f"moves to {reasons.node(node)}: {why}"
        versions = _versions(run, job, node)
        move = Migrate(job.job_id, run.run_id, node.node_id, taken, reason, versions)
        self._done.moves.append(move)
        return move

    def release(self, node: NodeView, why: str) -> None:
        """End the rent of a node that nothing in this plan counts on."""
        reason = f"ends the rent of {reasons.node(node)}: {why}"
        self._done.releases.append(Release(node.node_id, reason, _versions(node)))

    def release_idle_after(self, keep_ms: int) -> None:
        """Give back nodes that nobody needs and that have been idle for so long."""
        if not self.outlook.may(ActionKind.RELEASE):
            return
        for node in self.fleet.unneeded():
            if node.idle_since_ms is None:
                continue
            idle_ms, kept_ms = self.now_ms - node.idle_since_ms, keep_ms
            if node.project_id in self.board.no_ahead or node.tier == Tier.OWN:
                kept_ms = 0
            if idle_ms < kept_ms:
                self.wake(node.idle_since_ms + kept_ms)
                continue
            idle = f"idle for {reasons.duration(max(0, idle_ms))}, kept for {reasons.duration(kept_ms)}"
            self.release(node, f"{idle}, and no job needs it")

    def release_own(self) -> None:
        """Give back machines of the team's own that nobody needs, for a policy that keeps idle nodes by other rules:
        they are there again at once, and other projects' jobs may need their GPUs."""
        if not self.outlook.may(ActionKind.RELEASE):
            return
        for node in self.fleet.unneeded():
            if node.tier == Tier.OWN and node.idle_since_ms is not None:
                self.release(node, "no job needs it, and others may")

    def _signals(self, more: dict[str, float]) -> tuple[tuple[str, float], ...]:
        tiers = {f"nodes_{tier}": 0 for tier in Tier}
        for node in self.board.nodes.values():
            tiers[f"nodes_{node.tier}"] += 1
        signals = {**more, "jobs_waiting": self.board.placeable_count, **tiers}
        return tuple((name, float(value)) for name, value in signals.items())


def _best_of(choice: Choice, job: JobView) -> str:
    rank = f"the cheapest of {choice.rivals}" if choice.rivals > 1 else "the only one of the"
    text = f"{rank} {choice.offer.tier} offers that fit"
    if choice.too_slow is not None:
        text = f"the cheapest of the {choice.offer.tier} offers that fit and are in time"
    if choice.other_way:
        way = "bid for" if choice.offer.interruptible else "on demand"
        text = f"the cheapest of the {choice.offer.tier} offers that fit and are {way}: others are not worth a move"
    if choice.failing is not None:
        text = f"{text}, as {reasons.failing(job, choice.offer, choice.failing)}"
    if choice.beside is not None:
        text = f"{text}, as {reasons.bid_or_not(job, choice.offer, choice.beside)}"
    elif choice.no_bids:
        text = f"{text}, bids left out, as it would begin again from nothing"
    if choice.too_slow is not None:
        text = f"{text}: {reasons.too_slow(choice.too_slow)}"
    elif job.speeds is not None:
        text = f"{text}{reasons.speed(job, job.speeds, choice.offer)}"
    if choice.unreached:
        return f"{text} (tried again: it could not be asked for a moment ago)"
    if choice.again:
        return f"{text} (tried again: each of them failed this job recently)"
    return f"{text} (left out, as they failed this job recently: {choice.left_out})" if choice.left_out else text


def _versions(*rows: JobView | RunView | NodeView) -> RowVersions:
    """The rows whose change would make an action wrong, as (id, row_version), sorted by id."""
    return tuple(sorted((_row_id(row), row.row_version) for row in rows))


def _row_id(row: JobView | RunView | NodeView) -> str:
    if isinstance(row, JobView):
        return row.job_id
    return row.run_id if isinstance(row, RunView) else row.node_id
