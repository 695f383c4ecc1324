"""What an agent on a rented machine says, and what it is told.

Control is level-triggered: the agent reports what is, the reply says what should be, so a lost message costs
nothing. The agent itself is stdlib-only and does not import this module; a test holds its messages against it.
Every path below is under `/v1/agent` and carries `Authorization: Bearer <node token>`. No bulk data goes
through here: bytes travel by signed URL.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from allpass.wire.base import Flag, Real, Request, Response, Sha256, Unguessed, Whole
from allpass.wire.jobs import Parameters

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Count = Annotated[int, Field(ge=0, le=2**53), Unguessed]  # what every reader of JSON can hold exactly
Epoch = Annotated[int, Field(ge=0, lt=2**31), Unguessed]


class ExitReport(Request):
    """How the user process ended. At most one of `exit_code`, `signal`, `environment_error` is set; none of them
    means that the process is gone and nobody saw how.

    `saved_after_stop`: a checkpoint was written after the request to stop (and is committed).
    `last_lines`: the end of the process's own output, for the message a user sees first.
    """

    exit_code: Whole | None = None
    signal: Whole | None = None
    environment_error: str | None = Field(None, max_length=4000)
    saved_after_stop: Flag = False
    last_lines: str = Field("", max_length=8000)


class RunReport(Request):
    run_id: Id
    job_id: Id
    epoch: Epoch
    phase: Literal["preparing", "running", "stopping", "exited"]
    step: Count = 0
    exit: ExitReport | None = None


class SyncRequest(Request):
    """POST /sync. `seen`: the desired version of the last reply (0 at first). The server answers at once when
    its version differs or when `runs` changed something, else within `wait_ms`."""

    agent_version: str = Field(max_length=50)
    seen: Whole = Field(ge=0)
    wait_ms: Whole = Field(ge=0, le=60_000)
    runs: list[RunReport] = Field(max_length=64)
    host: dict[str, Any] = Field(default_factory=dict, description="facts: python, cpus, memory, gpus, clock")


class File(Request):
    path: str
    sha256: Sha256
    size_bytes: Count


class ResumeFrom(Response):
    checkpoint_id: str
    step: int
    files: list[File]


class RunSpec(Response):
    """All that is needed to execute a run."""

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
    gpu_indices: list[int]
    resume: ResumeFrom | None
    secrets: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="by name, until the user code runs; never written to disk, never sent back",
    )


class DesiredRun(Response):
    """`want`: run, or save a checkpoint and leave, or stop now. A run that is not listed any more is to be killed
    and forgotten."""

    run_id: str
    job_id: str
    epoch: int
    want: Literal["run", "checkpoint", "kill"]
    grace_ms: int
    spec: RunSpec


class SyncReply(Response):
    """`runs` is null when they are what `seen` stood for: nothing is new. Steps that have moved on, and nothing else
    to tell, are to be reported no more often than every `report_every_ms`: the server has others to hear."""

    version: int
    runs: list[DesiredRun] | None
    report_every_ms: int = Field(1000, ge=0)


class DownloadRequest(Request):
    """POST /downloads: signed URLs for content that the job may read."""

    job_id: Id
    epoch: Epoch
    sha256s: list[Sha256] = Field(max_length=2000)


class DownloadReply(Response):
    urls: dict[str, str]


class UploadRequest(Request):
    """POST /uploads: signed URLs for content the agent is about to store. Known content gets no URL."""

    job_id: Id
    epoch: Epoch
    files: list[File] = Field(max_length=2000, description="path is ignored")


class UploadReply(Response):
    urls: dict[str, str]


class CheckpointOpen(Request):
    """POST /checkpoints: open a manifest. Its pieces are pinned from now on."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    step: Count
    files: list[File] = Field(min_length=1, max_length=10_000)
    metrics: dict[str, Real] = Field(default_factory=dict)


class CheckpointOpened(Response):
    """Upload what `urls` names (sha256 -> URL), then POST /checkpoints/{checkpoint_id}/commit."""

    checkpoint_id: str
    urls: dict[str, str]


class CheckpointCommit(Request):
    job_id: Id
    epoch: Epoch


class LogChunk(Request):
    """A stored piece of the log (UTF-8 text, `line_count` newlines). `sequence` counts from 0 per run."""

    sequence: Whole = Field(ge=0, lt=2**31)
    sha256: Sha256
    size_bytes: Whole = Field(ge=1, le=2**53)
    line_count: Whole = Field(ge=0, lt=2**31)
    first_ms: Count
    last_ms: Count


class LogReport(Request):
    """POST /logs. Repeating a chunk is harmless. Accepted from ended runs too: a log is never lost to fencing."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    chunks: list[LogChunk] = Field(min_length=1, max_length=100)


class MetricReportPoint(Request):
    step: Count
    at_ms: Count
    values: dict[str, Real] = Field(max_length=100)


class MetricReport(Request):
    """POST /metrics. Repeating a step overwrites it, under the job's current epoch only."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    points: list[MetricReportPoint] = Field(min_length=1, max_length=1000)


class ArtifactReport(Request):
    """POST /artifacts: the stored files of the output directory, before a finished run reports its exit."""

    run_id: Id
    job_id: Id
    epoch: Epoch
    files: list[File] = Field(max_length=10_000)
