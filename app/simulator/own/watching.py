"""What must hold of a simulation with machines of one's own, whatever happens to them: watched at every decision.

The watcher keeps its own books. Of hosts it knows what their history says, of nodes what boards and the fleet show, of
jobs how far each had trained when it was last seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app.core.board import Board
from app.core.invariants import plan_breaches, snapshot_breaches
from app.core.market import is_for, offer_fits
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.plan import Assign, Demote, Migrate, Plan, Preempt, Provision
from app.core.model.pool import JOINED, Pool
from app.core.model.run import RunPurpose, RunState
from app.core.model.snapshot import JobView, RunView
from app.core.policies import policy_named
from app.core.policy import PolicyState
from app.core.pools import ends_ms, is_open
from app.simulator.engine import Stuck
from app.simulator.outcomes import JobOutcome, SimulationResult
from app.simulator.own.fleet import OwnFleet
from app.simulator.own.histories import PoolHistory
from app.simulator.own.machines import OwnMachines
from app.simulator.own.playing import LEAVING, LOST_AFTER_MS, WithPools, simulation_of

_MOST_TOLD = 20
_NEVER_MS = 10**15
_MOST_IN_VAIN = 200  # decisions within a second, none of which did anything


@dataclass(slots=True)
class WatchedHistory:
    """What came of a history. `breaches`: the first ones, each with its second; `used`: own GPU-milliseconds that were
    billed; `left_by_plan`: runs that moved off nodes that ended."""

    seed: int
    policy: str
    breaches: list[str] = field(default_factory=list)
    jobs: int = 0
    lost: int = 0
    faults: int = 0
    moves: int = 0
    own_gpu_ms: int = 0
    rented_gpu_ms: int = 0
    left_by_plan: int = 0


def watch_history(history: PoolHistory, policy: str = "allpass") -> WatchedHistory:
    """Plays it to its end, and says what did not hold."""
    found = WatchedHistory(history.seed, policy, jobs=len(history.scenario.tasks))
    watcher = _Watcher(history, found)
    simulation = simulation_of(history.scenario, merging=False)(
        history.scenario, policy_named(policy), history.config, watcher
    )
    assert isinstance(simulation, WithPools)
    watcher.fleet = simulation.fleet
    try:
        result = simulation.run()
    except Stuck as stuck:
        found.breaches.append(str(stuck))
        found.lost = len(history.scenario.tasks) - len(watcher.gone)
        return found
    watcher.end(result)
    return found


@dataclass(slots=True)
class _Training:
    """A job's: how far of its work its last run came, and how long all of them ran, what was done twice counted twice.
    Of the one that runs: where, since when, and from where on."""

    reached_ms: int = 0
    trained_ms: int = 0
    place: tuple[str, int] | None = None
    from_ms: int = 0


class _Watcher:
    def __init__(self, history: PoolHistory, found: WatchedHistory) -> None:
        self._history, self._found = history, found
        self.fleet = OwnFleet(history.scenario.own or OwnMachines((), (), ()))  # until that is known which is played
        self._tasks = {task.job_id: task for task in history.scenario.tasks}
        self._fates = {host_id: _fate(history, host_id) for host_id in self.fleet.hosts}
        self._placed: dict[str, tuple[str, int]] = {}  # host and since when, by node
        self._training = {task.job_id: _Training() for task in history.scenario.tasks}
        self._vain = (0, 0)
        self.gone: set[str] = set()

    def __call__(self, board: Board, plan: Plan, _state: PolicyState) -> None:
        snapshot = board.snapshot()
        told = [
            *snapshot_breaches(snapshot),
            *self._of_plan(board, plan),
            *self._of_hosts(board),
            *self._of_jobs(board),
        ]
        if plan.policy == LEAVING:
            self._found.left_by_plan += len(plan.actions)
        else:
            told += self._of_time(board, plan)
        self._tell(board.now_ms, told)
        for action in plan.actions:  # nobody may be asked again before what they begin is over
            if isinstance(action, Demote | Migrate | Preempt):
                self._stopped(action.job_id, board.now_ms)
            elif isinstance(action, Assign) and not board.jobs[action.job_id].done_ms:
                self._begins(action.job_id, (action.node_id, board.now_ms), 0)

    def end(self, result: SimulationResult) -> None:
        """Every job has ended, with all of its work done once, but what was lost."""
        found, end_ms = self._found, max(one.finished_ms for one in result.outcomes)
        for outcome in result.outcomes:
            self._tell(end_ms, [*self._of_end(outcome)])
        found.lost = len(self._tasks) - sum(bool(one.finished_ms) for one in result.outcomes)
        found.faults = sum(one.faults for one in result.outcomes)
        found.moves = sum(one.moves for one in result.outcomes)
        found.own_gpu_ms = result.billed_gpu_ms.get(JOINED, 0)
        found.rented_gpu_ms = sum(result.billed_gpu_ms.values()) - found.own_gpu_ms

    def _of_end(self, outcome: JobOutcome) -> Iterator[str]:
        training, job_id = self._training[outcome.job_id], outcome.job_id
        if training.place is not None:
            self._stopped(job_id, outcome.finished_ms)
        if training.reached_ms != outcome.work_ms:
            yield f"{job_id} has ended after {training.reached_ms} of {outcome.work_ms} ms of its work"
        if training.trained_ms != outcome.work_ms + outcome.lost_ms:
            was_lost = f"{outcome.lost_ms} ms that were lost"
            yield f"{job_id} trained {training.trained_ms} ms for {outcome.work_ms} ms of work and {was_lost}"

    def _tell(self, now_ms: int, told: list[str]) -> None:
        room = _MOST_TOLD - len(self._found.breaches)
        self._found.breaches += [f"at {now_ms / 1000:.3f} s: {one}" for one in told[:room]]

    # Plans

    def _of_plan(self, board: Board, plan: Plan) -> Iterator[str]:
        told = plan_breaches(board.snapshot(), plan, self._history.config)
        yield from (one for one in told if plan.policy != LEAVING or not one.endswith("is told nothing"))
        yield from self._of_rents(board, plan)

    def _of_rents(self, board: Board, plan: Plan) -> Iterator[str]:
        """Nothing is rented while a GPU of one's own that the job may have is free, once the plan has had its own."""
        if self._found.policy != "allpass":
            return
        taken: Counter[str] = Counter()
        rents = []
        for action in plan.actions:
            offer: Offer | None = getattr(action, "offer", None)
            if offer is None:
                continue
            if offer.tier == Tier.OWN:
                taken[offer.host] += offer.gpu_count
                yield from self._of_own(board, offer)
            else:
                rents.append((action, offer))
        for action, offer in rents:
            job = board.jobs[action.for_job_id if isinstance(action, Provision) else action.job_id]  # type: ignore[union-attr]
            free = [one for one in board.offers if _is_free_for(job, one, taken)]
            if free:
                yield f"{job.job_id} is given {action.kind} of {offer.key}, and {free[0].key} is free"

    def _of_own(self, board: Board, offer: Offer) -> Iterator[str]:
        if not is_open(self.fleet.pools[offer.region].pool, board.now_ms):
            yield f"{offer.key} is taken, and {offer.region} is closed"

    def _of_time(self, board: Board, plan: Plan) -> Iterator[str]:
        if plan.wake_at_ms is not None and plan.wake_at_ms <= board.now_ms:
            yield f"it is to be decided again at {plan.wake_at_ms}, which is over"
        since_ms, many = self._vain
        is_vain = not plan.actions and board.now_ms - since_ms <= 1_000
        self._vain = (since_ms, many + 1) if is_vain else (board.now_ms, 0)
        if many == _MOST_IN_VAIN:
            yield f"{many} decisions within a second did nothing"

    # Hosts

    def _of_hosts(self, board: Board) -> Iterator[str]:
        given: dict[str, list[int]] = {}
        for node_id, placed in self.fleet.placed.items():
            given.setdefault(placed.host_id, []).extend(placed.gpus)
            self._placed.setdefault(node_id, (placed.host_id, board.now_ms))
            node = board.nodes.get(node_id)
            if node is not None and len(placed.gpus) != node.gpu_count:
                yield f"{node_id} has {len(placed.gpus)} GPUs of {placed.host_id} and says {node.gpu_count}"
            if not self._may_be_there(placed.host_id, board.now_ms):
                yield f"{node_id} is on {placed.host_id}, which has left"
            if placed.until_ms is not None and placed.until_ms < board.now_ms:
                yield f"{node_id} is there after its walltime"
            end_ms = ends_ms(self._pool_of(placed.host_id), board.now_ms)
            if end_ms is not None and end_ms < board.now_ms:
                yield f"{node_id} is there after the hours of its pool"
            yield from self._of_tenants(board, node_id, placed.host_id)
        for host_id, gpus in given.items():
            there = {gpu.index for gpu in self.fleet.hosts[host_id].gpus}
            if len(set(gpus)) < len(gpus) or not set(gpus) <= there:
                yield f"GPUs {sorted(gpus)} of {host_id} are given out, of {len(there)}"
        yield from self._of_limits(given)
        own = {node_id for node_id, node in board.nodes.items() if node.tier == Tier.OWN}
        if own != set(self.fleet.placed):
            yield f"{sorted(own ^ set(self.fleet.placed))} are own nodes on the board or on a host alone"

    def _of_limits(self, given: Mapping[str, list[int]]) -> Iterator[str]:
        used: Counter[str] = Counter()
        for host_id, gpus in given.items():
            used[self.fleet.hosts[host_id].pool] += len(gpus)
        for name, many in used.items():
            most = self.fleet.pools[name].pool.most_gpus
            if most is not None and many > most:
                yield f"{many} GPUs of {name} are given out, {most} may be"

    def _of_tenants(self, board: Board, node_id: str, host_id: str) -> Iterator[str]:
        allowed = self._pool_of(host_id).projects
        for run in board.runs_on(node_id):
            for job_id in run.job_ids:
                project = self._tasks[job_id].project
                if allowed and project not in allowed:
                    yield f"{job_id} of {project} runs on {host_id}, which is for {', '.join(allowed)}"

    def _pool_of(self, host_id: str) -> Pool:
        return self.fleet.pools[self.fleet.hosts[host_id].pool].pool

    def _may_be_there(self, host_id: str, now_ms: int) -> bool:
        return any(begin <= now_ms <= end for begin, end in self._fates[host_id].presence)

    # Jobs

    def _of_jobs(self, board: Board) -> Iterator[str]:
        """Each trains in one place at a time, and from no further on than it had come."""
        runs: dict[str, RunView] = {}
        for run in board.runs.values():
            if run.state == RunState.RUNNING and run.purpose == RunPurpose.TRAIN:
                for job_id in run.job_ids:
                    if job_id in runs:
                        yield f"{job_id} trains in two places"
                    runs[job_id] = run
        for job_id, training in self._training.items():
            held = runs.get(job_id)
            place = None if held is None else (held.node_id, held.running_since_ms or 0)
            if training.place is not None and place != training.place:
                self._stopped(job_id, board.now_ms)
            if place is not None and training.place is None:
                self._begins(job_id, place, board.jobs[job_id].done_ms)
                if training.from_ms > training.reached_ms:
                    yield f"{job_id} goes on at {training.from_ms} ms of its work and had come to {training.reached_ms}"
            if job_id not in board.jobs and training.trained_ms:
                self.gone.add(job_id)

    def _begins(self, job_id: str, place: tuple[str, int], from_ms: int) -> None:
        training = self._training[job_id]
        training.place, training.from_ms = place, from_ms

    def _stopped(self, job_id: str, now_ms: int) -> None:
        training = self._training[job_id]
        if training.place is None:
            return
        node_id, since_ms = training.place
        ran_ms = max(0, min(now_ms, self._died_ms(node_id, now_ms)) - since_ms)
        training.reached_ms = training.from_ms + ran_ms
        training.trained_ms += ran_ms
        training.place = None

    def _died_ms(self, node_id: str, now_ms: int) -> int:
        """When the node's host was unplugged, by its history; now where it was not."""
        if node_id not in self._placed:
            return now_ms
        host_id, since_ms = self._placed[node_id]
        return min((at_ms for at_ms in self._fates[host_id].unplugged if since_ms <= at_ms <= now_ms), default=now_ms)


def _is_free_for(job: JobView, offer: Offer, taken: Mapping[str, int]) -> bool:
    return (
        offer.tier == Tier.OWN
        and offer.gpu_count + taken[offer.host] <= offer.shared_gpus
        and offer_fits(job.resources, offer)
        and is_for(job, offer)
        and offer.key not in job.avoided_offers
    )


@dataclass(frozen=True, slots=True)
class _Fate:
    """Of a host, by its history: between which times nodes may be on it, and when it was unplugged."""

    presence: tuple[tuple[int, int], ...]
    unplugged: tuple[int, ...]


def _fate(history: PoolHistory, host_id: str) -> _Fate:
    own = history.scenario.own
    presence: list[tuple[int, int]] = []
    unplugged: list[int] = []
    begin: int | None = None
    end, dark = _NEVER_MS, False
    for event in () if own is None else own.events:
        if event.host_id != host_id:
            continue
        if begin is not None and event.at_ms >= end:
            presence.append((begin, end))
            begin, end, dark = None, _NEVER_MS, False
        if event.what == "join" and (begin is None or dark):
            if begin is not None:
                presence.append((begin, event.at_ms))
            begin, end, dark = event.at_ms, _NEVER_MS, False
        elif event.what == "drain" and begin is not None and not dark:
            end = event.at_ms + event.within_ms
        elif event.what == "unplug" and begin is not None and not dark:
            unplugged.append(event.at_ms)
            end, dark = min(end, event.at_ms + LOST_AFTER_MS), True
    if begin is not None:
        presence.append((begin, end))
    return _Fate(tuple(presence), tuple(unplugged))
