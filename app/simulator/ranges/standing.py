"""Where simulated jobs stand in the three queues: by the functions that the service judges with (ADR 0119)."""

from __future__ import annotations

from collections.abc import Iterable

from app.core.elastic.kinds import ElasticKind, KindEvidence
from app.core.elastic.queues import QueueThresholds
from app.core.elastic.rules import MENDED
from app.core.elastic.sharing import COLD, GpuSharing
from app.core.elastic.standing import JobUse, QueueStanding, first_standing, standing_now
from app.simulator.lives import Life


class Queues:
    """What is kept of jobs that share machines with ranges, and the means of projects."""

    def __init__(self) -> None:
        self._kept: dict[str, QueueStanding] = {}
        self._thresholds: dict[str, QueueThresholds] = {}
        self._held: dict[str, list[tuple[int, int, int]]] = {}  # by job: from, to, and how many GPUs

    def held(self, job_id: str, from_ms: int, to_ms: int, gpus: int) -> None:
        """Its code ran with so many GPUs for so long."""
        if to_ms > from_ms:
            self._held.setdefault(job_id, []).append((from_ms, to_ms, gpus))

    def ended(self, life: Life) -> None:
        """Its running time counts in the mean of its project, where anybody looked at it."""
        job_id, project = life.task.job_id, life.task.project
        held, kept = self._held.pop(job_id, []), self._kept.pop(job_id, None)
        if kept is not None:
            run_s = sum(to_ms - from_ms for from_ms, to_ms, _ in held) / 1000
            self._thresholds[project] = self._thresholds.get(project, COLD).after(kept.kind, run_s)

    def sharing(self, lives: Iterable[Life], now_ms: int) -> GpuSharing:
        """What is known of these jobs."""
        uses, projects = {}, {}
        for life in lives:
            job_id, project = life.task.job_id, life.task.project
            evidence = _evidence(life)
            kept = self._kept.get(job_id) or first_standing(evidence)
            uses[job_id], projects[job_id] = self._use(life, kept.since_ms, now_ms), project
            self._kept[job_id] = standing_now(
                kept,
                evidence,
                uses[job_id],
                thresholds=self._thresholds.get(project, COLD),
                rules=MENDED,
                now_ms=now_ms,
            )
        standings = {job_id: self._kept[job_id] for job_id in uses}
        return GpuSharing(MENDED, standings, uses, thresholds=self._thresholds, projects=projects)

    def _use(self, life: Life, since_ms: int, now_ms: int) -> JobUse:
        held = list(self._held.get(life.task.job_id, ()))
        run = life.run
        if run is not None and run.view.trains_since_ms is not None:
            held.append((max(run.held_from_ms, run.view.trains_since_ms), now_ms, len(run.gpus)))
        if not held:
            return JobUse()
        counted = [(max(0, to_ms - max(from_ms, since_ms)), gpus) for from_ms, to_ms, gpus in held]
        asked = life.view.resources.gpus_min if life.task.elastic is None else life.task.elastic.least
        return JobUse(
            sum(long_ms * gpus for long_ms, gpus in counted) / asked / 1000,
            sum(long_ms for long_ms, _ in counted) / 1000,
            sum((to_ms - from_ms) * gpus for from_ms, to_ms, gpus in held) / 1000,
            None if run is not None else (now_ms - held[-1][1]) / 1000,
        )


def _evidence(life: Life) -> KindEvidence:
    """A trace labels who is interactive. Of others how long they are predicted to run says it, once that is known: a
    step is a second."""
    label = ElasticKind.INTERACTIVE if life.task.kind == "interactive" else None
    total_ms = life.view.total_run_ms
    return KindEvidence(
        label, steps=None if total_ms is None else max(1, total_ms // 1000), predicted_step_s=1.0 if total_ms else None
    )
