"""The world, indexed for decisions and kept up to date by deltas: a decision costs what is open, not all that is.

A board holds the frozen views of a `Snapshot` and hands out, without a scan, the ones that a decision looks at: jobs
without a place in deadline order, live serverless runs, rented nodes with a free GPU, nodes that are coming. The live
loop's board follows its snapshots (`app.core.following`); the simulator replaces a view when it changes. Both give the
same plans: a board that was kept equals the one that is built from its own snapshot.

Policies read a board and never write to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from app.core.columns import JobColumns
from app.core.machine_lives import weighed_micros
from app.core.market import Market
from app.core.merging.transfer import IN_TURN, TOGETHER, GainLine
from app.core.model.image import ImageView
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode, MergeView
from app.core.model.node import GONE_NODE_STATES, SERVERFUL_TIERS, NodeState, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.run import PREPARED_RUN_STATES, RunState
from app.core.model.snapshot import ClosedProvider, JobView, NodeView, QueueMeans, RunView, Snapshot
from app.core.queue import edf_key, in_turn
from app.core.runs_by_speed import RunsBySpeed, SpeedGroup
from app.core.spot_places import NUMBER_OF_LEVELS, level_of_place
from app.core.waiting_line import WaitingLine

# A create call whose outcome is unknown may well have made the machine: it is looked up before anything is retried.
COMING_NODE_STATES = frozenset({NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN})
# A silent node may come back, but nothing new is placed there and nobody counts on it.
LASTING_NODE_STATES = COMING_NODE_STATES | {NodeState.READY, NodeState.UNREACHABLE}

Nodes = dict[str, NodeView]
Shape = tuple[str, int, int, int, int, str]  # GPU type, bytes per GPU, GPUs, CPUs, bytes of memory, image
_NOTHING: Nodes = {}
_LAST = chr(0x10FFFF)  # after every id


class Board:
    """`now_ms` is the moment of the decision. `put_*` adds or replaces a view, `drop_*` takes one away."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.jobs: dict[str, JobView] = {}
        self.runs: dict[str, RunView] = {}
        self.nodes: Nodes = {}
        self.offers: tuple[Offer, ...] = ()
        self.traits: tuple[ProviderTraits, ...] = ()
        self.closed: tuple[ClosedProvider, ...] = ()
        self.images: tuple[ImageView, ...] = ()
        self.serverless = Market((), (Tier.SERVERLESS,))
        self.own = Market((), (Tier.OWN,))
        self.serverful = Market((), SERVERFUL_TIERS)
        self.saving: dict[str, JobView] = {}  # jobs that save a checkpoint to leave their place
        self.serverless_runs: dict[str, RunView] = {}
        self.serverless_nodes = 0
        self.serverful_nodes = 0  # those that are rented
        # GPUs of nodes that are there, or coming, or may come back, by who may have them (`app.core.spot_places`)
        self.rented_of_level = [0] * NUMBER_OF_LEVELS
        self.columns = JobColumns()
        self.gains: GainLine = IN_TURN
        self.gains_together: GainLine = TOGETHER
        self.no_ahead: frozenset[str] = frozenset()  # projects for whose jobs to come nothing is rented or kept
        self.queue_means: tuple[QueueMeans, ...] = ()  # by project
        self.merges: dict[str, MergeView] = {}  # by the lead's id
        self.companions: dict[str, MergeView] = {}  # by the companion's
        self._line = WaitingLine()
        self.runs_by_speed = RunsBySpeed()
        self._with_speeds = 0
        self._queued: list[tuple[int, str]] = []
        self._runs_of_job: dict[str, set[str]] = {}
        self._runs_on: dict[str, set[str]] = {}
        self._open: dict[str, Nodes] = {}
        self._coming: dict[str, Nodes] = {}
        self._ready: dict[str, Nodes] = {}
        self._idle: Nodes = {}
        self._gpu_prices: Counter[int] = Counter()  # micro-dollars per GPU and hour of rented nodes
        self._shapes: dict[str, Counter[Shape]] = {}
        self._spot_only: dict[str, Nodes] = {}
        self._machines: Counter[str] = Counter()  # of each project, of any tier

    @classmethod
    def of(cls, snapshot: Snapshot) -> Board:
        """The board of that moment."""
        board = cls(snapshot.now_ms)
        board.set_offers(snapshot.offers, snapshot.traits, snapshot.closed, snapshot.images)
        board.gains, board.gains_together = snapshot.gains, snapshot.gains_together
        board.no_ahead, board.queue_means = frozenset(snapshot.no_ahead), snapshot.queue_means
        for merge in snapshot.merges:
            board.put_merge(merge)
        for node in snapshot.nodes:
            board.put_node(node)
        for job in snapshot.jobs:
            board.put_job(job)
        for run in snapshot.runs:
            board.put_run(run)
        return board

    def snapshot(self) -> Snapshot:
        """All of it, frozen, in the stable order."""
        return Snapshot(
            now_ms=self.now_ms,
            jobs=tuple(self.jobs[key] for key in sorted(self.jobs)),
            runs=tuple(self.runs[key] for key in sorted(self.runs)),
            nodes=tuple(self.nodes[key] for key in sorted(self.nodes)),
            offers=self.offers,
            traits=self.traits,
            closed=self.closed,
            merges=tuple(sorted(self.merges.values(), key=lambda merge: merge.merge_id)),
            gains=self.gains,
            gains_together=self.gains_together,
            no_ahead=tuple(sorted(self.no_ahead)),
            images=self.images,
            queue_means=self.queue_means,
        )

    def set_offers(
        self,
        offers: Iterable[Offer],
        traits: Iterable[ProviderTraits],
        closed: Iterable[ClosedProvider] = (),
        images: Iterable[ImageView] = (),
    ) -> None:
        """What could be rented now; `closed` providers have no offers here, for a reason that jobs are told. `images`:
        those that are built, or are being built, where that has to come first."""
        self.offers, self.traits, self.closed = tuple(offers), tuple(traits), tuple(closed)
        self.images = tuple(images)
        self.serverless = Market(self.offers, (Tier.SERVERLESS,), self.traits, self.images)
        self.own = Market(self.offers, (Tier.OWN,), self.traits, self.images)
        self.serverful = Market(self.offers, SERVERFUL_TIERS, self.traits, self.images)

    # Jobs

    def put_job(self, job: JobView) -> None:
        before = self.jobs.get(job.job_id)
        self.jobs[job.job_id] = job
        had = before is not None and before.speeds is not None
        self._with_speeds += (job.speeds is not None) - had
        if job.speeds is not None or had:
            self._group_runs_of(job.job_id)
        self.columns.put_job(job, counts=not self._is_in_lead(job.job_id))
        if before is None:
            self.columns.put_run(job.job_id, self.run_of(job.job_id))
        was = before is not None and self._is_placeable(before)
        now = self._is_placeable(job)
        if was and before is not None and (not now or _in_line(before) != _in_line(job)):
            self._line.remove(before)
            was = False
        if now and not was:
            self._line.add(job)
        self._index_queued(before, job)
        if job.state == JobState.CHECKPOINTING and job.job_id not in self.companions:
            self.saving[job.job_id] = job
        else:
            self.saving.pop(job.job_id, None)

    def drop_job(self, job_id: str) -> None:
        job = self.jobs.pop(job_id)
        self._group_runs_of(job_id)
        self._with_speeds -= job.speeds is not None
        self.columns.drop_job(job_id)
        self.saving.pop(job_id, None)
        self._index_queued(job, None)
        if self._is_placeable(job):
            self._line.remove(job)

    def placeable(self) -> list[JobView]:
        """Jobs that have no place and want one: projects in turn, of each the earliest deadline first."""
        return list(self.each_placeable())

    def each_placeable(self) -> Iterator[JobView]:
        """The same, for those who may not want all of them."""
        return (self.jobs[job_id] for job_id in self._line.in_turn(self._machines))

    def placeable_within(self, ranges: Iterable[tuple[str, str]]) -> list[JobView]:
        """Of these, the jobs whose ids lie within one of the ranges, the earliest deadline first."""
        return sorted((self.jobs[job_id] for job_id in self._line.within(ranges)), key=edf_key)

    def in_turn(self, jobs: Sequence[JobView]) -> list[JobView]:
        """Jobs in the order in which one project would serve them, with the turns of all projects among them."""
        return in_turn(jobs, self._machines)

    def queued_after(self, submitted_ms: int) -> list[JobView]:
        """Jobs that never started and were submitted after that moment, in that order."""
        first = bisect_right(self._queued, (submitted_ms, _LAST))
        return [self.jobs[key[1]] for key in self._queued[first:]]

    @property
    def has_speeds(self) -> bool:
        """Whether there is a job that may have GPUs of several speeds."""
        return self._with_speeds > 0

    @property
    def placeable_count(self) -> int:
        return len(self._line)

    def _index_queued(self, before: JobView | None, job: JobView | None) -> None:
        was = None if before is None or before.state != JobState.QUEUED else (before.submitted_ms, before.job_id)
        now = None if job is None or job.state != JobState.QUEUED else (job.submitted_ms, job.job_id)
        if was == now:
            return
        if was is not None:
            del self._queued[bisect_left(self._queued, was)]
        if now is not None:
            insort(self._queued, now)

    # Merges

    def put_merge(self, merge: MergeView) -> None:
        """Two jobs are one from here on: the companion is neither placed by itself nor, together, counted twice."""
        companion = self._taken_out(merge.companion_id)
        self.merges[merge.lead_id] = self.companions[merge.companion_id] = merge
        if companion is not None:
            self.put_job(companion)

    def gain_line(self, mode: MergeMode) -> GainLine:
        """What merges of this mode have been worth so far."""
        return self.gains_together if mode == MergeMode.TOGETHER else self.gains

    def learn(self, mode: MergeMode, score: float, gain: float) -> None:
        """Of a merge that has ended."""
        if mode == MergeMode.TOGETHER:
            self.gains_together = self.gains_together.learned(score, gain)
        else:
            self.gains = self.gains.learned(score, gain)

    def drop_merge(self, lead_id: str) -> None:
        """Both are on their own again."""
        companion_id = self.merges[lead_id].companion_id
        companion = self._taken_out(companion_id)
        del self.companions[companion_id], self.merges[lead_id]
        if companion is not None:
            self.put_job(companion)

    def _taken_out(self, job_id: str) -> JobView | None:
        job = self.jobs.get(job_id)
        if job is not None:
            self.drop_job(job_id)
        return job

    def _is_in_lead(self, job_id: str) -> bool:
        """Whether the view of the job that leads it stands for it too."""
        merge = self.companions.get(job_id)
        return merge is not None and merge.mode == MergeMode.TOGETHER

    def _is_placeable(self, job: JobView) -> bool:
        return job.state in PLACEABLE_JOB_STATES and job.job_id not in self.companions

    # Runs

    def put_run(self, run: RunView) -> None:
        if run.run_id in self.runs:
            self.drop_run(run.run_id)
        self.runs[run.run_id] = run
        for job_id in run.job_ids:
            self._runs_of_job.setdefault(job_id, set()).add(run.run_id)
            self.columns.put_run(job_id, self.run_of(job_id))
        self._runs_on.setdefault(run.node_id, set()).add(run.run_id)
        self._group(run)
        if run.tier == Tier.SERVERLESS:
            self.serverless_runs[run.run_id] = run

    def drop_run(self, run_id: str) -> None:
        run = self.runs.pop(run_id)
        self.serverless_runs.pop(run_id, None)
        for job_id in run.job_ids:
            _discard(self._runs_of_job, job_id, run_id)
            self.columns.put_run(job_id, self.run_of(job_id))
        _discard(self._runs_on, run.node_id, run_id)
        self.runs_by_speed.put(run_id, None)

    def _group_runs_of(self, job_id: str) -> None:
        for run_id in self._runs_of_job.get(job_id, ()):
            self._group(self.runs[run_id])

    def _group(self, run: RunView) -> None:
        """Of runs that could move from one rented node to another."""
        job, node = self.jobs.get(run.job_ids[0]), self.nodes.get(run.node_id)
        is_rented = node is not None and node.tier in SERVERFUL_TIERS and node.tier != Tier.OWN
        group = None
        if job is not None and node is not None and job.speeds is not None and is_rented and len(run.job_ids) == 1:
            group = SpeedGroup(job.speeds, node.gpu_type, _gpu_micros(node))
        self.runs_by_speed.put(run.run_id, group)

    def run_of(self, job_id: str) -> RunView | None:
        """The live run that holds the job: of a move, its source until code of the target runs."""
        run_ids = self._runs_of_job.get(job_id)
        if run_ids is None:
            return None
        if len(run_ids) == 1:
            return self.runs[next(iter(run_ids))]
        runs = [self.runs[run_id] for run_id in run_ids]
        return min(runs, key=lambda run: (run.state in PREPARED_RUN_STATES, run.state == RunState.STOPPING, run.run_id))

    def is_moving(self, job_id: str) -> bool:
        """Whether a run lives beside the one that holds the job: its next one, or its last one on the way out."""
        return len(self._runs_of_job.get(job_id, ())) > 1

    def runs_on(self, node_id: str) -> list[RunView]:
        """Live runs on the node, by id."""
        return [self.runs[run_id] for run_id in sorted(self._runs_on.get(node_id, ()))]

    def is_occupied(self, node_id: str) -> bool:
        """Whether a live run is on the node."""
        return node_id in self._runs_on

    # Nodes

    def put_node(self, node: NodeView) -> None:
        if node.node_id in self.nodes:
            self.drop_node(node.node_id)
        if node.state in GONE_NODE_STATES:
            return
        self.nodes[node.node_id] = node
        for run_id in self._runs_on.get(node.node_id, ()):
            self._group(self.runs[run_id])
        self._machines[node.project_id] += 1
        if node.tier not in SERVERFUL_TIERS:
            self.serverless_nodes += 1
            return
        self.serverful_nodes += node.tier != Tier.OWN
        self._gpu_prices[_gpu_micros(node)] += 1
        for index in self._indexes_of(node):
            index.setdefault(node.project_id, {})[node.node_id] = node
        if node.state == NodeState.READY and len(node.free_gpus) == node.gpu_count:
            self._idle[node.node_id] = node
        if node.state in LASTING_NODE_STATES:
            self.rented_of_level[level_of_place(node)] += node.gpu_count
            if node.spot_only:
                self._spot_only.setdefault(node.project_id, {})[node.node_id] = node
            else:
                self._shapes.setdefault(node.project_id, Counter())[shape_of(node)] += 1

    def drop_node(self, node_id: str) -> None:
        node = self.nodes.pop(node_id)
        for run_id in self._runs_on.get(node_id, ()):
            self.runs_by_speed.put(run_id, None)
        self._machines[node.project_id] -= 1
        if node.tier not in SERVERFUL_TIERS:
            self.serverless_nodes -= 1
            return
        self.serverful_nodes -= node.tier != Tier.OWN
        self._gpu_prices[_gpu_micros(node)] -= 1
        if not self._gpu_prices[_gpu_micros(node)]:
            del self._gpu_prices[_gpu_micros(node)]
        for index in self._indexes_of(node):
            del index[node.project_id][node_id]
        self._idle.pop(node_id, None)
        if node.state in LASTING_NODE_STATES:
            self.rented_of_level[level_of_place(node)] -= node.gpu_count
            if node.spot_only:
                del self._spot_only[node.project_id][node_id]
                return
            shapes = self._shapes[node.project_id]
            shapes[shape_of(node)] -= 1
            if not shapes[shape_of(node)]:
                del shapes[shape_of(node)]

    def open_nodes(self, project_id: str) -> Nodes:
        """Rented nodes of the project that are ready and have a free GPU."""
        return self._open.get(project_id, _NOTHING)

    def ready_nodes(self, project_id: str) -> Nodes:
        """Rented nodes of the project that are ready."""
        return self._ready.get(project_id, _NOTHING)

    def coming_nodes(self, project_id: str) -> Nodes:
        """Rented nodes of the project that are not there yet."""
        return self._coming.get(project_id, _NOTHING)

    def lasting_nodes(self, project_id: str) -> list[NodeView]:
        """Rented nodes of the project that are there, or come, or may come back."""
        lasting = LASTING_NODE_STATES
        rented = (node for node in self.nodes.values() if node.tier in SERVERFUL_TIERS)
        return [node for node in rented if node.project_id == project_id and node.state in lasting]

    def nodes_of(self, project_id: str) -> int:
        """How many rented nodes of the project are ready or come."""
        return len(self.ready_nodes(project_id)) + len(self.coming_nodes(project_id))

    def projects_with_nodes(self) -> set[str]:
        """Those that have rented nodes, ready or coming."""
        return {project_id for index in (self._ready, self._coming) for project_id, nodes in index.items() if nodes}

    def all_open(self) -> Iterator[NodeView]:
        """Rented nodes of any project that are ready and have a free GPU."""
        return (node for nodes in self._open.values() for node in nodes.values())

    def idle_nodes(self) -> list[NodeView]:
        """Rented nodes of any project that are ready and hold nothing."""
        return [node for node in self._idle.values() if node.node_id not in self._runs_on]

    def all_coming(self) -> list[NodeView]:
        """Rented nodes of any project that are not there yet."""
        return [node for nodes in self._coming.values() for node in nodes.values()]

    def dearest_gpu_micros(self) -> int:
        """What a GPU of the dearest rented node costs per hour, in micro-dollars; 0 without nodes."""
        return max(self._gpu_prices, default=0)

    def shapes(self, project_id: str) -> Iterable[Shape]:
        """What kinds of rented nodes the project has, or will have again; of those that are for jobs of any class."""
        return self._shapes.get(project_id, ())

    def spot_only_nodes(self, project_id: str) -> Iterable[NodeView]:
        """The other ones."""
        return self._spot_only.get(project_id, _NOTHING).values()

    def _indexes_of(self, node: NodeView) -> Iterable[dict[str, Nodes]]:
        if node.state in COMING_NODE_STATES:
            yield self._coming
        elif node.state == NodeState.READY:
            yield self._ready
            if node.free_gpus:
                yield self._open


def _discard(index: dict[str, set[str]], key: str, run_id: str) -> None:
    index[key].discard(run_id)
    if not index[key]:
        del index[key]


def _in_line(job: JobView) -> tuple[object, ...]:
    return job.project_id, *edf_key(job)


def _gpu_micros(node: NodeView) -> int:
    return weighed_micros(node) // node.gpu_count


def shape_of(node: NodeView) -> Shape:
    return node.gpu_type, node.gpu_memory_bytes, node.gpu_count, node.cpus, node.memory_bytes, node.image
