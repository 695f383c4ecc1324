"""What a defragmentation looks at, and what it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PackedNode:
    """A node and all that it has, taken or not.

    `labels` are what tasks may require (GPU kind, image, project). Rented nodes have a price, and `paid_until_s`: the
    moment up to which their rent is owed even if it ends now (a billing minimum, or a unit that has begun).
    """

    id: str
    gpus: int
    cpus_milli: int
    memory_bytes: int
    labels: frozenset[str] = frozenset()
    version: int = 0
    price_micros_per_hour: int = 0
    paid_until_s: int = 0


@dataclass(frozen=True, slots=True)
class PackedTask:
    """A task on a node: one pod of a job, or a whole job that fits on one node.

    `requires`: labels that its node has to have. `apart`: no two tasks with the same value share a node.
    `locked`: never moved, as a job is that has never saved. `ends_s`: when it is expected to end.
    `move_cost_micros`: the measured cost of a move, its risk included.
    """

    id: str
    node_id: str
    gpus: int
    cpus_milli: int
    memory_bytes: int
    requires: frozenset[str] = frozenset()
    apart: str | None = None
    locked: bool = False
    version: int = 0
    ends_s: int = 0
    move_cost_micros: int = 0


@dataclass(frozen=True, slots=True)
class SearchBounds:
    """Bounds of the search. The first three are the paper's (section 4.1).

    `branches`: how many tasks are looked at as the next link of a chain, for each task that has to leave its node.
    `max_moves`: the budget of the whole plan. `moves_per_release`: nodes that take more than this are left as they are.
    """

    partition_nodes: int = 500
    depth: int = 3
    rounds: int = 5
    branches: int = 64
    max_moves: int = 1_000_000
    moves_per_release: int = 64

    def __post_init__(self) -> None:
        """Raises: ValueError: for a partition or depth below one, or any other bound below zero."""
        if min(self.partition_nodes, self.depth) < 1 or min(self.rounds, self.branches, self.max_moves) < 0:
            raise ValueError(f"no search within {self}")


@dataclass(frozen=True, slots=True)
class TaskMove:
    """One task from one node to another, decided on these versions of the three rows."""

    task_id: str
    source_id: str
    target_id: str
    task_version: int
    source_version: int
    target_version: int


@dataclass(frozen=True, slots=True)
class NodeRelease:
    """A node that is empty after its moves, which are in the order of execution: the deepest of a chain first."""

    node_id: str
    moves: tuple[TaskMove, ...]
    saved_micros: int
    cost_micros: int
    reason: str


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """Releases in their order of execution.

    `settled`: the last round found nothing more, so that asking again at once gives no release, where all nodes are in
    one partition. `left_out`: ids of nodes and tasks that made no sense (more on a node than it has, a negative size, a
    node that is not there), which are neither moved nor moved to.
    """

    releases: tuple[NodeRelease, ...] = ()
    settled: bool = True
    left_out: tuple[str, ...] = field(default=())

    @property
    def moves(self) -> tuple[TaskMove, ...]:
        return tuple(move for release in self.releases for move in release.moves)
