"""What the Cornucopia paper simulates: which policy is played on how many GPUs with which jobs, until the last ends.

The traces have no kinds of jobs: who is interactive is drawn (`app.simulator.elastic.workload`), with the paper's
shares of jobs and of GPU time. No policy but SRTF is told how long a job runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.elastic.kinds import ElasticKind
from app.errors import InvalidInput
from app.simulator import process_pool
from app.simulator.elastic.comparing import ONE_LITERAL, POLICIES, play
from app.simulator.elastic.costs import FREE, LORA_8B, MEASURED, MODELS, TEN_SECONDS
from app.simulator.elastic.workload import SIZE_CLASSES, MixedJob, MixedOptions, mixed_jobs
from app.simulator.running import WORTH_A_PROCESS, OnProgress
from app.simulator.traces.generating import generate
from app.simulator.traces.job import Trace

GPUS = (320, 640, 960)
LITERAL, MENDED = "cornucopia-literal", "cornucopia"
COSTS = (FREE.name, MEASURED.name, TEN_SECONDS.name, LORA_8B.name)
RESIZED = (LITERAL, MENDED, "tiresias", "srtf", "elasticflow")  # FIFO never stops or resizes a job
SHARES = (0.05, 0.10)
SHARDS_PER_GPU = 2
PARTS = ("policies", "costs", "labels", "sizes", "points")
# Of the paper's Philly window (table 3), read as GPU-minutes over the fourteen days from 2017-10-12 to 25.
PAPER_JOBS, PAPER_GPU_MIN, PAPER_DAYS = 30_940, 22_551_101 + 187_421, 14
LARGEST = 32  # GPUs of a job in that window
USUAL_JOBS = 3_094  # a tenth, in a tenth of the time


@dataclass(frozen=True, slots=True)
class ElasticPlay:
    """One play. `alone`: the interactive jobs without all others."""

    gpus: int
    policy: str
    options: MixedOptions
    costs: str = FREE.name
    alone: bool = False


@dataclass(frozen=True, slots=True)
class PlayedCornucopia:
    """Figures of every play, as `app.simulator.elastic.comparing.figures` names them."""

    trace: Trace
    gpus: tuple[int, ...]
    seed: int
    parts: tuple[str, ...]
    drawn: Mapping[str, float]
    figures: Mapping[ElasticPlay, Mapping[str, Any]]


def usual_trace(jobs: int = USUAL_JOBS, seed: int = 0) -> Trace:
    """Generated jobs with Philly's published sizes and shape of durations, at the paper's rate of submissions and its
    mean GPU time of a job, none longer than all submissions take (else one of weeks would hold much of the work)."""
    found = [replace(one, gpus=min(one.gpus, LARGEST)) for one in generate("philly", jobs, seed).jobs]
    span_s = PAPER_DAYS * 86_400 * jobs / PAPER_JOBS
    longer = _factor([one.duration_s for one in found], [one.gpus for one in found], span_s)
    first_s = found[0].submit_s
    wider = span_s / (found[-1].submit_s - first_s) if found[-1].submit_s > first_s else 1.0
    scaled = [
        replace(
            one, submit_s=(one.submit_s - first_s) * wider, duration_s=round(min(span_s, one.duration_s * longer), 3)
        )
        for one in found
    ]
    return Trace.of(f"generated-{jobs}-{seed}", scaled)


def _factor(durations_s: Sequence[float], gpus: Sequence[int], most_s: float) -> float:
    """By how much durations are multiplied, and cut at `most_s`, to have the paper's mean GPU time of a job."""
    wanted_s = PAPER_GPU_MIN / PAPER_JOBS * 60 * len(gpus)
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        has_s = sum(min(most_s, one * middle) * size for one, size in zip(durations_s, gpus, strict=True))
        low, high = (middle, high) if has_s < wanted_s else (low, middle)
    return low


def plays_of(part: str, gpus: int, seed: int) -> Iterator[ElasticPlay]:
    """What a part of the evaluation needs on one cluster. Parts share plays. Raises InvalidInput for another part."""
    usual = MixedOptions(seed)
    match part:
        case "policies":
            yield ElasticPlay(gpus, "fifo", usual, alone=True)
            yield from (ElasticPlay(gpus, name, usual) for name in POLICIES)
        case "costs":
            yield from (ElasticPlay(gpus, name, usual, costs) for name in RESIZED for costs in COSTS)
        case "labels" | "sizes":
            for name in (LITERAL, MENDED):
                yield from (ElasticPlay(gpus, name, one) for one in (usual, *changed(part, usual)))
        case "points":
            yield from (ElasticPlay(gpus, name, usual) for name in (LITERAL, MENDED, *ONE_LITERAL))
            yield ElasticPlay(gpus, MENDED, replace(usual, shards_per_gpu=SHARDS_PER_GPU))
        case _:
            raise InvalidInput(f"part: {part!r} is none of {', '.join(PARTS)}", param="part")


def changed(part: str, usual: MixedOptions) -> list[MixedOptions]:
    """The jobs of the experiments with wrong labels, or with jobs that are not elastic."""
    if part == "labels":
        return [replace(usual, mislabelled=share) for share in SHARES]
    return [replace(usual, inelastic=share) for share in SHARES]


def reproduce(
    trace: Trace,
    gpus: Sequence[int] = GPUS,
    seed: int = 0,
    parts: Sequence[str] = PARTS,
    progress: OnProgress | None = None,
) -> PlayedCornucopia:
    """Plays the parts on every cluster. A job that runs for no time is left out and counted.

    Raises InvalidInput where a job asks for more GPUs than the smallest cluster has.
    """
    played = _playable(trace, min(gpus))
    sizes, wanted = tuple(dict.fromkeys(gpus)), tuple(one for one in PARTS if one in parts)
    plays = list(dict.fromkeys(play for one in parts for size in sorted(sizes) for play in plays_of(one, size, seed)))
    shares = dict.fromkeys(range(len(plays)), 0.0)

    def told(place: int, share: float) -> None:
        shares[place] = share
        if progress is not None:
            progress(sum(shares.values()), len(plays))

    questions = [(played, one) for one in plays]
    many = len(played.jobs) * len(plays) >= WORTH_A_PROCESS
    answers = process_pool.answer_all(answer, questions, process_pool.usual_processes() if many else 1, told)
    drawn = drawn_of(mixed_jobs(played, MixedOptions(seed)))
    return PlayedCornucopia(played, sizes, seed, wanted, drawn, dict(zip(plays, answers, strict=True)))


def answer(question: tuple[Trace, ElasticPlay], tell: Callable[[float], None]) -> dict[str, Any]:
    """The figures of one play; none where it has no jobs."""
    trace, one = question
    jobs = [job for job in mixed_jobs(trace, one.options) if job.is_interactive or not one.alone]
    found = play(one.policy, jobs, one.gpus, MODELS[one.costs]) if jobs else {}
    tell(1.0)
    return found


def drawn_of(jobs: Sequence[MixedJob]) -> dict[str, float]:
    """Shares and lengths of the interactive jobs, and how many jobs an experiment with inelastic ones can take from."""
    short = [one for one in jobs if one.is_interactive]
    total = sum(one.duration_s * one.request for one in jobs)
    lengths = sorted(one.duration_s for one in short)
    return {
        "interactive": len(short),
        "share_of_jobs": len(short) / len(jobs),
        "share_of_gpu_time": sum(one.duration_s * one.request for one in short) / total,
        "median_interactive_s": lengths[len(lengths) // 2] if lengths else 0.0,
        "longest_interactive_s": lengths[-1] if lengths else 0.0,
        "longer_than_the_median_job": _longer(jobs, short),
        "on_several_gpus": sum(one.request >= SIZE_CLASSES[0][0] for one in jobs),
        "labelled": sum(one.label is ElasticKind.INTERACTIVE for one in jobs),
    }


def _longer(jobs: Sequence[MixedJob], short: Sequence[MixedJob]) -> int:
    """Interactive jobs that run longer than half of all jobs do."""
    middle = sorted(one.duration_s for one in jobs)[len(jobs) // 2]
    return sum(one.duration_s > middle for one in short)


def _playable(trace: Trace, least_gpus: int) -> Trace:
    kept = tuple(one for one in trace.jobs if one.duration_s > 0)
    if not kept:
        raise InvalidInput(f"trace: {trace.name} holds no job that runs for any time; give another", param="trace")
    largest = max(kept, key=lambda one: one.gpus)
    if largest.gpus > least_gpus:
        raise InvalidInput(
            f"gpus: {least_gpus} are fewer than the {largest.gpus} of job {largest.job_id}; "
            f"give --gpus {largest.gpus} or more",
            param="gpus",
        )
    return Trace(trace.name, kept, trace.left_out + len(trace.jobs) - len(kept))
