"""Jobs, and what can be read of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from allpass.wire.base import Deadline, MicroUsd, Name, Reference, Request, Response, Sha256, Version
from allpass.wire.template import Template

Parameters = dict[str, Any] | list[str]
_ParameterName = Annotated[str, StringConstraints(max_length=1000)]
_Word = Annotated[str, StringConstraints(max_length=32_000)]  # what every system can hand to a script, in any alphabet
ParameterSet = Annotated[dict[_ParameterName, Any], Field(max_length=10_000)]
GivenParameters = ParameterSet | Annotated[list[_Word], Field(max_length=10_000)]
JobStatus = Literal[
    "queued", "starting", "running", "checkpointing", "waiting", "paused", "succeeded", "failed", "cancelled"
]
TERMINAL_STATUSES: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})


def _as_accepted(told: Any, check: ValidatorFunctionWrapHandler) -> Template:
    """What is stored was accepted once, under other limits or by a newer version. Fields of which this version knows
    nothing, or whose value it would not accept, are left out: the job can be read all the same."""
    told = deepcopy(told)
    while isinstance(told, dict) and told:
        try:
            template: Template = check(told)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_input=False, include_context=False)
            if not max([_leave_out(told, problem["loc"]) for problem in problems]):
                return Template()
        else:
            return template
    return told if isinstance(told, Template) else Template()


def _leave_out(told: dict[Any, Any], path: Sequence[int | str]) -> bool:
    """Remove the innermost field that the path leads to; False where it leads to none."""
    holder, name = None, None
    within: Any = told
    for part in path:
        if not isinstance(within, dict) or part not in within:
            break
        holder, name, within = within, part, within[part]
    if holder is None:
        return False
    del holder[name]
    return True


Accepted = Annotated[Template, WrapValidator(_as_accepted)]


class JobRequest(Request):
    """Submit one job.

    `parameters`: an object (written to the parameters file) or a list of words (also the script's argv).
    `soft_deadline`: "6hr", "90m", an ISO 8601 duration ("PT6H") or an instant with its zone.
    """

    app_id: Reference
    app_version: Version | None = Field(None, description="default: the newest")
    name: Name | None = None
    template: Template = Field(default_factory=Template)
    parameters: GivenParameters = Field(default_factory=dict)
    soft_deadline: Deadline | None = None
    from_checkpoint: Reference | None = Field(
        None, description="begin with this checkpoint: JOB:STEP, or JOB for its newest"
    )


class SweepRequest(Request):
    """Submit one job per parameter set."""

    app_id: Reference
    app_version: Version | None = None
    name: Name | None = None
    template: Template = Field(default_factory=Template)
    parameters: list[ParameterSet] = Field(min_length=1, max_length=10_000)
    soft_deadline: Deadline | None = None
    from_checkpoint: Reference | None = Field(
        None, description="begin with this checkpoint: JOB:STEP, or JOB for its newest"
    )


class Where(Response):
    """Where the job is now. Of one on several machines, `node_id` is the first; GPUs and price are those of all."""

    node_id: str
    nodes: int = 1
    provider: str
    tier: Literal["serverless", "own", "marketplace", "conventional"]
    gpu_type: str
    gpu_count: int
    price_per_hour: MicroUsd
    interruptible: bool = Field(False, description="by a bid: it is lost without a word when somebody pays more")


class Merge(Response):
    """How a job is, or was last, trained as one with another job of its project."""

    id: str
    partner_id: str
    leads: bool = Field(description="in turn: it trains first; together: the partner shares its process")
    mode: Literal["in-turn", "together"]
    state: Literal["open", "ended", "split", "void"] = Field(
        description="ended: it came to its end; split: it was of no use; void: one of the two left it before"
    )
    score: float = Field(description="how alike the first steps of both are, from 0 to 1")
    expected_gain: float = Field(description="0.5: both together are expected to take 1 / 1.5 of their steps")
    reason: str
    end_message: str | None = None
    begun_at: datetime
    ended_at: datetime | None = None


class Expected(Response):
    """How many steps a running job still has, and between which bounds.

    Nine jobs in ten are expected to end between them, and no job is promised to. They close as the job goes on; where
    its number of steps was said and it has no target, all three are equal.
    """

    likely: int = Field(ge=0)
    least: int = Field(ge=0)
    most: int = Field(ge=0)
    by: Literal["steps", "target", "loss"] = Field(
        description="steps: their number was said; target: the curve of its metric reaches the target; loss: the curve "
        "of its losses is flat"
    )
    earliest_at: datetime = Field(description="when it is done if `least` steps are left, at its present speed")
    latest_at: datetime = Field(description="when it is done if `most` steps are left, at its present speed")


class Transfer(Response):
    """Bytes that the job waits for. read: its machine reads a checkpoint to send it; send: it sends one; fetch: it
    fetches the one to begin with. The rate and the time left are not known at first."""

    kind: Literal["read", "send", "fetch"]
    done_bytes: int
    total_bytes: int
    bytes_per_s: int | None = None
    left_ms: int | None = None


class LeftBehind(Response):
    """A file or folder that a run wrote and that is not kept."""

    path: str
    size_bytes: int
    files: int
    why: str


class Results(Response):
    """What the job has left: `files` of `size_bytes` are kept so far. `left` are the largest of what its newest run
    wrote and that is not kept, `left_files` of `left_bytes` in all; null: no run has told of any yet."""

    files: int
    size_bytes: int
    left: list[LeftBehind] | None = None
    left_files: int = 0
    left_bytes: int = 0


class Job(Response):
    """One job, one log, one bill."""

    id: str
    app_id: str
    app_name: str
    app_version: int
    sweep_id: str | None = None
    name: str
    status: JobStatus
    reason: str | None = Field(None, description="why it ended or is paused, e.g. user_code_failed")
    message: str | None = Field(None, description="that reason in words, or what a waiting job waits for")
    where: Where | None = None
    epoch: int
    moves: int
    faults: int
    evictions: int = Field(0, description="how often it left its GPUs to a guaranteed job, as a spot job does")
    step: int
    total_steps: int | None = None
    checkpoint_step: int | None = None
    from_checkpoint_id: str | None = Field(None, description="another job's checkpoint, with which this one began")
    unsaved: str | None = Field(
        None, description="why its checkpoints are not kept: what it has done since checkpoint_step would be lost"
    )
    not_movable: str | None = Field(
        None,
        description="of a running job that has never saved, and does not say that it saves when it is asked to: why no "
        "plan moves it, and the way out",
    )
    links: dict[str, str] = Field(
        default_factory=dict,
        description="by name, what its code told of: its run in a tracker, a page of its own. Another person's words",
    )
    soft_deadline: datetime
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cost: MicroUsd
    idle_cost: MicroUsd | None = Field(
        None,
        description="told of a job that is asked for by its id: beside `cost`, what machines cost that stood idle once "
        "it had left them, or, rented for it, before any job came; it is on the project's bill. null: nothing",
    )
    spot_discount: MicroUsd | None = Field(
        None,
        description="told of a job that is asked for by its id: what `cost` would be more at the full price of the "
        "pools where it ran as a spot job. null: nothing",
    )
    max_cost: MicroUsd | None = Field(None, description="the limit now; the template keeps the one of submission")
    max_duration_s: int | None = Field(None, description="the limit now, counted from started_at")
    max_hourly: MicroUsd | None = Field(None, description="the limit now: what the GPUs it is given may cost per hour")
    max_wait_s: int | None = Field(None, description="the limit now, counted from submitted_at to its first place")
    retries: int | None = Field(
        None, description="how often it is begun again when its own code fails; null: once, for want of memory"
    )
    retried: int = Field(0, description="how often it was begun again, of `retries`")
    estimated_finish_at: datetime | None = Field(
        None,
        description="of a running job: steps left times the measured time of a step. Asked for by its id, a job with a "
        "target or without a number of steps is judged by the curve of its losses, too",
    )
    expected: Expected | None = Field(
        None, description="the steps on which `estimated_finish_at` rests, with their bounds. null: it is not known"
    )
    merge: Merge | None = None
    transfer: Transfer | None = Field(None, description="told of a job that is asked for by its id, while one is long")
    results: Results | None = Field(
        None, description="told of a job that is asked for by its id, once a run has left some"
    )
    warnings: list[str] = Field(
        default_factory=list,
        description="told of a job as it is submitted, and when it is asked for by its id: what in its template is let "
        "in and is likely a mistake",
    )
    labels: dict[str, str] = Field(default_factory=dict)
    parameters: Parameters
    template: Accepted

    def _repr_html_(self) -> str:
        from allpass import notebook  # the service has no use for it

        return notebook.job(self)


class Sweep(Response):
    id: str
    jobs: list[Job]


class JobEvent(Response):
    """`position` counts from 1 per job without gaps."""

    position: int
    at: datetime
    kind: str
    message: str
    data: dict[str, Any] = Field(default_factory=dict)


class LogPage(Response):
    """A piece of a job's log. Pass `next_position` back to go on; `complete` says that no more will come."""

    text: str
    next_position: str
    complete: bool


class LogMatch(Response):
    """A line that holds the text that was searched for.

    `line` counts from 1; `position` reads the log from the piece in which the line begins; of a long line, `text` is
    the part around the match.
    """

    line: int
    position: str
    text: str


class SystemPoint(Response):
    """What the job's processes and GPUs used: `system/cpu_percent` (100: one core), `system/memory_bytes`, and of each
    GPU `system/gpu0/util_percent` and `system/gpu0/memory_bytes`, as far as its machine could tell."""

    at: datetime
    values: dict[str, float]


class SystemUse(Response):
    points: list[SystemPoint] = Field(description="by time; of many samples, stretches of them")


class MetricPoint(Response):
    step: int
    at: datetime
    values: dict[str, float]


class Checkpoint(Response):
    id: str
    step: int
    epoch: int
    size_bytes: int
    stored_bytes: int | None = Field(None, description="what it added to the object store")
    metrics: dict[str, float] = Field(default_factory=dict)
    created_at: datetime


class PieceLink(Response):
    """`length` bytes from `start` on of stored content of `size_bytes`, with a signed link to all of it."""

    sha256: Sha256
    size_bytes: int
    start: int
    length: int
    url: str


class FileLink(Response):
    """A file with signed links that expire.

    A file that is stored as a whole has `sha256` and `url`. A file of a checkpoint may be stored in pieces, or share
    one with others: those two are null then, and the bytes of its `pieces`, in order, are the file's.
    """

    path: str
    sha256: Sha256 | None
    size_bytes: int
    url: str | None
    pieces: list[PieceLink] = Field(default_factory=list)


class FilePreview(Response):
    """The first 64 KiB of a file. `text`: where that is UTF-8, whatever the file is called; it is what user code wrote,
    and may be anything."""

    path: str
    size_bytes: int
    kind: Literal["text", "image", "binary"]
    text: str | None = None
    truncated: bool


class Stay(Response):
    """One stretch of a job on one node, with what it cost so far."""

    run_id: str
    node_id: str
    provider: str
    tier: Literal["serverless", "own", "marketplace", "conventional"]
    gpu_type: str
    gpu_count: int
    price_per_hour: MicroUsd
    resumed_from_step: int | None
    from_at: datetime
    running_at: datetime | None
    to_at: datetime | None
    end_reason: str | None
    cost: MicroUsd


class Timeline(Response):
    """`waiting_ms`: unfinished time without user code running. `all_serverless`: what that run time, without what was
    done twice (`repeated_ms`), costs there."""

    stays: list[Stay]
    waiting_ms: int
    running_ms: int
    cost: MicroUsd
    all_serverless: MicroUsd
    repeated_ms: int = 0


class JobSize(Response):
    """From when to when a run of the job held so many GPUs of a machine. `to_at` null: now.

    `why`: begun (its run began with so many), asked (by its owner), lent (some are given to `for_job_id`, which waits),
    returned (nobody else waits for them), no_faster (some of a range made it no faster), refused (no process could
    begin on one), unknown (nothing is on record). `step_s`: seconds per step that jobs of its app were measured to take
    with so many of such GPUs, and `noise` how far that was from the mean at most; null: not measured.
    """

    run_id: str
    node_id: str
    gpu_type: str
    gpus: int
    gpus_before: int | None = Field(description="of the same run; null: it began with these")
    price_per_hour: MicroUsd
    from_at: datetime
    to_at: datetime | None
    why: Literal["begun", "asked", "lent", "returned", "no_faster", "refused", "unknown"]
    text: str
    for_job_id: str | None
    step_s: float | None = None
    noise: float | None = Field(None, description="relative: 0.02 are 2 %")


class Node(Response):
    id: str
    provider: str
    tier: Literal["serverless", "own", "marketplace", "conventional"]
    state: str
    gpu_type: str
    gpu_count: int
    gpu_memory_bytes: int
    region: str
    price_per_hour: MicroUsd
    job_ids: list[str]
    rented_for_job_id: str | None = Field(
        None,
        description="The job that it was rented for, whether or not it ever ran there; null: for none in particular",
    )
    requested_at: datetime
    ready_at: datetime | None
    ended_at: datetime | None
    cost: MicroUsd
    message: str | None = None
    download_mbps: float | None = Field(
        None, description="What its link to this service was measured at, in Mbit/s", examples=[812.5]
    )
    gpus_checked: Literal["right", "failed", "unchecked"] | None = Field(
        None, description="How the first calculation on each of its GPUs went; null: there was none"
    )
    interruptible: bool = Field(
        False, description="It is bid for: its company takes it back without a word for somebody who pays more"
    )


class DegradedPart(Response):
    """A part of the service that does not do its work, or not all of it; the others do theirs."""

    part: str = Field(description="The part's name", examples=["meter"])
    since: datetime = Field(description="Since when")
    failures: int = Field(description="How often it failed since then; 0 for a part that does not finish", examples=[3])
    what: str = Field(
        description="What that means, in words", examples=["what some machines cost is not booked: 3 failures"]
    )


class Health(Response):
    status: Literal["ok", "degraded"]
    parts: dict[str, str]
    version: str
    degraded: list[DegradedPart] = Field(default_factory=list, description="Empty while everything works")
