"""The class of jobs that name none: what their project has settled, remembered briefly."""

from __future__ import annotations

from allpass.wire.jobs import JobRequest, SweepRequest
from app.core.model.job import PriorityClass
from app.db.access.projects import find_project
from app.db.engine import Database
from app.ports.clock import Clock

_REMEMBERED_MS = 5_000
_REMEMBERED_PROJECTS = 10_000


def names_class(request: JobRequest | SweepRequest) -> bool:
    """Whether the template says itself of which class its jobs are."""
    return "priority_class" in request.template.model_fields_set


class DefaultClasses:
    """One per process. What it says may be out of date by a few seconds: whoever writes checks it again."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, tuple[PriorityClass, int]] = {}

    async def of(self, project_id: str) -> PriorityClass:
        """The project's default. It is there: its key was shown."""
        known, now_ms = self._known.get(project_id), self._clock.now_ms()
        if known is not None and now_ms < known[1]:
            return known[0]
        async with self._database.statement() as connection:
            found = (await find_project(connection, project_id)).default_class
        if len(self._known) >= _REMEMBERED_PROJECTS:
            self._known.clear()
        self._known[project_id] = found, now_ms + _REMEMBERED_MS
        return found

    def forget(self, project_id: str) -> None:
        """It has changed."""
        self._known.pop(project_id, None)
