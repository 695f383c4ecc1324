"""Drawn histories of guaranteed and spot jobs on nodes of their projects and on hosts of a pool, decided as they are
live: by the functions that the control loop calls, around a policy that knows nothing of evictions.

Watched at every step: no GPU is two runs'; only spot jobs leave, and what is borrowed, after their first minute, or for
one within a quota that has waited for as long; nobody leaves for a job that then does not begin, although it still
wants to and everybody has left; what is kept for a job is taken by no other; and a job of one GPU that its project is
sure of does not wait for ever where nothing is free for it: what is free a policy may keep for a larger job, and where
the project has its whole quota already, with a job too large to be within it, the order of its jobs is its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from app.core.board import Board
from app.core.borrowing import PoolQuotas, PoolUse
from app.core.evicting import EvictableRun, Eviction, evict
from app.core.eviction import DecayedCount, EvictionRule, GraceSaves, Saving
from app.core.host_ranking import HostRanker, HostUse, rank_hosts
from app.core.host_spaces import host_spaces
from app.core.model.job import PLACEABLE_JOB_STATES, JobState, PriorityClass, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.plan import ActionKind, Assign, Plan, Provision, Release
from app.core.model.pool import JOINED, HostGpu, OwnHost, Pool
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from app.core.pools import offers_of
from app.core.set_aside import HostNode, SetAside, keep, places_of

_STEP_MS, LEAST_RUN_MS, GRACE_MS, START_MS = 5_000, 60_000, 60_000, 60_000
_GIB = 2**30
_USES = frozenset({ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE})
_POLICIES = ("allpass", "fixed-threshold", "hpa", "cheapest-first")
_MOST_WAITS = 40  # decisions: others have their first minute, and each host has one eviction at a time
_MOST_LATE = 6  # decisions from when everybody has left to when the job has its run, a node cut for it included


@dataclass(frozen=True, slots=True)
class EvictionHistory:
    """What a history came to. `breaches` says what was not kept."""

    seed: int
    begun: int
    evicted: int
    served: int  # guaranteed jobs that began on what was freed
    breaches: list[str] = field(default_factory=list)


def play_eviction_history(
    seed: int,
    steps: int = 60,
    rule: EvictionRule = EvictionRule.LOST_WORK,
    ranker: HostRanker = HostRanker.FEWEST_LEFT,
) -> EvictionHistory:
    """The history of this seed, of so many decisions."""
    play = _Play(Random(seed), rule, ranker)  # noqa: S311 - a simulation
    for _ in range(steps):
        play.step()
    return EvictionHistory(seed, play.begun, play.evicted, play.served, play.breaches)


@dataclass(slots=True)
class _Promise:
    """GPUs that are kept for a job. `late`: decisions since everybody had left."""

    aside: SetAside
    runs: set[str]
    until_ms: int
    late: int = 0


class _Play:
    def __init__(self, chance: Random, rule: EvictionRule, ranker: HostRanker) -> None:
        self._rule, self._ranker = rule, ranker
        self.breaches: list[str] = []
        self.begun = self.evicted = self.served = 0
        self._chance, self._now_ms, self._count = chance, 1_000_000, 0
        self._policy = policy_named(chance.choice(_POLICIES))
        self._state = PolicyState()
        keeps_ms, limit = chance.choice([0, 20_000]), chance.choice([0, 9, 9])  # 0: hosts only for whom they are freed
        self._config = PolicyConfig(
            _USES, serverless_budget_ms=0, serverless_limit=0, serverful_limit=limit, idle_release_ms=keeps_ms
        )
        self._hosts = {f"host_{n}": chance.randint(1, 4) for n in range(chance.randint(0, 3))}
        self._pool = Pool("lab", projects=chance.choice([(), (), ("proj_a",)]), quotas=self._draw_quotas())
        self._machines: dict[str, tuple[str, tuple[int, ...]]] = {}  # of nodes on hosts: the host, and its GPUs
        self._for_job: dict[str, str] = {}
        self._jobs: dict[str, JobView] = {}
        self._runs: dict[str, tuple[RunView, tuple[int, ...]]] = {}
        self._left: dict[str, int] = {}  # how often each job was evicted
        self._promises: dict[str, _Promise] = {}
        self._evicted_for: dict[str, str] = {}  # by the node that was left, or is
        self._evictions: dict[str, DecayedCount] = {}  # by host
        self._waits: dict[str, int] = {}
        self._nodes: dict[str, NodeView] = {}
        self._rented: set[str] = set()
        for number in range(chance.randint(0, 3)):
            self._rented.add(f"node_r{number}")
            self._add_node(f"node_r{number}", chance.choice("ab"), chance.randint(1, 4), Tier.MARKETPLACE)

    def _draw_quotas(self) -> tuple[tuple[str, int], ...]:
        """None, or no more than there are."""
        total = sum(self._hosts.values())
        of_a = self._chance.randint(0, total)
        quotas = (("proj_a", of_a), ("proj_b", self._chance.randint(0, total - of_a)))
        return tuple(one for one in quotas if one[1]) if self._chance.random() < 0.5 else ()

    # What happens

    def step(self) -> None:
        self._now_ms += self._chance.choice([1, _STEP_MS, _STEP_MS, 40_000])
        for _ in range(self._chance.choice([0, 0, 1, 2])):
            self._submit()
        self._let_pass()
        self._decide()
        self._check()

    def _submit(self) -> None:
        self._count += 1
        kind = self._chance.choice(list(PriorityClass))
        gpus = self._chance.choice([1, 1, 2, 3])
        made = JobView(
            job_id=f"job_{self._count:03}",
            project_id=f"proj_{self._chance.choice('ab')}",
            state=JobState.QUEUED,
            row_version=1,
            submitted_ms=self._now_ms,
            deadline_ms=self._now_ms + self._chance.randint(1, 10**7),
            resources=Resources(gpus, gpus),
            priority_class=kind,
        )
        self._jobs[made.job_id] = made

    def _let_pass(self) -> None:
        """Nodes come, code begins, jobs end, those that were asked leave, owners lose patience."""
        for node_id, node in list(self._nodes.items()):
            if node.state is NodeState.BOOTING and self._chance.random() < 0.6:
                self._nodes[node_id] = replace(node, state=NodeState.READY)
        for run_id, (run, gpus) in list(self._runs.items()):
            chance = self._chance.random()
            if run.state is RunState.ASSIGNED and chance < 0.7:
                self._runs[run_id] = replace(run, state=RunState.RUNNING, running_since_ms=self._now_ms), gpus
                self._set(run.job_ids[0], JobState.RUNNING)
            elif run.state is RunState.STOPPING and chance < 0.6:
                self._end(run_id, JobState.WAITING if chance < 0.5 else JobState.SUCCEEDED)
            elif run.state is RunState.RUNNING and chance < 0.08:
                self._end(run_id, JobState.SUCCEEDED)
        for job in list(self._jobs.values()):
            if job.state in PLACEABLE_JOB_STATES and self._chance.random() < 0.01:
                self._set(job.job_id, self._chance.choice([JobState.CANCELLED, JobState.PAUSED]))

    # As the control loop does it

    def _decide(self) -> None:
        seen, promised = self._snapshot(), self._live_promises()
        on_hosts = [
            HostNode(node_id, f"{host}/A100", self._for_job.get(node_id), self._evicted_for.get(node_id))
            for node_id, (host, _) in self._machines.items()
        ]
        kept = keep(seen, [one.aside for one in promised], on_hosts)
        self._enact(Plan("claims", kept.claims))
        board = Board.of(kept.snapshot)
        plan, self._state = self._policy.decide(board, self._state, self._config)
        jobs = {job.job_id: job for job in kept.snapshot.jobs}
        hosts, now_ms = self._own_hosts(), self._now_ms
        plan = rank_hosts(plan, kept.snapshot.offers, jobs, hosts, self._ranker, self._host_use(), now_ms)
        self._enact(plan)
        waiting = {one.job_id for one in plan.waiting}
        places = {one.aside.place for one in promised}
        closed = places | places_of(plan) | {one.node_id for one in on_hosts if one.host in places}
        spot = self._evictable_runs()
        borrowed = self._quotas().borrowed
        may_leave = [run for run in spot if run.is_spot or run.run_id in borrowed]
        number = Counter(run.node_id for run in may_leave)
        idle = {node.node_id for node in board.idle_nodes()} - closed
        machines = {
            node_id: it
            for node_id, it in self._machines.items()
            if number[node_id] == len(self._on(node_id)) and (number[node_id] or node_id in idle)
        }
        spaces = host_spaces([self._pool], self._own_hosts(), machines, self._now_ms)
        quotas = self._quotas()
        self._note_waits(waiting, quotas)
        found = evict(
            board, spot, spaces, waiting, quotas=quotas, closed=closed, least_run_ms=LEAST_RUN_MS, rule=self._rule
        )
        for one in found.evictions:
            self._evict(one)

    def _enact(self, plan: Plan) -> None:
        """As far as rows have not moved on since the snapshot."""
        for action in plan.actions:
            match action:
                case Assign():
                    self._assign(action)
                case Provision():
                    self._provision(action)
                case Release():
                    if action.node_id in self._machines and not self._on(action.node_id):
                        del self._nodes[action.node_id], self._machines[action.node_id]
                case _:
                    pass

    def _assign(self, action: Assign) -> None:
        job, node = self._jobs[action.job_id], self._nodes.get(action.node_id)
        if (
            node is None
            or job.state not in PLACEABLE_JOB_STATES
            or not set(action.gpu_indices) <= set(self._free(node))
        ):
            return
        run_id = f"run_{len(self._runs):04}_{self._now_ms}_{action.job_id}"
        run = RunView(run_id, (job.job_id,), node.node_id, node.tier, RunState.ASSIGNED, 1, self._now_ms)
        self._runs[run_id] = run, tuple(action.gpu_indices)
        self._set(job.job_id, JobState.STARTING)
        self.begun += 1
        if self._promises.pop(job.job_id, None) is not None:
            self.served += 1

    def _provision(self, action: Provision) -> None:
        host = action.offer.host.partition("/")[0]
        free = self._host_free(host)
        if host in self._hosts and len(free) >= action.offer.gpu_count:
            node_id = f"node_h{self._count}_{self._now_ms}_{len(self._nodes)}"
            project = action.project_id.removeprefix("proj_")
            self._add_node(node_id, project, action.offer.gpu_count, Tier.OWN, NodeState.BOOTING)
            self._machines[node_id] = host, tuple(free[: action.offer.gpu_count])
            self._for_job[node_id] = action.for_job_id

    def _evict(self, eviction: Eviction) -> None:
        for one in eviction.runs:
            run, gpus = self._runs[one.run_id]
            job, ran_ms = self._jobs[one.job_id], self._now_ms - (run.running_since_ms or self._now_ms)
            may_leave = job.priority_class is PriorityClass.SPOT or one.run_id in self._quotas().borrowed
            is_spared = ran_ms < LEAST_RUN_MS and not self._has_waited(eviction)
            if not may_leave or run.state is not RunState.RUNNING or is_spared:
                why = f"{job.priority_class}, {run.state}, after {ran_ms} ms"
                self.breaches.append(f"{job.job_id} was evicted: {why}")
            self._runs[one.run_id] = replace(run, state=RunState.STOPPING), gpus
            self._set(one.job_id, JobState.CHECKPOINTING)
            self._evicted_for[one.node_id] = eviction.job_id
            host, _ = self._machines.get(one.node_id, ("", ()))
            self._evictions[host] = self._evictions.get(host, DecayedCount()).one_more(self._now_ms)
            self._left[one.job_id] = self._left.get(one.job_id, 0) + 1
            self.evicted += 1
        runs = {one.run_id for one in eviction.runs}
        self._promises[eviction.job_id] = _Promise(eviction.asides[0], runs, self._now_ms + GRACE_MS + START_MS)

    def _has_waited(self, eviction: Eviction) -> bool:
        """Whether a job as large as this one, which is within its project's quota of the pool, has waited that long."""
        job = self._jobs[eviction.job_id]
        alike = (
            one.submitted_ms
            for one in self._jobs.values()
            if (one.project_id, one.resources) == (job.project_id, job.resources)
            and one.state in PLACEABLE_JOB_STATES
            and one.priority_class is PriorityClass.GUARANTEED
        )
        gpus, is_on_host = job.resources.gpus_min, eviction.asides[0].place not in self._rented
        is_sure = bool(self._pool.quotas) and is_on_host and self._quotas().is_sure("lab", job.project_id, gpus)
        return is_sure and self._now_ms - min(alike) >= LEAST_RUN_MS

    # What there is

    def _snapshot(self) -> Snapshot:
        unfinished = [job for job in self._jobs.values() if job.state is not JobState.PAUSED]
        nodes = [replace(node, free_gpus=tuple(self._free(node))) for node in self._nodes.values()]
        return Snapshot(
            now_ms=self._now_ms,
            jobs=tuple(sorted(unfinished, key=lambda one: one.job_id)),
            runs=tuple(sorted((run for run, _ in self._runs.values()), key=lambda one: one.run_id)),
            nodes=tuple(sorted(nodes, key=lambda one: one.node_id)),
            offers=tuple(sorted(offers_of([self._pool], self._own_hosts(), self._now_ms), key=lambda one: one.key)),
        )

    def _host_use(self) -> HostUse:
        at = (self._machines.get(run.node_id) for run, _ in self._runs.values() if self._is_guaranteed(run))
        return HostUse(Counter(one[0] for one in at if one is not None), self._evictions)

    def _is_guaranteed(self, run: RunView) -> bool:
        return self._jobs[run.job_ids[0]].priority_class is PriorityClass.GUARANTEED

    def _own_hosts(self) -> list[OwnHost]:
        return [
            OwnHost(
                host,
                "lab",
                8 * count,
                64 * _GIB * count,
                tuple(HostGpu(index, "A100", 80 * _GIB) for index in range(count)),
                tuple(index for at, gpus in self._machines.values() if at == host for index in gpus),
            )
            for host, count in self._hosts.items()
        ]

    def _evictable_runs(self) -> list[EvictableRun]:
        found = []
        for run, gpus in self._runs.values():
            job = self._jobs[run.job_ids[0]]
            is_spot, pool = job.priority_class is PriorityClass.SPOT, self._pool_of(run.node_id)
            if run.state is RunState.RUNNING and (is_spot or (pool and self._pool.quotas)):
                left = self._left.get(job.job_id, 0)
                saving = Saving(run.running_since_ms or 0, grace=GraceSaves(left, left), suffered=left)
                found.append(
                    EvictableRun(run.run_id, job.job_id, run.node_id, len(gpus), saving, job.project_id, is_spot, pool)
                )
        return sorted(found, key=lambda one: one.run_id)

    def _quotas(self) -> PoolQuotas:
        uses = []
        for run, gpus in self._runs.values():
            job, pool = self._jobs[run.job_ids[0]], self._pool_of(run.node_id)
            if job.priority_class is PriorityClass.GUARANTEED and pool:
                uses.append(PoolUse(pool, job.project_id, len(gpus), run.run_id, run.created_ms))
        for job_id, one in self._promises.items():
            at = self._machines.get(one.aside.place)
            if at is not None or one.aside.place.partition("/")[0] in self._hosts:
                uses.append(PoolUse("lab", self._jobs[job_id].project_id, one.aside.gpus))
        return PoolQuotas.of([self._pool], uses)

    def _pool_of(self, node_id: str) -> str:
        return "lab" if node_id in self._machines else ""

    def _note_waits(self, waiting: set[str], quotas: PoolQuotas) -> None:
        """Of jobs of one GPU that their project is sure of, wherever that is on hosts: how long they have waited."""
        sure = {
            job_id
            for job_id in waiting
            if self._pool.quotas
            and self._config.serverful_limit
            and not any(len(self._on(node_id)) > 1 for node_id in self._machines)  # a machine cannot be split
            and (job := self._jobs[job_id]).priority_class is PriorityClass.GUARANTEED
            and job.resources.gpus_min == 1
            and (not self._pool.projects or job.project_id in self._pool.projects)
            and quotas.is_sure("lab", job.project_id, 1)
            and not self._has_borrowed(job.project_id, quotas)
            and not self._has_room(job.project_id)
        }
        self._waits = {job_id: self._waits.get(job_id, 0) + 1 for job_id in sure}
        for job_id, decisions in self._waits.items():
            if decisions == _MOST_WAITS:
                self.breaches.append(f"{job_id} is sure of a GPU and has none after {decisions} decisions")

    def _has_borrowed(self, project_id: str, quotas: PoolQuotas) -> bool:
        """Whether a job of the project is beyond its quota: with it, it has all that it is sure of."""
        return any(self._jobs[self._runs[one][0].job_ids[0]].project_id == project_id for one in quotas.borrowed)

    def _has_room(self, project_id: str) -> bool:
        """Whether a GPU is free for jobs of the project: of a host, or of a machine of its own there."""
        own = (self._nodes[node_id] for node_id in self._machines if self._nodes[node_id].project_id == project_id)
        return any(map(self._host_free, self._hosts)) or any(map(self._free, own))

    def _live_promises(self) -> list[_Promise]:
        """A job that is paused or over wants nothing; nor does one whose time has passed since all had left."""
        kept = {}
        for job_id, one in self._promises.items():
            leaving = any(run_id in self._runs for run_id in one.runs)
            if leaving:
                one.until_ms = max(one.until_ms, self._now_ms + START_MS)
            if self._jobs[job_id].state in PLACEABLE_JOB_STATES and (leaving or self._now_ms < one.until_ms):
                kept[job_id] = one
        self._promises = kept
        return list(kept.values())

    def _add_node(self, node_id: str, project: str, gpus: int, tier: Tier, state: NodeState = NodeState.READY) -> None:
        self._nodes[node_id] = NodeView(
            node_id=node_id, project_id=f"proj_{project}", provider=JOINED, tier=tier, state=state, row_version=1,
            gpu_type="A100", gpu_count=gpus, gpu_memory_bytes=80 * _GIB, cpus=8 * gpus, memory_bytes=64 * _GIB * gpus,
            free_gpus=(), price_per_hour=Money(0), requested_ms=self._now_ms, expected_ready_ms=self._now_ms,
            region="lab" if tier is Tier.OWN else "",
        )  # fmt: skip

    def _free(self, node: NodeView) -> list[int]:
        held = {index for _, gpus in self._on(node.node_id) for index in gpus}
        return [index for index in range(node.gpu_count) if index not in held]

    def _host_free(self, host: str) -> list[int]:
        taken = {index for at, gpus in self._machines.values() if at == host for index in gpus}
        return [index for index in range(self._hosts.get(host, 0)) if index not in taken]

    def _on(self, node_id: str) -> list[tuple[RunView, tuple[int, ...]]]:
        return [it for it in self._runs.values() if it[0].node_id == node_id]

    def _set(self, job_id: str, state: JobState) -> None:
        self._jobs[job_id] = replace(self._jobs[job_id], state=state)

    def _end(self, run_id: str, state: JobState) -> None:
        run, _ = self._runs.pop(run_id)
        self._set(run.job_ids[0], state)
        if state is not JobState.WAITING:
            del self._jobs[run.job_ids[0]]

    # What must hold

    def _check(self) -> None:
        for node_id in self._nodes:
            held = [index for _, gpus in self._on(node_id) for index in gpus]
            if len(held) != len(set(held)):
                self.breaches.append(f"a GPU of {node_id} is two runs' at {self._now_ms}")
        for job_id, one in self._promises.items():
            if any(run_id in self._runs for run_id in one.runs) or self._jobs[job_id].state not in PLACEABLE_JOB_STATES:
                continue
            cut = [node_id for node_id, it in self._for_job.items() if it == job_id and node_id in self._nodes]
            coming = any(self._nodes[node_id].state is NodeState.BOOTING for node_id in cut)
            one.late += not coming
            if one.late == _MOST_LATE:
                self.breaches.append(f"{one.runs} left for {job_id}, which does not begin at {one.aside.place}")
