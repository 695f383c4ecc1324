"""Recognises a process that ended because memory ran out, and says what that means for its job."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from app.core.lifecycle import Outcome
from app.core.model.job import JobEnd, JobState, Resources
from app.core.model.run import RunEnd

RETRIES = 1
_KILLED = 128 + 9
_GIB = 1024**3

_GPU = re.compile(
    r"\bOutOfMemoryError\b.{0,200}\b(CUDA|HIP|GPU)\b"
    r"|(CUDA|HIP) (error: )?out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|cudaErrorMemoryAllocation"
)
_HOST = re.compile(r"DefaultCPUAllocator: (can't|not enough) .{0,20}memory|^MemoryError\b", re.MULTILINE)


class Ran(StrEnum):
    """Whose memory ran out."""

    GPU = "gpu"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class RentedMemory:
    """What the process had, as its node was rented."""

    gpu_type: str
    gpu_memory_bytes: int
    memory_bytes: int


def ran_out(exit_code: int | None, last_lines: str) -> Ran | None:
    """Whose memory ran out, as torch, CUDA or the kernel say it; None when nothing says so.

    137 is how a shell tells of a child that was killed: inside a machine's own limits that is its memory.
    """
    if exit_code is None or exit_code == 0:
        return None
    if _GPU.search(last_lines):
        return Ran.GPU
    return Ran.HOST if exit_code == _KILLED or _HOST.search(last_lines) else None


def raised(resources: Resources, kind: Ran, machine: RentedMemory) -> Resources:
    """What the job asks for from now on: more than it had."""
    if kind is Ran.GPU:
        least = max(resources.gpu_memory_bytes_min, machine.gpu_memory_bytes + 1)
        by_type = tuple(each for each in resources.gpu_memory_bytes_by_type if each[1] > least)
        return replace(resources, gpu_memory_bytes_min=least, gpu_memory_bytes_by_type=by_type)
    return replace(resources, memory_bytes_min=max(resources.memory_bytes_min, machine.memory_bytes + 1))


def judge_out_of_memory(
    kind: Ran, machine: RentedMemory, asked: Resources, *, retries: int, larger: str | None, allowed: int = RETRIES
) -> Outcome:
    """Tried once more where a larger machine is known (`larger` names it); else the job has failed, and the message
    says what would help. It is the user's to decide, so no fault is counted.

    `retries` of the `allowed` are used up; a job whose owner says how many has its other failures among them."""
    what = f"GPU memory on {machine.gpu_type} with {machine.gpu_memory_bytes / _GIB:.4g} GiB"
    if kind is Ran.HOST:
        what = f"main memory on a machine with {machine.memory_bytes / _GIB:.4g} GiB"
    if retries < allowed and larger is not None:
        message = f"ran out of {what}: is tried once more where there is more, such as {larger}"
        return Outcome(RunEnd.FAILED, JobState.WAITING, None, False, message)
    why = "again, with more than before" if retries else "and is not to be tried again (retries: 0)"
    if retries < allowed:
        why = "and nothing larger is offered"
    if retries < allowed and kind is Ran.GPU and asked.gpu_type is not None:
        why = f"and no {asked.gpu_type} with more is offered: allow other types (gpu.type)"
    fix = "ask for more (memory_gb) or load less at once"
    if kind is Ran.GPU:
        fix = "a smaller micro-batch, gradient checkpointing, shorter sequences or adapters take less"
    return Outcome(RunEnd.FAILED, JobState.FAILED, JobEnd.OUT_OF_MEMORY, False, f"ran out of {what}, {why}; {fix}")
