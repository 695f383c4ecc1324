"""From a trace to the jobs of a simulation: their GPUs, their deadlines, and what is known of their run times."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

from app.errors import InvalidInput
from app.simulator.knowledge import Knowledge, Mistakes
from app.simulator.ranges.drawing import TaskRange, parallel_speeds
from app.simulator.scenario import Task
from app.simulator.traces.job import Trace, TraceJob

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


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
    works_ms = [max(1, round(job.duration_s * 1000)) for job in trace.jobs]
    mistakes = Mistakes(knowledge.wrong, works_ms, random.Random(f"{seed} mistakes"))  # noqa: S311 - no secret
    tasks = []
    for job, work_ms in zip(trace.jobs, works_ms, strict=True):
        factor = knowledge.factor(for_errors)
        submit_ms = round(job.submit_s * 1000)
        tasks.append(
            Task(
                job_id=job.job_id,
                submit_ms=submit_ms,
                work_ms=work_ms,
                gpus=1 if gpus == "one" else job.gpus,
                deadline_ms=submit_ms + round(deadlines.of(job, for_deadlines) * 1000),
                predicted_ms=max(1, round(mistakes.stands_for(work_ms) * factor)) if knowledge.known else None,
                known_after_ms=round(knowledge.after_s * 1000),
                refined=knowledge.refined,
                kind="interactive" if job.kind == "interactive" else "batch",
                saves=job.saves,
                elastic=None if gpus == "one" else _range_of(job),
            )
        )
    return tuple(tasks)


def _range_of(job: TraceJob) -> TaskRange | None:
    if job.most_gpus is None:
        return None
    return TaskRange(job.gpus, job.most_gpus, parallel_speeds(job.parallel, job.gpus, job.most_gpus))
