"""From a trace to the jobs of a simulation: their GPUs, their deadlines, and what is known of their run times."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

from app.errors import InvalidInput
from app.simulator.scenario import Task
from app.simulator.traces.job import Trace, TraceJob

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The predicted run time is the real one times 1 +- `error` (uniform), known after `after_s` of running."""

    known: bool = True
    after_s: float = 0.0
    error: float = 0.2

    @classmethod
    def parse(cls, text: str) -> Knowledge:
        """`submit:0.2`, `after:60:0.2`, `none`. Raises InvalidInput."""
        kind, *numbers = text.split(":")
        try:
            values = [float(number) for number in numbers]
        except ValueError:
            values = [-1.0]
        if kind == "none" and not values:
            return cls(known=False)
        if kind == "submit" and len(values) == 1 and 0 <= values[0] < 1:
            return cls(error=values[0])
        if kind == "after" and len(values) == 2 and values[0] >= 0 and 0 <= values[1] < 1:
            return cls(after_s=values[0], error=values[1])
        raise InvalidInput(
            f"knowledge {text!r} is not understood; take submit:0.2 (predicted at submission, +-20 %), after:60:0.2 "
            "(only after 60 s of running) or none",
            param="knowledge",
        )


@dataclass(frozen=True, slots=True)
class Deadlines:
    """`factors`: drawn uniformly times the run time; `constant_s`: the same for all; neither: the trace's own."""

    factors: tuple[float, float] | None = (1.0, 10.0)
    constant_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Deadlines:
        """`1-10` (times the run time), `6h`, `trace`. Raises InvalidInput."""
        if text == "trace":
            return cls(None)
        if (found := re.fullmatch(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)x?", text)) and float(found[1]) <= float(found[2]):
            return cls((float(found[1]), float(found[2])))
        if (found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)) and float(found[1]) > 0:
            return cls(None, float(found[1]) * _UNITS_S[found[2]])
        raise InvalidInput(
            f"deadlines {text!r} are not understood; take 1-10 (drawn, times the run time), 6h (the same for all) or "
            "trace (the column deadline_s)",
            param="deadlines",
        )

    def of(self, job: TraceJob, chance: random.Random) -> float:
        """Seconds from the job's submission."""
        if self.constant_s is not None:
            return self.constant_s
        if self.factors is not None:
            return job.duration_s * chance.uniform(*self.factors)
        if job.deadline_s is None:
            raise InvalidInput(
                f"job {job.job_id} of {(job.line and f'line {job.line}') or 'the trace'} has no deadline_s; "
                "give it one, or take --deadlines 1-10",
                param="deadlines",
            )
        return job.deadline_s


def tasks_of(
    trace: Trace,
    *,
    gpus: Literal["one", "trace"] = "one",
    knowledge: Knowledge,
    deadlines: Deadlines,
    seed: int,
) -> tuple[Task, ...]:
    """The trace's jobs, in its order. The same seed draws the same deadlines and errors, whatever else is asked for."""
    for_deadlines = random.Random(f"{seed} deadlines")  # noqa: S311 - a simulation
    for_errors = random.Random(f"{seed} knowledge")  # noqa: S311 - no secret
    tasks = []
    for job in trace.jobs:
        error = for_errors.uniform(-1, 1) * knowledge.error
        submit_ms, work_ms = round(job.submit_s * 1000), max(1, round(job.duration_s * 1000))
        tasks.append(
            Task(
                job_id=job.job_id,
                submit_ms=submit_ms,
                work_ms=work_ms,
                gpus=1 if gpus == "one" else job.gpus,
                deadline_ms=submit_ms + round(deadlines.of(job, for_deadlines) * 1000),
                predicted_ms=max(1, round(work_ms * (1 + error))) if knowledge.known else None,
                known_after_ms=round(knowledge.after_s * 1000),
                kind="interactive" if job.kind == "interactive" else "batch",
                saves=job.saves,
            )
        )
    return tuple(tasks)
