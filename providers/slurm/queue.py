"""What squeue and sacct tell of our jobs, line by line: one that cannot be read never hides the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from app.core.model.money import Money
from app.core.model.node import Tier
from app.ports.provider import Machine, MachineStatus
from providers.slurm.marks import SlurmMark, read_mark, ref_of

NAME = "slurm"
# In this order: what anybody may have written comes last. `%k` is the comment.
_COLUMNS = ("%i", "%T", "%S", "%e", "%V", "%r", "%N", "%j", "%k")
SACCT_COLUMNS = "JobID,State,Start,End,Submit,NodeList,JobName"
_JOB_ID = re.compile(r"[0-9]{1,10}")
_STATUS = {
    "PENDING": MachineStatus.BOOTING,
    "CONFIGURING": MachineStatus.BOOTING,
    "REQUEUED": MachineStatus.BOOTING,
    "RESIZING": MachineStatus.RUNNING,
    "RUNNING": MachineStatus.RUNNING,
    "SIGNALING": MachineStatus.RUNNING,
    "STAGE_OUT": MachineStatus.STOPPED,
    "STOPPED": MachineStatus.STOPPED,
    "SUSPENDED": MachineStatus.STOPPED,
    "COMPLETING": MachineStatus.STOPPED,  # its processes have been told to end, and may still be saving
}
_ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "REVOKED", "TIMEOUT",
    }
)  # fmt: skip
# Why a job waits that will not start by waiting: its jobs take the next offer at once.
_HOPELESS = (
    "Held", "BadConstraints", "PartitionDown", "PartitionInactive", "PartitionTimeLimit", "PartitionNodeLimit",
    "InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed", "launch_failed", "launch failed",
    "SPECIAL_EXIT",
)  # fmt: skip
_NO_TIMES = frozenset({"", "N/A", "NONE", "None", "Unknown", "(null)"})


@dataclass(frozen=True, slots=True)
class JobLine:
    """One of our jobs. `start_ms`: begun, or expected to; `end_ms`: ended, or the end of its time."""

    job_id: str
    state: str
    start_ms: int | None
    end_ms: int | None
    submit_ms: int | None
    reason: str
    nodes: str
    mark: SlurmMark

    @property
    def ref(self) -> str:
        return ref_of(self.job_id, self.mark.label)

    @property
    def is_live(self) -> bool:
        return self.state not in _ENDED


def squeue_format(nonce: str) -> str:
    """`nonce` begins each line of this answer and nothing else: names and comments of others may hold line breaks."""
    return "|".join((nonce, *_COLUMNS))


def read_squeue(text: str, nonce: str) -> list[JobLine]:
    """Ours, by job id. Lines of other jobs, and those that cannot be read, are left out."""
    found = {line.job_id: line for line in _lines(text, nonce)}
    return [found[job_id] for job_id in sorted(found, key=int)]


def _lines(text: str, nonce: str) -> Iterator[JobLine]:
    for row in text.split("\n"):
        cells = row.split("|")
        if len(cells) != 1 + len(_COLUMNS) or cells[0] != nonce:
            continue
        job_id, state, start, end, submit, reason, nodes, name, comment = (cell.strip() for cell in cells[1:])
        mark = read_mark(comment)
        if mark is None or mark.label != name or not _JOB_ID.fullmatch(job_id) or not state.isascii():
            continue
        times = (instant_ms(start), instant_ms(end), instant_ms(submit))
        yield JobLine(job_id, state.upper()[:40], *times, reason[:100], "" if nodes == "(null)" else nodes, mark)


def read_sacct(text: str, job_id: str, mark: SlurmMark) -> JobLine | None:
    """How a job of ours ended, as the accounting keeps it under its name: comments are kept by few clusters."""
    for row in text.split("\n"):
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) != len(SACCT_COLUMNS.split(",")) or cells[0] != job_id or cells[-1] != mark.label:
            continue
        state = (cells[1].split() or [""])[0].rstrip("+").upper()  # "CANCELLED by 1000"
        nodes = "" if cells[5] in {"None assigned", "(null)"} else cells[5]
        start_ms, end_ms, submit_ms = map(instant_ms, cells[2:5])
        return JobLine(job_id, state, start_ms, end_ms, submit_ms, "", nodes, mark)
    return None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a job may wait in the queue, as of now."""

    now_ms: int
    max_wait_ms: int

    def is_over(self, line: JobLine) -> bool:
        """Whether it has waited for too long, or will have by the time that Slurm expects to start it."""
        if line.submit_ms is None:
            return False
        return max(self.now_ms, line.start_ms or 0) - line.submit_ms > self.max_wait_ms


def machine_of(line: JobLine, patience: Patience) -> Machine:
    """A job as a machine. It is paid for from its start on: one that never had a node cost nothing."""
    has_run = bool(line.nodes) and line.start_ms is not None
    status, detail = _status(line, patience)
    ended_ms = line.end_ms if status is MachineStatus.ENDED and has_run else None
    return Machine(
        provider=NAME,
        ref=line.ref,
        label=line.mark.label,
        tier=Tier.OWN,
        status=status,
        price_per_hour=Money(line.mark.micros),
        created_ms=line.submit_ms or line.start_ms or 0,
        billed_from_ms=line.start_ms if has_run and status is not MachineStatus.BOOTING else None,
        billed_to_ms=None if ended_ms is None or line.start_ms is None else max(ended_ms, line.start_ms),
        detail=detail,
        ends_ms=line.end_ms if status is MachineStatus.RUNNING else None,
    )


def _status(line: JobLine, patience: Patience) -> tuple[MachineStatus, str]:
    if not line.is_live:
        return MachineStatus.ENDED, "" if line.state == "COMPLETED" else line.state.lower()
    if line.state in {"PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}:
        waits = f"it waits in the queue: {line.reason or line.state}"
        if line.state != "PENDING" or any(word in line.reason for word in _HOPELESS):
            return MachineStatus.STOPPED, waits
        if patience.is_over(line):
            return MachineStatus.STOPPED, f"{waits}, for longer than ALLPASS_SLURM_MAX_WAIT_S"
        return MachineStatus.BOOTING, waits
    status = _STATUS.get(line.state, MachineStatus.RUNNING)  # a word of later days: it is there
    return status, "" if line.state == "RUNNING" else line.state.lower()


def instant_ms(text: str) -> int | None:
    """Slurm's seconds since 1970 or, where it does not know SLURM_TIME_FORMAT, its own spelling in UTC."""
    if text in _NO_TIMES:
        return None
    if text.isascii() and text.isdigit() and len(text) < 13:
        return int(text) * 1000
    try:
        return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return None
