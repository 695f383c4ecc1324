"""What a policy is: a pure function from a board (a snapshot, indexed) to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.core.board import Board
from app.core.model.merge import MergeMode
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import JobView
from app.core.tiers import PAPER_BUDGET, BudgetRule


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy remembers from one decision to the next, as plain numbers by name. Stored with each tick."""

    values: tuple[tuple[str, float], ...] = ()

    def get(self, name: str, default: float) -> float:
        """The number of that name."""
        return dict(self.values).get(name, default)

    def having(self, **values: float) -> PolicyState:
        """With these numbers set."""
        return PolicyState(tuple(sorted((dict(self.values) | values).items())))


@dataclass(frozen=True, slots=True)
class MoveCost:
    """What a planned move takes: the source saves, then the target loads. Both GPUs are paid meanwhile.

    `prepare_ms`: where moves are made before the old place is broken, how long the target is held while the source
    trains on. The defaults are the paper's; `benchmarks.migration` measures what they are here.
    """

    save_ms: int = 42_000
    load_ms: int = 42_000
    prepare_ms: int = 0


PAPER_MOVE = MoveCost()


@dataclass(frozen=True, slots=True)
class AllpassRules:
    """What the policy `allpass` weighs with; see there. Shares are of 1."""

    move_gain: float = 1.25  # a move saves at least this many times its own cost
    move_pause_share: float = 0.1  # of the remaining time: the longest pause that a move may be
    least_run_ms: int = 60_000  # of a job without a prediction, before it may move
    patience_ms: int = 60_000  # longest wait for a node by a job that could start on serverless
    patience_share: float = 0.1  # and at most this share of the time from submission to deadline, for each GPU
    patience_run_share: float = 0.5  # of the run time: longest wait for a node that comes for nobody else
    patience_extra_share: float = (
        0.03  # of the run time of each GPU: how much longer waiting may take than starting and moving
    )
    chase_drop: float = 0.1  # a run moves from one rented node to another that costs less by at least this share
    chase_pause_share: float = 0.02  # of a job's time that such moves may cost
    late_most: float = 2.0  # times as much an hour of work may cost where a stated deadline is kept that else is not
    park_slack_ms: int = 600_000  # a job that leaves to wait for a node has at least so much time to spare
    reuse_half_life_ms: int = 60_000  # of the memory of what free nodes would have saved
    ahead_gain: float = 1.0  # a node is rented for jobs to come when they would save this many times its price
    warm_most_ms: int = 600_000  # no node is kept idle for longer
    merge_least_ms: int = 600_000  # of training left: shorter jobs are not worth a merge, nor waiting for one
    merge_wait_share: float = 0.03  # of the run time: how long a job waits for one to be merged with
    merge_wait_ms: int = 600_000  # and never longer
    merge_wait_for: float = 0.5  # so many of its kind have to be expected meanwhile
    merge_money_weight: float = 0.5  # a share of a pair's cost counts so many times as much as one of its time
    merge_wait_cost: float = 6.0  # what getting no GPU now counts as, in times alone
    merge_most_jobs: int = 200  # looked at in one decision; the others are not merged by it
    merge_caution: float = 0.1  # of a running job's time: so much later than predicted it may end
    merge_switch_ms: int = 2_000  # from one job to the next in a warm process
    merge_epochs: int = 2  # without better validation: a merge is undone
    merge_profile_most: int = 4  # jobs that are profiled at once
    merge_own_least_ms: int = 200_000  # of run time: in shorter jobs a look at their task as they begin would show
    merge_profile_ms: int = 120_000  # what profiling is taken to last, where a deadline must bear it
    merge_profile_most_ms: int = 600_000  # a profiling that lasts longer is given up


ALLPASS_RULES = AllpassRules()


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Settings that a decision may read, and the actions that this world can enact."""

    capabilities: frozenset[ActionKind]
    serverless_budget_ms: int  # F: how long a job's code may run on serverless before it must move
    serverless_limit: int  # nodes at once
    serverful_limit: int
    idle_release_ms: int  # how long an idle node is kept before it is released
    tick_ms: int = 60_000
    horizon_ms: int = 1_800_000  # T: how far the demand bound function looks
    budget: BudgetRule = PAPER_BUDGET
    moves: MoveCost = PAPER_MOVE
    rules: AllpassRules = ALLPASS_RULES
    merging: bool = False  # waiting jobs of the built-in recipe may be trained as one
    merge_modes: frozenset[MergeMode] = frozenset(MergeMode)  # and in which ways
    explains: bool = True  # tell every job that gets nothing why; off where nobody reads it
    # Of a crowd, only those whose ids lie within one of these, both ends included, are told why; empty: all are. What
    # is planned is the same.
    told: tuple[tuple[str, str], ...] = ()

    def told_of(self, board: Board) -> Sequence[JobView]:
        """Of the jobs that have no place and want one, those that are told why they get nothing."""
        if not self.explains:
            return ()
        return board.placeable_within(self.told) if self.told else board.placeable()

    def tells(self, job_id: str) -> bool:
        """Whether the job is."""
        return not self.told or any(first <= job_id <= last for first, last in self.told)


class Policy(Protocol):
    """Same snapshot, state and config: same plan, byte for byte. A policy never writes to the board.

    `moves_by_budget`: F stays as it is, and a job that has used it up on serverless leaves for a rented node, whatever
    else is the case.
    """

    name: str
    uses: frozenset[ActionKind]
    moves_by_budget: bool

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]: ...
