"""Rules 3 to 5 of `allpass`: which runs move to a cheaper node, and which leave to wait for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from app.core import queue
from app.core.gpu_speeds import SAME, time_on, time_permille
from app.core.job_prices import arrival_cost, job_micros
from app.core.market import least_by_type
from app.core.model.job import JobState
from app.core.model.node import SERVERFUL_TIERS, Tier
from app.core.model.offer import Offer
from app.core.model.plan import ActionKind
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.policies import reasons
from app.core.policies.placement import Place
from app.core.policies.plan_builder import PlanBuilder
from app.core.policies.weighing import break_even_ms, may_be_parked, slack_ms
from app.core.remaining import LEAST_MS, predicted_ms, ran_ms, remaining_ms, unkept_ms

Costs: TypeAlias = Callable[[Offer | NodeView, JobView], int]
"""What an hour of a job's work costs somewhere, in micro-dollars."""

_RISKS_MOST = 0.5


@dataclass(frozen=True, slots=True)
class Reckoning:
    """What a run is moved by. `price`: what an hour of its work costs where it is; `costs`: what it does elsewhere, no
    less than its share of the GPUs there; `drop`: by which share that has to be less; in any case it is less."""

    price: int
    costs: Costs
    drop: float = 0.0
    why: str = "it costs less there"

    @property
    def most_micros(self) -> float:
        return min(self.price - 1, self.price * (1 - self.drop))


class Mover:
    """Looks at the runs of one decision; used once. `budget_ms` is F, which counts at the limit of nodes only."""

    def __init__(self, desk: PlanBuilder, budget_ms: int) -> None:
        self.desk, self.board, self.outlook, self.config = desk, desk.board, desk.outlook, desk.config
        self.now_ms, self.budget_ms = desk.now_ms, budget_ms
        self.going: set[str] = set()  # jobs that this plan moves, or has a place for
        self.makes_before_break = desk.outlook.may(ActionKind.MIGRATE)

    def move_runs(self) -> None:
        """Serverless runs, projects in turn and of each by deadline; then runs on nodes that cost more than others."""
        if not (self.makes_before_break or self.outlook.may(ActionKind.DEMOTE)):
            return
        runs = [(job, run) for run in self.board.serverless_runs.values() for job in self.movable(run)]
        run_of = {job.job_id: run for job, run in runs}
        for job in self.board.in_turn(sorted((job for job, _ in runs), key=queue.edf_key)):
            self._move_if_cheaper(job, run_of[job.job_id])
        if self.makes_before_break:
            self._chase()

    def movable(self, run: RunView) -> list[JobView]:
        """The job of a run that trains, alone or as the lead of a merge, and neither moves nor is asked to leave."""
        lead_id, *others = run.job_ids
        alone = not others or (lead_id in self.board.merges and self.outlook.may(ActionKind.DEMOTE))
        if not queue.is_running(run) or not alone or self.board.is_moving(lead_id) or lead_id in self.desk.spoken_for:
            return []
        job = self.board.jobs.get(run.job_ids[0])
        if job is None or job.state != JobState.RUNNING or job.leaving or job.stays:
            return []
        self.desk.wake(job.not_moved_before_ms)
        return [job] if job.not_moved_before_ms <= self.now_ms else []

    def _move_if_cheaper(self, job: JobView, run: RunView, drop: float = 0.0) -> None:
        """`drop`: by which share a place has to cost less than where the job is; in any case it costs less."""
        price = self.price(job, run)
        if price is not None:
            self.move_if_less(job, run, Reckoning(price, share_micros, drop))

    def move_if_less(self, job: JobView, run: RunView, by: Reckoning) -> None:
        """To a node that is there, else to one that comes, else to a new one: to the first that is worth the move.

        A node that was rented for the job stays its target when its offer is gone from the market, as it is once it is
        taken. Where a bid costs least and is too likely to be lost, or the other way round, what is rented in the other
        way may do.
        """
        for ready in self._ready_places(job, by.most_micros):
            if self._is_worth(job, run, by, ready.one):
                self._leave_for(job, run, ready, by.why)
                return
        for coming in self._coming_places(job, by.most_micros):
            if self._is_worth(job, run, by, coming.one):
                coming.take(job)
                self.going.add(job.job_id)
                return
        if job.not_before_ms > self.now_ms:
            self.desk.wake(job.not_before_ms)  # the last node that was rented for it could not be had
            return
        left_ms = self.desk.left_ms(job, run) if self._is_known(job, run) else None
        choice = self.outlook.serverful.choose(job, left_ms) if self.outlook.may_rent() else None
        for offer in () if choice is None else (choice.offer, choice.beside):
            if offer is not None and self._is_worth(job, run, by, offer):
                bids = offer.interruptible
                if self.desk.provision(job, "the job moves there when it is ready", left_ms=left_ms, bids=bids):
                    self.going.add(job.job_id)
                else:
                    self._park_if_slack(job, run)
                return

    def _ready_places(self, job: JobView, most_micros: float) -> Iterator[Place]:
        """The best one, then the best of each shape, and of those that last alike: what costs least may be lost too
        soon, or have the job late."""
        if not self.outlook.may(ActionKind.ASSIGN):
            return
        if job.speeds is None and (best := self.desk.ready_place(job, most_micros)) is not None:
            yield best
        places = self.desk.fleet.ready_places(job, most_micros)
        for place in sorted(places, key=lambda place: (place.weighed_share_micros(job), place.rank)):
            if job.speeds is not None or not self.desk.wastes(place, job):
                yield place

    def _coming_places(self, job: JobView, most_micros: float) -> Iterator[Place]:
        """Likewise of those that come: what comes soonest, then what costs least. Whatever was rented for the job is
        worth no more than one of these, so that nothing is rented again for it."""
        if self.outlook.may(ActionKind.ASSIGN):
            fleet = self.desk.fleet
            yield from sorted(fleet.coming_places(job, most_micros), key=lambda place: place.coming_rank)
            yield from sorted(fleet.cheapest_coming_places(job, most_micros), key=lambda place: place.coming_rank)

    def _leave_for(self, job: JobView, run: RunView, place: Place, why: str) -> None:
        """Two jobs of one process save and leave: a move that is prepared while they train is for one."""
        self.going.add(job.job_id)
        why = f"about {reasons.duration(remaining_ms(job, run, self.now_ms))} are left, and {why}"
        if self.makes_before_break and len(run.job_ids) == 1:
            self.desk.migrate(run, job, place, why)
        else:
            place.take(job)
            self.desk.demote(run, job, [job], f"leaves for {place.place_id}: {why}")

    def price(self, job: JobView, run: RunView) -> int | None:
        """What the run costs per hour: its share of the node."""
        node = self.board.nodes.get(run.node_id)
        return None if node is None else share_micros(node, job)

    def _is_worth(self, job: JobView, run: RunView, by: Reckoning, target: Offer | NodeView) -> bool:
        """Rule 3. Sets the wake-ups at which time alone changes the answer. A move pays for itself while its target
        lives: where such machines fail sooner than that on average, it does not. A chase, which asks for a drop, also
        weighs what it risks."""
        lost_ms, micros = unkept_ms(job, run, self.now_ms), by.costs(target, job)
        arrival = arrival_cost(target) * job.resources.gpus_min // target.gpu_count
        worth_ms = break_even_ms(self.config, by.price, micros, lost_ms, arrival)
        if micros > by.most_micros or worth_ms is None or 0 < target.mean_life_ms <= worth_ms:
            return False
        if by.drop and self._risks(job, run, by.price, micros, target.mean_life_ms):
            return False
        moves = self.config.moves
        worth_ms = max(worth_ms, int((moves.save_ms + moves.load_ms + lost_ms) / self.config.rules.move_pause_share))
        left_ms, ran = self.desk.left_ms(job, run), ran_ms(job, run, self.now_ms)
        if self._is_known(job, run):
            if left_ms <= worth_ms:
                return False
            self.desk.wake(self.now_ms + left_ms - worth_ms)
        else:
            least_ms = max(self.config.rules.least_run_ms, worth_ms + 1)
            if ran < least_ms:
                self.desk.wake(self.now_ms + least_ms - ran)
                return False
        longer_ms = max(0, time_on(job.speeds, target.gpu_type, left_ms) - left_ms)
        return not self._would_be_late(job, run, left_ms, lost_ms, longer_ms)

    def _risks(self, job: JobView, run: RunView, price: int, micros: int, mean_life_ms: int) -> bool:
        """Whether the share by which the target costs less is below the chance that it fails before the job is done:
        the place that the job has would be left for one that it loses. What that costs is in the price of the target
        already. So whatever the chance, half the price is less: else a long job would stay where it costs twice as
        much as where all others are."""
        if not mean_life_ms:
            return False
        chance = min(_RISKS_MOST, self.desk.left_ms(job, run) / mean_life_ms)
        return micros > (1 - chance) * price

    def _would_be_late(self, job: JobView, run: RunView, left_ms: int, lost_ms: int, longer_ms: int) -> bool:
        """`longer_ms`: that what is left takes there, on slower GPUs."""
        moves = self.config.moves
        move_ms = moves.save_ms + moves.load_ms + lost_ms + longer_ms
        spare_ms = job.deadline_ms - self.now_ms - left_ms
        if not self._is_known(job, run):  # what is left grows as the job runs: both answers may change, once each
            for until_ms in (spare_ms - move_ms, spare_ms):
                self.desk.wake(self.now_ms + until_ms // 2 + 1 if until_ms >= 0 else None)
        elif left_ms == LEAST_MS:
            self.desk.wake(job.deadline_ms - left_ms - move_ms + 1)
            self.desk.wake(job.deadline_ms - left_ms + 1)
        return 0 <= spare_ms < move_ms

    def _is_known(self, job: JobView, run: RunView) -> bool:
        return predicted_ms(job, run, self.now_ms) is not None

    def _park_if_slack(self, job: JobView, run: RunView) -> None:
        """Rule 5: no node is to be had. Once F is used up, a job saves and waits for one, if its deadline lets it wait
        for half of what it has left: so it is taken off serverless a few times in its life at most."""
        used_ms = queue.serverless_used_ms(job, run, self.now_ms)
        if run.tier != Tier.SERVERLESS or not self.outlook.may(ActionKind.DEMOTE) or not may_be_parked(job):
            return
        if used_ms < self.budget_ms:
            self.desk.wake(queue.budget_ends_ms(job, run, self.budget_ms, self.now_ms))
            return
        least_ms = max(self.config.rules.park_slack_ms, self.desk.left_ms(job, run) // 2)
        spare_ms = slack_ms(self.config, job, run, self.now_ms) - least_ms - unkept_ms(job, run, self.now_ms)
        if spare_ms < 0:
            if self._is_known(job, run):  # what is left shrinks as it runs, and with it what it has to have to spare
                self.desk.wake(self.now_ms - spare_ms * 4 // 3)
            return
        falls = 1 if self._is_known(job, run) else 4  # per millisecond, at most: what is left may grow as the job runs
        self.desk.wake(self.now_ms + spare_ms // falls + 1)
        used, budget = reasons.duration(used_ms), reasons.duration(self.budget_ms)
        why = f"has run on serverless for {used}, budget F is {budget}, and all nodes are taken: waits for one"
        self.desk.demote(run, job, [job], why)

    def _chase(self) -> None:
        """Rule 4, for the runs whose node costs more than the market by the asked share."""
        dearest = self.board.dearest_gpu_micros() * (1 - self.config.rules.chase_drop)
        if dearest <= 0:
            return
        there = least_by_type(chain(self.board.all_open(), self.board.all_coming()))
        by_type = [*there.items(), *self.outlook.serverful.least_by_type().items()]
        if not by_type:
            return
        kept = 1 - self.config.rules.chase_drop
        dearer = {
            run_id
            for group, run_ids in self.board.runs_by_speed.groups()
            if group.work_micros() * kept
            >= min(micros * time_permille(group.speeds, gpu_type) // SAME for gpu_type, micros in by_type)
            for run_id in run_ids
        }
        if dearest >= min(micros for _, micros in by_type):
            dearer |= {run.run_id for run in self.board.runs.values() if self._takes_one_type(run)}
        for run in map(self.board.runs.__getitem__, sorted(dearer)):
            if run.tier in SERVERFUL_TIERS and run.tier != Tier.OWN and len(run.job_ids) == 1:
                for job in self.movable(run):
                    self._chase_one(job, run)

    def _takes_one_type(self, run: RunView) -> bool:
        """Whether all GPUs that its job may have are as fast, as far as is known."""
        job = self.board.jobs.get(run.job_ids[0])
        return job is not None and job.speeds is None

    def _chase_one(self, job: JobView, run: RunView) -> None:
        if not self.rests(run):
            self._move_if_cheaper(job, run, self.config.rules.chase_drop)

    def rests(self, run: RunView) -> bool:
        """Whether a run on a rented node has moved there so lately that it stays for now; or does not train."""
        moves, since_ms = self.config.moves, run.running_since_ms
        if since_ms is None or run.tier == Tier.SERVERLESS:
            return since_ms is None
        rests_until_ms = since_ms + int((moves.save_ms + moves.load_ms) / self.config.rules.chase_pause_share)
        self.desk.wake(rests_until_ms)
        return self.now_ms < rests_until_ms


def share_micros(one: Offer | NodeView, job: JobView) -> int:
    """What an hour of the job's work costs there: of its share of the GPUs."""
    return job_micros(one, job) * job.resources.gpus_min // one.gpu_count
