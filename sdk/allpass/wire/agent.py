"""What an agent on a rented machine says, and what it is told.

Control is level-triggered: the agent reports what is, the reply says what should be, so a lost message costs
nothing. The agent itself is stdlib-only and does not import this module; a test holds its messages against it.
Every path below is under `/v1/agent` and carries `Authorization: Bearer <node token>`; only `/join` carries the join
token that the machine was started with, and answers with the node's. No bulk data goes through here: bytes travel by
signed URL.

Agents outlive the server that started them: after an upgrade old ones speak to a new server, after the way back new
ones to an old server. So fields that one side does not know are ignored by it, in both directions, and a field is added
with a default on the side that reads it. A new word (a phase, a wish) is sent only by a release that comes after one
that reads it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import to_json

from allpass.training.links import LONGEST_URL, NAME, URL
from allpass.wire.base import (
    LARGEST,
    Count,
    Flag,
    LibraryVersion,
    Message,
    Real,
    Response,
    Sha256,
    Steps,
    Unguessed,
    Whole,
)
from allpass.wire.gangs import BitsPerSecond, GangSpec, Meeting
from allpass.wire.jobs import Parameters

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Epoch = Annotated[int, Field(ge=0, lt=2**31), Unguessed]
Path = Annotated[str, StringConstraints(min_length=1, max_length=512)]
LONGEST_METRIC_NAME = 200
MetricName = Annotated[str, StringConstraints(max_length=LONGEST_METRIC_NAME)]
Moment = Annotated[int, Field(ge=0, le=253_402_300_799_999), Unguessed]  # milliseconds, up to the end of the calendar
LARGEST_MEASURED = 1e15
MOST_LINKS = 8
MOST_GPUS = 64
GpuIndex = Annotated[int, Field(ge=0, lt=MOST_GPUS), Unguessed]
LinkName = Annotated[str, StringConstraints(pattern=f"^(?:{NAME.pattern})$", max_length=32)]
LinkUrl = Annotated[str, StringConstraints(pattern=f"^(?:{URL.pattern})$", max_length=LONGEST_URL)]
LARGEST_HOST_BYTES = 65_536


def _dropped_if_wrong(told: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(told)
    except ValidationError:
        return None


def _with_short_names(told: Any) -> Any:
    if isinstance(told, dict) and any(isinstance(name, str) and len(name) > LONGEST_METRIC_NAME for name in told):
        return {name[:LONGEST_METRIC_NAME]: value for name, value in told.items()}
    return told


def _short(told: dict[str, Any]) -> dict[str, Any]:
    size = len(to_json(told, inf_nan_mode="constants"))
    if size > LARGEST_HOST_BYTES:
        raise ValueError(f"expected at most {LARGEST_HOST_BYTES} bytes of facts, not {size}")
    return told


# What user code said. An agent tells only what fits; should one tell more, that alone is left out: a report is never
# refused for it, and its run and the others of its machine go on.
OfUserCode = WrapValidator(_dropped_if_wrong)
LayoutCount = Annotated[int, Field(ge=1, le=2**40), Unguessed]
Measurement = Real  # any number, none (NaN) included: what cannot be counted with is told once, and left out
Measured = Annotated[float, Field(ge=-LARGEST_MEASURED, le=LARGEST_MEASURED, strict=True)]


class JoinRequest(Message):
    """POST /join, with the join token as bearer. `nonce`: what the machine made up at its first start and keeps; the
    same one gets the same reply, any other is refused once one has joined."""

    agent_version: str = Field(max_length=50)
    nonce: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)


class JoinReply(Response):
    """`node_token` is the bearer of every other call."""

    node_id: str
    node_token: str = Field(repr=False)


class InstallerRequest(Message):
    """POST /installer: which uv there is for this machine. `machine`: as `uname -m` says it."""

    machine: str = Field(max_length=50)


class InstallerReply(Response):
    """GET /installers/{sha256} gives it, packed with gzip; hash and size are those of the program. Both null: there is
    none for such machines."""

    sha256: Sha256 | None = None
    size_bytes: int | None = None


class TrainingFacts(Message):
    """What user code told of its training, as far as it did: its layout, the most memory that one of its GPUs held, and
    the versions of its libraries."""

    micro_batch: LayoutCount | None = None
    accumulation: LayoutCount | None = None
    sequence: LayoutCount | None = None
    checkpointing: Flag | None = None
    sharding: Annotated[str, StringConstraints(max_length=20)] | None = None
    allocated_bytes: Count | None = Field(None, description="torch.cuda.max_memory_allocated()")
    reserved_bytes: Count | None = Field(None, description="torch.cuda.max_memory_reserved()")
    process_bytes: Count | None = Field(None, description="in use on the GPU, as the driver says")
    versions: dict[LibraryVersion, LibraryVersion] = Field(default_factory=dict, max_length=16)


class ProfileFound(Message):
    """What a look at a job's rows has measured: `fisher`, block means of the Fisher information's diagonal, and
    `pull`, a sketch of the first step of training (ADR 0026). `rows`: how many were looked at; `tokens`: what they
    cost."""

    fisher: list[Measured] = Field(min_length=1, max_length=1024)
    pull: list[Measured] = Field(min_length=1, max_length=512)
    rows: Count
    tokens: Count


class ExitReport(Message):
    """How the user process ended. At most one of `exit_code`, `signal`, `environment_error` is set; none of them
    means that the process is gone and nobody saw how.

    `saved_after_stop`: a checkpoint was written after the request to stop (and is committed). `last_lines`: the end of
    the process's own output, for the message a user sees first. `profile`: of a profile run that did what it was for.
    `parted`: why two runs that shared a process are not to share one again; both have saved."""

    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**31), Unguessed] | None = None
    signal: Annotated[int, Field(ge=0, lt=2**31), Unguessed] | None = None
    environment_error: str | None = Field(None, max_length=4000)
    machine_fault: Flag = Field(False, description="that error is this machine's doing: another one may succeed")
    saved_after_stop: Flag = False
    last_lines: str = Field("", max_length=8000)
    training: Annotated[TrainingFacts | None, OfUserCode] = None
    profile: Annotated[ProfileFound | None, OfUserCode] = None
    parted: str | None = Field(None, max_length=500)
    killed: Flag = Field(False, description="by its agent, which was told to")
    stranded: Flag = Field(False, description="no fault: its job goes on from what is stored")


class Watched(Message):
    """How the job that waits for this one's weights does on them: looked at for so many `epochs` of the run's rows, and
    `fruitless_epochs` of these without a lower held-out loss than at first (0 once there was one)."""

    job_id: Id
    epochs: Annotated[Measured, Field(ge=0)]
    fruitless_epochs: Annotated[Measured, Field(ge=0)]


class GpusTold(Message):
    """What a training said of the GPUs that it was given, by their numbers: those that it uses, those that its
    processes are about to leave, and those that no process of it could begin on. `pause_ms`: for how long the last
    change of them had no step taken. `kept`: why one that is restarted for it keeps what it uses ("failed")."""

    used: list[GpuIndex] = Field(max_length=MOST_GPUS)
    leaving: list[GpuIndex] = Field(max_length=MOST_GPUS)
    refused: list[GpuIndex] = Field(max_length=MOST_GPUS)
    kept: str | None = Field(None, max_length=40)
    pause_ms: Count | None = None
    after_save: Flag = Field(False, description="one that is restarted changes them only right after its next save")


class RunReport(Message):
    """`prepared`: a run that stands by has all that it needs but its job's final checkpoint.

    `tokens`: what this run has trained on, where it shares a process with another one. `profile`: of a run that was to
    find it before it trains; told until a reply has shown that it was heard. `saves`: its code says that it saves and
    leaves when it is asked to; an agent that does not say it knows nothing of that. `total_steps`: the step that its
    code says it ends with. `links`: what its code told of, by name, to be shown with its job. `libraries`: the versions
    that the built-in recipe computes with, by name. `gpus`: its training can change its GPUs, and uses these now."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    phase: Literal["preparing", "prepared", "running", "stopping", "exited"]
    step: Count = 0
    exit: ExitReport | None = None
    tokens: Count | None = None
    watch: Annotated[Watched | None, OfUserCode] = None
    profile: Annotated[ProfileFound | None, OfUserCode] = None
    saves: Flag = False
    stops_together: Flag = False
    total_steps: Annotated[Steps | None, OfUserCode] = None
    links: Annotated[dict[LinkName, LinkUrl] | None, Field(max_length=MOST_LINKS), OfUserCode] = None
    libraries: Annotated[dict[LibraryVersion, LibraryVersion] | None, Field(max_length=16), OfUserCode] = None
    gpus: Annotated[GpusTold | None, OfUserCode] = None
    meeting: Meeting | None = Field(None, description="of the first machine of a job on several")
    network_bits_per_s: BitsPerSecond | None = Field(
        None, description="of a further machine of a job: how fast it fetched a few megabytes from the first one"
    )


class SyncRequest(Message):
    """POST /sync. `seen`: the desired version of the last reply (0 at first). The server answers at once when
    its version differs or when `runs` changed something, else within `wait_ms`."""

    agent_version: str = Field(max_length=50)
    seen: Count
    wait_ms: Whole = Field(ge=0, le=60_000)
    runs: list[RunReport] = Field(max_length=64)
    host: Annotated[dict[MetricName, Any], AfterValidator(_short)] = Field(
        default_factory=dict, max_length=32, description="facts: python, cpus, memory, gpus, clock"
    )


class File(Message):
    path: Path
    sha256: Sha256
    size_bytes: Count


class SavedPiece(Message):
    """`length` bytes from `start` on of the stored content `sha256`, which has `size_bytes`."""

    sha256: Sha256
    size_bytes: Count
    start: Count = 0
    length: Count


class SavedFile(Message):
    """A file of a checkpoint. One that is a stored content of its own has `sha256`; another one has `pieces`, whose
    bytes in order are the file's: a large file is cut into many, small files may share one."""

    path: Path
    size_bytes: Count
    sha256: Sha256 | None = None
    pieces: list[SavedPiece] | None = Field(None, max_length=20_000)


class ListedPiece(Message):
    sha256: Sha256
    size_bytes: Annotated[int, Field(ge=1, le=2**53), Unguessed]


class Listing(Message):
    """The files of a checkpoint of very many. One after the other they are one stream of bytes, which `pieces` are cut
    from, in order. `files`: a JSON list of [path, size in bytes], in the order of the stream, packed with zlib, in
    base64."""

    files: str = Field(min_length=1, max_length=5_600_000, repr=False)
    pieces: list[ListedPiece] = Field(max_length=20_000)


class ComingSpan(Message):
    """A part of a file that a checkpoint will have: `length` bytes from `offset` on are those of the content `sha256`
    (of `size_bytes`) from `start` on. Of a file of `file_bytes`."""

    path: Path
    file_bytes: Count
    offset: Count = Field(multiple_of=4096)
    sha256: Sha256
    size_bytes: Count
    start: Count = 0
    length: Count


class ResumeFrom(Response):
    """`learned`: it is another job's. The run takes what that one has learned and begins with step 0."""

    checkpoint_id: str
    step: int
    files: list[SavedFile]
    learned: bool = False
    listing: Listing | None = Field(
        None, description="in place of `files`, for agents whose host says that it `reads` it"
    )


class Watch(Response):
    """A job that will begin with this one's weights: its rows are looked at now and then."""

    job_id: str
    bundle_sha256: Sha256
    bundle_size_bytes: int
    parameters: Parameters


class Keep(Response):
    """What an agent keeps of a run's working folder: `most_bytes` of new and changed files, `named_bytes` of what the
    template's `outputs` name. It looks every `every_s` seconds while the run goes on, and when it has ended."""

    most_bytes: int
    named_bytes: int
    every_s: float


class RunSpec(Response):
    """All that is needed to execute a run. `purpose` profile: no training, only a look at what the rows ask of the
    model (a job of the built-in recipe). `profiles`: it takes that look, too, before it trains."""

    app_name: str
    job_name: str
    project_id: str
    bundle_sha256: Sha256
    bundle_size_bytes: int
    entrypoint: str
    pip: list[str]
    environment_sha256: Sha256
    base_image: str | None
    parameters: Parameters
    template: dict[str, Any]
    total_steps: int | None
    checkpoint_interval_s: int
    mean_life_s: float | None = Field(
        None,
        description="how long such machines live until they fail; null: nothing is known, or the template says how "
        "often to save",
    )
    gpu_indices: list[int]
    use_gpus: list[int] = Field(
        default_factory=list,
        description="of them those that its training is to use, in this order; they change while it runs",
    )
    layout: dict[str, Any] | None = Field(
        None, description="on its GPUs, as training.plan() tells it; null: the job does not state its training"
    )
    resume: ResumeFrom | None
    secrets: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="by name, until the user code runs; never written to disk, never sent back",
    )
    purpose: Literal["train", "profile"] = "train"
    watch: Watch | None = None
    profiles: bool = False
    log_bytes: int | None = Field(
        None, description="so much of the run's log is stored, and then only its end; null: as the agent has it"
    )
    keep: Keep | None = Field(None, description="null: the output folder alone, of a run that ends with code 0")
    pins: list[str] = Field(
        default_factory=list,
        description="requirements of the versions that the job began with, beside `pip`; where this machine cannot "
        "have them, `pip` alone counts",
    )
    gang: GangSpec | None = Field(None, description="of a job on several machines")


class DesiredRun(Response):
    """`want`: run, or save a checkpoint and leave, or stop now; or stand by: prepare all, run no code of the user's,
    and wait to be told `run`, with the checkpoint to begin with in `spec.resume`. A run that is not listed any more is
    to be killed and forgotten.

    `coming`, for one that stands by: what is stored already of the checkpoint that its job is writing elsewhere. It may
    be fetched ahead; the checkpoint itself may turn out to be another one.

    `companion` names another run that is to train in this one's process, and there `companion_of` names this one: both
    come in one reply. Each is stopped, saved, reported and fenced by itself."""

    run_id: str
    job_id: str
    epoch: int
    want: Literal["run", "checkpoint", "kill", "standby"]
    grace_ms: int
    spec: RunSpec
    coming: list[ComingSpan] = Field(default_factory=list)
    companion: str | None = None
    companion_of: str | None = None


class NextJob(Response):
    """What a job that waits would need of this node, should it come there: code, by a signed URL that holds for a
    while, and environment. `model`: the base model that the built-in recipe would load. Nothing secret is in it."""

    project_id: str
    bundle_sha256: Sha256
    bundle_size_bytes: int
    bundle_url: str = Field(repr=False)
    pip: list[str]
    environment_sha256: Sha256
    model: str | None = None
    pins: list[str] = Field(default_factory=list, description="as of a run")


class SyncReply(Response):
    """`next`: what the node will likely run next, the likeliest first. It is advice: it may be fetched ahead, replaces
    what was told before, and promises nothing.

    `runs` is null when they are what `seen` stood for: nothing is new. Steps that have moved on, and nothing else
    to tell, are to be reported no more often than every `report_every_ms`: the server has others to hear."""

    version: int
    runs: list[DesiredRun] | None
    report_every_ms: int = Field(1000, ge=0)
    next: list[NextJob] = Field(default_factory=list, max_length=2)


class DownloadRequest(Message):
    """POST /downloads: signed URLs for content that the job may read."""

    job_id: Id
    epoch: Epoch
    sha256s: list[Sha256] = Field(max_length=2000)


class DownloadReply(Response):
    urls: dict[str, str]


class UploadRequest(Message):
    """POST /uploads: signed URLs for content the agent is about to store. Known content gets no URL."""

    job_id: Id
    epoch: Epoch
    files: list[File] = Field(max_length=2000, description="path is ignored")


class UploadReply(Response):
    urls: dict[str, str]


class CheckpointOpen(Message):
    """POST /checkpoints: open a manifest. Its pieces are pinned from now on. One of more than 10,000 files is told as
    a `listing`, and has no `files`. A `part` is what one machine of a job on several has written of it, and may have
    none."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    step: Count
    files: list[SavedFile] = Field(max_length=10_000)
    listing: Listing | None = None
    part: Flag = False
    metrics: Annotated[dict[MetricName, Measurement], BeforeValidator(_with_short_names)] = Field(
        default_factory=dict, max_length=100
    )


class CheckpointOpened(Response):
    """Upload what `urls` names (sha256 -> URL), then POST /checkpoints/{checkpoint_id}/commit. `part`: it was taken as
    one; a server that does not say so knows no parts."""

    checkpoint_id: str
    urls: dict[str, str]
    part: bool = False


class CheckpointComing(Message):
    """POST /checkpoints/coming: parts of a checkpoint that is still being written. The reply, as that of /uploads, has
    URLs for what the store lacks of them; what it has is pinned, and told to the run that stands by for the job. Tell
    what was sent again."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    step: Count
    spans: list[ComingSpan] = Field(min_length=1, max_length=2000)


class Refusal(Message):
    """POST /refusals: why a checkpoint (or an output file) of that step cannot be kept, or (tracking) why metrics do
    not reach a tracker of the job's owner, in words for them.

    Told by the agent whatever the reason is: too many files, a name that cannot be stored, a file that changed while it
    was read, or what the server or the store said. Repeating it is harmless."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    what: Literal["checkpoint", "output", "tracking"] = "checkpoint"
    step: Count
    why: str = Field(min_length=1, max_length=2000)


class TransferReport(Message):
    """POST /transfers: how far bytes have got that the run cannot go on without, now and then while it lasts. read: the
    agent reads and hashes a checkpoint; send: it sends one; fetch: it fetches the one that the run begins with."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    kind: Literal["read", "send", "fetch"]
    done_bytes: Count
    total_bytes: Count


class CheckpointCommit(Message):
    """`final`: it was written after the request to stop. The job goes on from it, elsewhere."""

    job_id: Id
    epoch: Epoch
    final: Flag = False


class DamageReport(Message):
    """POST /checkpoints/{checkpoint_id}/damaged: this piece of the checkpoint that the run begins with did not arrive
    with its hash, again and again."""

    job_id: Id
    epoch: Epoch
    sha256: Sha256


class DamageAnswer(Response):
    """What to begin with instead; null: with nothing."""

    resume: ResumeFrom | None


class LogChunk(Message):
    """A stored piece of the log (UTF-8 text, `line_count` newlines). `sequence` counts from 0 per run."""

    sequence: Whole = Field(ge=0, lt=2**31)
    sha256: Sha256
    size_bytes: Annotated[int, Field(ge=1, le=LARGEST), Unguessed]
    line_count: Whole = Field(ge=0, lt=2**31)
    first_ms: Moment
    last_ms: Moment


class LogReport(Message):
    """POST /logs. Repeating a chunk is harmless. Accepted from ended runs too: a log is never lost to fencing."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    chunks: list[LogChunk] = Field(min_length=1, max_length=100)


class MetricReportPoint(Message):
    step: Count
    at_ms: Moment
    values: Annotated[dict[MetricName, Measurement], BeforeValidator(_with_short_names)] = Field(max_length=100)


class MetricReport(Message):
    """POST /metrics. Repeating a step overwrites it, under the job's current epoch only."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    points: list[MetricReportPoint] = Field(min_length=1, max_length=1000)


class SystemSample(Message):
    """What a run's processes and GPUs use at an instant, by reserved names: `system/cpu_percent` (100: one core),
    `system/memory_bytes`, `system/gpu0/util_percent`, `system/gpu0/memory_bytes`."""

    at_ms: Moment
    values: Annotated[dict[MetricName, Measurement], BeforeValidator(_with_short_names)] = Field(max_length=100)


class SystemReport(Message):
    """POST /system. Kept apart from what the job measures, by instant."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    samples: list[SystemSample] = Field(min_length=1, max_length=100)


class LeftBehind(Message):
    """A file or folder of the run's that is not kept, and why."""

    path: str = Field(min_length=1, max_length=600)
    size_bytes: Count
    files: Count
    why: str = Field(max_length=300)


class ArtifactReport(Message):
    """POST /artifacts: the stored files that a run leaves behind, each time all of them. `joins`: what other runs of
    the job have left stays, and it is taken from a run that is over too, as its log is: what a later run left under the
    same path stays as well. `left`: the largest of what is not kept, of `left_files` and `left_bytes` in all.
    `final`: the run's processes are gone."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    files: list[File] = Field(max_length=10_000)
    joins: Flag = False
    final: Flag = False
    left: list[LeftBehind] = Field(default_factory=list, max_length=50)
    left_files: Count = 0
    left_bytes: Count = 0
