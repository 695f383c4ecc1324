"""All that a decision may look at, frozen at one moment. Times are milliseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.core.gpu_speeds import GpuSpeeds
from app.core.merging.transfer import IN_TURN, TOGETHER, GainLine
from app.core.model.budget import Allowance
from app.core.model.image import ImageView
from app.core.model.job import (
    ANY_NUMBER,
    NO_AFFINITY,
    NO_CAPS,
    Affinity,
    Caps,
    JobKind,
    JobState,
    MostUnderOne,
    PriorityClass,
    Resources,
    StartRule,
)
from app.core.model.merge import MergeView, Recipe
from app.core.model.money import ZERO, Money
from app.core.model.node import NodeState, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.run import RunPurpose, RunState
from app.core.model.times import LONGEST_MS, believable_ms


@dataclass(frozen=True, slots=True)
class JobView:
    """An unfinished job. `serverless_used_ms` counts user code on serverless nodes in ended runs only.

    What is predicted of it (`total_run_ms`, `done_ms`) is believable in every view, wherever the numbers came from:
    all that decides counts with these two.
    """

    job_id: str
    project_id: str
    state: JobState
    row_version: int
    submitted_ms: int
    deadline_ms: int
    resources: Resources
    kind: JobKind = JobKind.BATCH
    priority_class: PriorityClass = PriorityClass.GUARANTEED
    start: StartRule = StartRule.NOW
    caps: Caps = NO_CAPS
    spent: Money = ZERO
    serverless_used_ms: int = 0
    step: int = 0
    total_steps: int | None = None
    checkpoint_step: int | None = None  # of the newest committed checkpoint
    not_before_ms: int = 0  # back-off after a failed start
    avoided_offers: frozenset[str] = frozenset()  # offer keys that failed this job recently
    unreached_offers: frozenset[str] = frozenset()  # whose provider failed in passing when it was asked for them
    not_moved_before_ms: int = 0  # back-off after a move whose target failed
    affinity: Affinity = NO_AFFINITY
    most_under_one: MostUnderOne = ANY_NUMBER  # of its machines, where it has several
    locked: bool = False  # stays where it is, as long as its machine does
    saves: bool = True  # when it is asked to, as its code says
    never_saves: bool = False  # as earlier jobs of its app did not: it will stay where it starts
    unsaved: bool = False  # its checkpoints are refused: wherever it goes, it loses what it has done since the last
    leaving: bool = False  # pauses or ends when its run has ended: wants no other place
    total_run_ms: int | None = None  # predicted time of its code from first step to last; None: nobody knows
    done_ms: int = 0  # of that, what its runs have done that ended, or up to the checkpoint the present one began at
    recipe: Recipe | None = None  # of the built-in recipe: may be merged
    split_from: frozenset[str] = frozenset()  # jobs with which it was merged in vain: not again
    turn_has_come: bool = False  # it has waited for another job, and begins from what that has learned
    allowances: tuple[Allowance, ...] = ()  # what budgets leave for it, where that may be too little
    deadline_given: bool = True  # by its owner; else it is the usual one
    helped: bool = False  # an elastic job is about to leave GPUs for it
    speeds: GpuSpeeds | None = None  # where it may have GPUs of other types than its times speak of

    def __post_init__(self) -> None:
        if self.total_run_ms is not None and not 0 <= self.total_run_ms <= LONGEST_MS:
            object.__setattr__(self, "total_run_ms", max(0, believable_ms(self.total_run_ms)))
        if not -LONGEST_MS <= self.done_ms <= LONGEST_MS:
            object.__setattr__(self, "done_ms", believable_ms(self.done_ms))

    @property
    def stays(self) -> bool:
        """Whether no plan may take it off its machine."""
        return self.locked or self.unsaved or self.has_never_saved

    def refused_by(self, provider: str, least: Money) -> Allowance | None:
        """The budget that does not allow it a machine of this provider which costs at least so much."""
        return next((one for one in self.allowances if one.refuses(provider, least)), None)

    def may_run_at(self, provider: str) -> bool:
        """Whether no budget of the provider, nor one of all, is used up."""
        return self.refused_by(provider, ZERO) is None

    @property
    def saves_by_itself(self) -> bool:
        """Whether it has a checkpoint, but saves none when it is asked to: what it does since is lost when it moves."""
        return not self.saves and self.checkpoint_step is not None

    @property
    def has_never_saved(self) -> bool:
        """Whether it would begin again at step 0 wherever it goes, as far as anybody knows: it has no checkpoint, and
        does not say that it saves when it is asked to."""
        return not self.saves and self.checkpoint_step is None


@dataclass(frozen=True, slots=True)
class RunView:
    """A live run. `running_since_ms` is None until user code has started."""

    run_id: str
    job_ids: tuple[str, ...]
    node_id: str
    tier: Tier
    state: RunState
    row_version: int
    created_ms: int
    running_since_ms: int | None = None
    purpose: RunPurpose = RunPurpose.TRAIN

    @property
    def trains_since_ms(self) -> int | None:
        """As `running_since_ms`; None too for a run that does not train, and so takes its job no further."""
        return self.running_since_ms if self.purpose == RunPurpose.TRAIN else None


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that is not gone. `free_gpus` are the GPU indices no live allocation holds."""

    node_id: str
    project_id: str
    provider: str
    tier: Tier
    state: NodeState
    row_version: int
    gpu_type: str
    gpu_count: int
    gpu_memory_bytes: int
    cpus: int
    memory_bytes: int
    free_gpus: tuple[int, ...]
    price_per_hour: Money
    requested_ms: int
    expected_ready_ms: int
    idle_since_ms: int | None = None  # None while any allocation is live, or while it boots
    region: str = ""
    image: str = ""  # the container image it was rented with; empty: ours, which every job without one of its own takes
    mean_life_ms: int = 0  # as of its offer
    arrival_ms: int = 0
    arrival_micros: int = 0
    spot_only: bool = False  # as of its offer, or on GPUs that are lent now: no guaranteed job could stay there

    @property
    def interruptible(self) -> bool:
        """As `Offer.interruptible`: what it was rented as, for as long as it is there."""
        return self.spot_only and self.tier is not Tier.OWN


@dataclass(frozen=True, slots=True)
class ClosedProvider:
    """A provider from which nothing is rented now, and why not, in words."""

    provider: str
    why: str


@dataclass(frozen=True, slots=True)
class QueueMeans:
    """How long a project's jobs have run in the mean, by kind, as its last thousand that ended have shown: seconds,
    finite and positive."""

    project_id: str
    interactive_s: float
    batch_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One frozen view of the world, in a stable order (every tuple sorted by id).

    `gains`, `gains_together`: what merges have been worth, in turn and side by side. `no_ahead`: projects, by id, for
    whose jobs to come no machine is rented and none is kept. `images`: those that a provider builds, or has built.
    `queue_means`: of projects of which they are known, for policies that go by queues.
    """

    now_ms: int
    jobs: tuple[JobView, ...] = ()
    runs: tuple[RunView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    offers: tuple[Offer, ...] = ()
    traits: tuple[ProviderTraits, ...] = field(default=())
    closed: tuple[ClosedProvider, ...] = ()
    merges: tuple[MergeView, ...] = ()
    gains: GainLine = IN_TURN
    gains_together: GainLine = TOGETHER
    no_ahead: tuple[str, ...] = ()
    images: tuple[ImageView, ...] = ()
    queue_means: tuple[QueueMeans, ...] = ()


def versions_of(*rows: JobView | NodeView) -> tuple[tuple[str, int], ...]:
    """Of the rows that something was decided on, sorted by id, as actions have them."""
    return tuple(sorted((row.job_id if isinstance(row, JobView) else row.node_id, row.row_version) for row in rows))
