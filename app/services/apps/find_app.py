"""Look up the app version that a submission names, remembered briefly: versions never change."""

from __future__ import annotations

from app.core.model.ids import is_id
from app.db.apps.versions import AppVersion, find_version
from app.db.engine import Database
from app.errors import NotFound
from app.ports.clock import Clock

_REMEMBERED_MS = 5_000
_REMEMBERED_APPS = 10_000
_LARGEST_VERSION = 2**31 - 1


class AppFinder:
    """Finds versions. The newest one may be out of date by a few seconds: whoever writes checks it again."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[tuple[str, str, int | None], tuple[AppVersion, int]] = {}

    async def find(self, project_id: str, app_id: str, version: int | None) -> AppVersion:
        """Raises NotFound naming the field (`app_id` or `app_version`) that names nothing in this project."""
        known = self.remembered(project_id, app_id, version)
        if known is not None:
            return known
        now_ms = self._clock.now_ms()
        found = await self._look_up(project_id, app_id, version)
        if len(self._known) >= _REMEMBERED_APPS:
            self._known.clear()
        self._known[project_id, app_id, version] = (found, now_ms + _REMEMBERED_MS)
        return found

    def remembered(self, project_id: str, app_id: str, version: int | None) -> AppVersion | None:
        """What `find` would answer without asking the database, if it can."""
        known = self._known.get((project_id, app_id, version))
        return known[0] if known is not None and self._clock.now_ms() < known[1] else None

    def forget(self, project_id: str, app_id: str) -> None:
        """The newest version has changed."""
        self._known.pop((project_id, app_id, None), None)

    async def _look_up(self, project_id: str, app_id: str, version: int | None) -> AppVersion:
        if not is_id(app_id, "app"):
            raise NotFound(
                f"app_id: {app_id!r} is not an app of this project (an id looks like app_...)", param="app_id"
            )
        async with self._database.transaction() as connection:
            newest = await find_version(connection, project_id, app_id)
            if newest is None:
                raise NotFound(f"app_id: {app_id!r} is not an app of this project", param="app_id")
            if version is None or version == newest.version:
                return newest
            found = None
            if version <= _LARGEST_VERSION:
                found = await find_version(connection, project_id, app_id, version)
        if found is None:
            raise NotFound(
                f"app_version: {newest.name!r} has no version {version}; the newest is {newest.version}",
                param="app_version",
            )
        return found
