"""How long the jobs of simulated projects run in the mean, as the service learns it where a policy goes by queues."""

from __future__ import annotations

from app.core.elastic.queues import QueueThresholds
from app.core.model.snapshot import QueueMeans
from app.core.policies.cornucopia import COLD, kind_of
from app.simulator.lives import Life


class Habits:
    """Of jobs that have ended, by project."""

    def __init__(self) -> None:
        self._thresholds: dict[str, QueueThresholds] = {}
        self._means: tuple[QueueMeans, ...] = ()

    def with_ended(self, life: Life) -> tuple[QueueMeans, ...]:
        """The means after one more that has ended, in the order of the projects."""
        run_ms, project = life.outcome.work_ms + life.outcome.slowed_ms, life.task.project
        before = self._thresholds.get(project, COLD)
        if run_ms <= 0:  # one that never ran shows nothing
            return self._means
        after = self._thresholds[project] = before.after(kind_of(life.view), run_ms / 1000)
        if (after.interactive_s, after.batch_s) != (before.interactive_s, before.batch_s):
            self._means = tuple(
                QueueMeans(project_id, known.interactive_s, known.batch_s)
                for project_id, known in sorted(self._thresholds.items())
                if (known.interactive_s, known.batch_s) != (COLD.interactive_s, COLD.batch_s)
            )
        return self._means
