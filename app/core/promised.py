"""What a machine's agent saw of its GPUs, against what its offer promised.

A machine may have more than was rented, and better cards. It may not have less: fewer GPUs, another card, less memory
than error correction explains, a driver older than its offer said, memory that fails, or GPUs that do not answer.
Where a machine tells nothing, nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.core.gpu_names import is_as_promised
from app.core.model.node import MOST_GPUS
from app.core.model.offer import Offer

CHECKPOINTS_BESIDE = 2
"""The one that a run begins with, and the one that it writes."""

DISK_PART = 0.75
"""Of the promised disk, free when the agent begins: a system and an image may lie on it."""

MEMORY_PART = 0.92
"""Of the promised memory: companies round up, and error correction takes a sixteenth of some cards."""

_MIB = 1024**2
_MOST_NUMBER = 2**53
_LONGEST = 300
_GIB = 1024**3


class GpuInquiry(StrEnum):
    """How it went when the agent asked for its machine's GPUs."""

    ANSWERS = "answers"
    FAILS = "fails"  # nvidia-smi is there, and says nothing that makes sense, or nothing in time
    ABSENT = "absent"  # there is no nvidia-smi
    SHARED = "shared"  # the machine is a process of a host whose GPUs are not its own


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """One GPU. None: it does not tell. `is_cut`: into instances (MIG), so that its memory is not one job's."""

    name: str
    memory_bytes: int | None
    ecc_errors: int | None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class GpuReport:
    """What an agent saw when it started. `cuda`: the newest that the driver knows. `why`: in case that it failed."""

    seen: GpuInquiry
    count: int = 0
    gpus: tuple[SeenGpu, ...] = ()
    driver: str = ""
    cuda: float | None = None
    why: str = ""


def report_of(host: Mapping[str, Any]) -> GpuReport | None:
    """What the agent's facts about its host say; None where they do not: an agent of an older release, or of a newer
    one that says it in words we do not know. Whatever else is in there is left out, not believed."""
    told = host.get("nvidia_smi")
    state = told.get("state") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(state, str) or state not in set(GpuInquiry):
        return None
    listed = host.get("gpus")
    gpus = tuple(map(_gpu, listed[:MOST_GPUS])) if isinstance(listed, list) else ()
    count = _count(told.get("count"))
    return GpuReport(
        seen=GpuInquiry(state),
        count=len(gpus) if count is None else count,
        gpus=gpus,
        driver=_text(told.get("driver")),
        cuda=_version(told.get("cuda")),
        why=_text(told.get("message")),
    )


def breaches(offer: Offer, report: GpuReport, *, cuda: float = 0.0) -> tuple[str, ...]:
    """In words, what the machine lacks of what was promised; empty when it is what was rented, or does not tell.
    `cuda`: what its company promised that the driver knows at least."""
    if report.seen is GpuInquiry.FAILS:
        return (f"nvidia-smi does not answer there: {report.why or 'it says nothing'}",)
    if report.seen is not GpuInquiry.ANSWERS:
        return ()
    return tuple(_breaches(offer, report, cuda))


def disk_breach(offer: Offer, host: Mapping[str, Any]) -> str:
    """In words, what the disk of a machine that has just begun lacks; empty where it is as promised, or not told."""
    free_bytes = free_disk_of(host)
    if free_bytes is None or free_bytes >= offer.disk_bytes * DISK_PART:
        return ""
    return f"its disk has {free_bytes / _GIB:.1f} GiB free, {offer.disk_bytes / _GIB:.1f} GiB were promised"


def disk_shortage(host: Mapping[str, Any], checkpoint_bytes: int) -> str:
    """In words, that a job's newest checkpoint leaves no room for the next one beside it; empty where it does."""
    free_bytes = free_disk_of(host)
    need = CHECKPOINTS_BESIDE * checkpoint_bytes
    if free_bytes is None or need <= free_bytes:
        return ""
    return (
        f"its checkpoints are {checkpoint_bytes / _GIB:.1f} GiB each, and the disk of its machine has "
        f"{free_bytes / _GIB:.1f} GiB free: {CHECKPOINTS_BESIDE} of them may have to lie there at once; rent more"
    )


def free_disk_of(host: Mapping[str, Any]) -> int | None:
    """In bytes, where the agent worked as it began; None: it does not tell."""
    told = host.get("disk")
    return _count(told.get("free_bytes")) if isinstance(told, Mapping) else None


def is_judged(report: GpuReport | None) -> bool:
    """Whether the machine told enough to be compared with its offer."""
    return report is not None and report.seen in {GpuInquiry.ANSWERS, GpuInquiry.FAILS}


def why_not_judged(report: GpuReport | None) -> str:
    """What is said of a machine that was let in without a look at its GPUs."""
    if report is None:
        return "its agent is of another release, and does not tell of its GPUs in a way that is known here"
    if report.seen is GpuInquiry.SHARED:
        return "it is a process of a host whose GPUs are not its own"
    return "it has no nvidia-smi"


def _breaches(offer: Offer, report: GpuReport, cuda: float) -> Iterator[str]:
    if report.count < offer.gpu_count:
        yield f"it has {report.count} GPUs, {offer.gpu_count} were promised"
    rented = report.gpus[: offer.gpu_count]  # what jobs are given; it may have others beside
    others = sorted({gpu.name for gpu in rented if not is_as_promised(offer.gpu_type, gpu.name)})
    if others:
        yield f"its GPU is {' and '.join(others)}, {offer.gpu_type} was promised"
    least = min((gpu.memory_bytes for gpu in rented if gpu.memory_bytes and not gpu.is_cut), default=None)
    if least is not None and least < offer.gpu_memory_bytes * MEMORY_PART:
        yield f"a GPU has {least / _GIB:.1f} GiB, {offer.gpu_memory_bytes / _GIB:.1f} GiB were promised"
    if report.cuda is not None and report.cuda < cuda:
        driver = f"its driver {report.driver}" if report.driver else "its driver"
        yield f"{driver} knows CUDA up to {report.cuda:.1f}, {cuda:.1f} was promised"
    errors = sum(gpu.ecc_errors or 0 for gpu in rented)
    if errors:
        yield f"its GPU memory has had {errors} errors that could not be corrected since it started"


def _gpu(told: Any) -> SeenGpu:
    """One that is not told in our words is a GPU all the same."""
    facts = told if isinstance(told, Mapping) else {}
    memory_mib = _count(facts.get("memory_mib"))
    return SeenGpu(
        name=_text(facts.get("name")),
        memory_bytes=memory_mib * _MIB if memory_mib else None,
        ecc_errors=_count(facts.get("ecc_errors")),
        is_cut=facts.get("mig") is True,
    )


def _count(told: Any) -> int | None:
    is_count = isinstance(told, int) and not isinstance(told, bool) and 0 <= told <= _MOST_NUMBER
    return told if is_count else None


def _text(told: Any) -> str:
    return (
        "".join(letter if letter.isprintable() else " " for letter in told[:_LONGEST]) if isinstance(told, str) else ""
    )


def _version(told: Any) -> float | None:
    """ "13.0" as it compares; None for what is no version of CUDA."""
    major, _, minor = told.partition(".") if isinstance(told, str) else ("", "", "")
    digits = major + (minor or "0")
    if not (digits.isascii() and digits.isdigit()) or len(major) not in (1, 2) or len(minor) > 1:
        return None
    return float(f"{major}.{minor or 0}")
