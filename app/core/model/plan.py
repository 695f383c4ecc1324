"""All that a decision may ask for. Each action says why, and which row versions it was decided on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from app.core.model.image import WantedImage
from app.core.model.merge import MergeMode
from app.core.model.offer import Offer
from app.core.model.run import RunPurpose

RowVersions = tuple[tuple[str, int], ...]  # (row id, row_version), sorted by id


class ActionKind(StrEnum):
    """Every action a policy may know. A world says which of them it can enact."""

    START = "start"
    DEMOTE = "demote"
    ASSIGN = "assign"
    PROVISION = "provision"
    RELEASE = "release"
    RESIZE = "resize"
    PREEMPT = "preempt"
    MIGRATE = "migrate"
    MERGE = "merge"
    SPLIT = "split"


STOP_AND_GO = frozenset(
    {ActionKind.START, ActionKind.DEMOTE, ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE}
)


@dataclass(frozen=True, slots=True)
class Start:
    """Rent a node that dies with its run, and start the job on it."""

    job_id: str
    offer: Offer
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.START
    purpose: RunPurpose = RunPurpose.TRAIN


@dataclass(frozen=True, slots=True)
class Demote:
    """Ask a serverless run to checkpoint at the next step and leave."""

    job_id: str
    run_id: str
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.DEMOTE


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move a running job onto GPUs of a ready node: the run saves at the next step, the job goes on there."""

    job_id: str
    run_id: str
    node_id: str
    gpu_indices: tuple[int, ...]
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.MIGRATE


@dataclass(frozen=True, slots=True)
class MoveOut:
    """Move a running job onto a machine that is rented for it: as `Migrate`, and its target waits for the machine.

    No policy decides this: it is for runs whose own machine ends (`app.core.leaving`).
    """

    job_id: str
    run_id: str
    offer: Offer
    gpu_indices: tuple[int, ...]
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.MIGRATE


@dataclass(frozen=True, slots=True)
class Preempt:
    """Ask a rented node's run to save and to go back to the queue."""

    job_id: str
    run_id: str
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.PREEMPT


@dataclass(frozen=True, slots=True)
class Assign:
    """Place a waiting job on GPUs of a ready node."""

    job_id: str
    node_id: str
    gpu_indices: tuple[int, ...]
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.ASSIGN
    purpose: RunPurpose = RunPurpose.TRAIN


@dataclass(frozen=True, slots=True)
class GangPlace:
    """GPUs of one of the machines of a job on several."""

    node_id: str
    gpu_indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AssignGang:
    """Place a waiting job on GPUs of several ready nodes, the first of which leads. No policy decides this
    (`app.core.gangs`)."""

    job_id: str
    places: tuple[GangPlace, ...]
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.ASSIGN


@dataclass(frozen=True, slots=True)
class ProvisionGang:
    """Rent machines that a job on several lacks: all of these, or none. No policy decides this. `chosen_by`: the rule
    by which their switches were chosen, where there was something to choose (`app.core.topology`)."""

    job_id: str
    offers: tuple[Offer, ...]
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.PROVISION
    chosen_by: str | None = None


@dataclass(frozen=True, slots=True)
class Provision:
    """Rent a node that outlives runs. `project_id` owns it; `for_job_id` is who it was rented for.

    `ahead`: it is for jobs to come. `for_job_id` is the newest of those before them then, and pays nothing for it.
    """

    project_id: str
    for_job_id: str
    offer: Offer
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.PROVISION
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """End the lease of a node that holds no run."""

    node_id: str
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.RELEASE


@dataclass(frozen=True, slots=True)
class Merge:
    """Train two jobs as one from now on, on so many GPUs. `job_id` is the lead: its place is the place of both.

    In turn the lead may be running already; together, neither has begun.
    """

    job_id: str
    companion_id: str
    mode: MergeMode
    gpus: int
    score: float
    gain: float
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.MERGE


@dataclass(frozen=True, slots=True)
class Split:
    """End a merge: both jobs go on apart, each from the best state that it has."""

    job_id: str
    companion_id: str
    merge_id: str
    reason: str
    versions: RowVersions
    kind: ActionKind = ActionKind.SPLIT


Action = Start | Demote | Migrate | Preempt | Assign | Provision | Release | Merge | Split
Enactable = Action | MoveOut | AssignGang | ProvisionGang  # with what no policy decides


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a job was given nothing in this tick, in words a user can act on."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What one decision wants done, in this order, and what it saw (`signals`: p, F, C, D where it has them)."""

    policy: str
    actions: tuple[Action, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    signals: tuple[tuple[str, float], ...] = ()
    images: tuple[WantedImage, ...] = ()  # that jobs wait for, and nobody builds yet
    wake_at_ms: int | None = field(default=None)  # decide again by then even if nothing happens
