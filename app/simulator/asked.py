"""A simulation that somebody asks a service for: read from a file, bounded, and answered as plain values."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.core.model.node import Tier
from app.errors import InvalidInput, TooLarge
from app.simulator.dynamics import Dynamics
from app.simulator.options import Options
from app.simulator.report.charts import way_of
from app.simulator.report.svg import thinned
from app.simulator.running import JobsNeverEnd, Played, Variant, play, summary
from app.simulator.traces.generating import generate
from app.simulator.traces.importing import import_trace
from app.simulator.traces.job import Trace
from app.simulator.traces.reading import read_trace, text_of

# What is shown where nobody has named a trace. Under the paper's assumptions, which are the defaults of Options,
# `allpass` places nearly every job where it will end, and no move is seen.
WITH_MOVES = Options(knowledge="after:60:0.2", move_s=5.0)
OWN_FORMAT = "csv"
MOST_POINTS = 200


@dataclass(frozen=True, slots=True)
class TraceFile:
    """`source`: csv (our own, or the Tiresias simulator's), or whose published file it is."""

    name: str
    content: bytes
    source: str = OWN_FORMAT


@dataclass(frozen=True, slots=True)
class FoundTrace:
    """In our own columns, from which the same jobs are read."""

    text: str
    name: str
    jobs: int
    left_out: int
    span_s: float
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class Generated:
    like: str
    jobs: int
    seed: int


@dataclass(frozen=True, slots=True)
class AskedSimulation:
    """`words`: options as the command line takes them; `settings`: of policies and market. `most_jobs`: in all
    simulations together."""

    source: TraceFile | Generated
    start_s: float
    first_jobs: int | None
    policies: Sequence[str]
    words: Mapping[str, str]
    settings: Mapping[str, float]
    seeds: range
    most_jobs: int


def read_sent(file: TraceFile) -> FoundTrace:
    """Raises InvalidInput that names line, column and value."""
    trace = _trace_of(file)
    gpu_hours = sum(job.gpu_seconds for job in trace.jobs) / 3600
    return FoundTrace(text_of(trace), trace.name, len(trace.jobs), trace.left_out, trace.span_s, gpu_hours)


def play_asked(asked: AskedSimulation) -> dict[str, Any]:
    """Figures and courses of each policy. Raises InvalidInput, and TooLarge for more jobs than are played here."""
    try:
        return _played(asked)
    except (InvalidInput, JobsNeverEnd) as error:  # in the words of the command line
        param = (error.param or "policy").replace("-", "_")
        message = error.message.removeprefix("--")
        raise InvalidInput(message, param={"policy": "policies", "pool": "pools"}.get(param, param)) from None


def _played(asked: AskedSimulation) -> dict[str, Any]:
    options = _options(asked)
    variants = [Variant.plain(name) for name in dict.fromkeys(asked.policies)]
    trace = _asked_trace(asked)
    check_size(len(trace.jobs), len(variants), len(asked.seeds), asked.most_jobs)
    played = play(trace, variants, options, asked.seeds, keeps_jobs=True, keeps_course=True)
    means = summary(trace, played)["policies"]
    first = {one.name: one for one in reversed(played) if one.outcomes}
    gpu_s = sum(job.duration_s * (1 if options.gpus == "one" else job.gpus) for job in trace.jobs)
    return {
        "trace": trace.name,
        "jobs": len(trace.jobs),
        "span_s": trace.span_s,
        "gpu_hours": gpu_s / 3600,
        "seeds": len(asked.seeds),
        "options": options.told(),
        "policies": [_told(name, figures, first[name]) for name, figures in means.items()],
    }


def check_size(jobs: int, policies: int, seeds: int, most_jobs: int) -> None:
    """Raises TooLarge that names the limit."""
    if jobs * policies * seeds > most_jobs:
        raise TooLarge(
            f"{jobs:,} jobs x {policies} policies x {seeds} seeds are {jobs * policies * seeds:,} jobs to play, and "
            f"{most_jobs:,} is the most here; take fewer, or run `allpass simulate`, which has no such limit",
            param="policies",
        )


def _asked_trace(asked: AskedSimulation) -> Trace:
    if isinstance(asked.source, Generated):
        found = generate(asked.source.like, asked.source.jobs, asked.source.seed)
        return found.cut(start_s=asked.start_s, most_jobs=asked.first_jobs)
    return _trace_of(asked.source, start_s=asked.start_s, most_jobs=asked.first_jobs)


def _trace_of(file: TraceFile, *, start_s: float = 0.0, most_jobs: int | None = None) -> Trace:
    with tempfile.TemporaryDirectory(prefix="allpass-trace-") as folder:
        path = Path(folder) / file.name
        path.write_bytes(file.content)
        try:
            if file.source == OWN_FORMAT:
                return read_trace(path, start_s=start_s, most_jobs=most_jobs)
            return import_trace(file.source, path)
        except InvalidInput as error:  # nobody knows of the folder
            raise InvalidInput(error.message.replace(str(path), file.name), param="trace") from None


def _options(asked: AskedSimulation) -> Options:
    options = WITH_MOVES if isinstance(asked.source, Generated) else Options()
    for name, text in asked.words.items():
        options = options.having(name, text)
    for name, value in asked.settings.items():
        options = replace(options, tuning=options.tuning.having(name, value))
    return options


def _told(name: str, figures: Mapping[str, Any], first: Played) -> dict[str, Any]:
    ways = [way_of(outcome) for outcome in first.outcomes]
    rising = sorted(outcome.jct_ms / 1000 for outcome in first.outcomes)
    ended = [(at, (place + 1) / len(rising)) for place, at in enumerate(rising)]
    return {
        "name": name,
        "figures": {key: float(value) for key, value in figures.items() if not isinstance(value, Mapping)},
        "cost_by_provider_usd": dict(figures["cost_by_provider_usd"]),
        "gpu_hours_by_provider": dict(figures["gpu_hours_by_provider"]),
        "completion": thinned(ended, MOST_POINTS),
        "stayed": ways.count(0),
        "moved": ways.count(1),
        "rented": ways.count(2),
        "course": None if first.course is None else _course(first.course),
    }


def _course(seen: Dynamics) -> dict[str, Any]:
    places = [round(at) for at, _ in thinned([(float(at), 0.0) for at in range(len(seen.times_s))], MOST_POINTS)]
    return {
        "times_s": [seen.times_s[at] for at in places],
        "queue": [seen.queue[at] for at in places],
        **{tier.value: [seen.machines[tier][at] for at in places] for tier in Tier},
        "budget_s": [seen.budget_s[at] for at in places],
    }
