"""What the leader looks after at doors: fine-tunings that nobody made a job of, and content that may go."""

from __future__ import annotations

from app.control.context import ControlContext
from app.control.each import each_by_itself
from app.core.model.health import Chore
from app.db.doors import files, uploads
from app.db.doors.completions import delete_completions
from app.db.doors.files import DoorFile
from app.db.doors.tunings import FineTuning, end_tuning, unfinished_tunings
from app.db.doors.uploads import DoorUpload
from app.ports.objects import ObjectStore
from app.services.apps.check_bundle import BundleChecks
from app.services.doors.advance_tuning import TuningDesk
from app.services.doors.store_file import FileShelf, door_key, key_of
from app.services.jobs.submit_jobs import JobSubmitter

LEFT_AFTER_MS = 60_000  # the process that took it makes a job of it within seconds
GIVEN_UP_AFTER_MS = 3_600_000
_AT_ONCE = 100


class DoorRounds:
    """`objects`: where the content of files is."""

    def __init__(self, context: ControlContext, objects: ObjectStore) -> None:
        self._context = context
        self._objects = objects
        database, settings, clock, ids = context.database, context.settings, context.clock, context.ids
        self._tunings = TuningDesk(
            database,
            objects,
            clock,
            ids,
            FileShelf(database, objects, clock, ids),
            BundleChecks(max_bytes=settings.max_bundle_bytes),
            JobSubmitter(database, settings, clock, ids),
            offers_max_age_ms=settings.offers_gone_after_ms,
        )

    async def look(self) -> None:
        """One round."""
        context, now_ms = self._context, self._context.clock.now_ms()
        async with context.database.transaction() as connection:
            left = await unfinished_tunings(connection, before_ms=now_ms - LEFT_AFTER_MS, most=_AT_ONCE)
            old = await files.files_to_forget(
                connection, now_ms=now_ms, given_up_before_ms=now_ms - GIVEN_UP_AFTER_MS, most=_AT_ONCE
            )
            ended = await uploads.uploads_to_forget(connection, now_ms=now_ms, most=_AT_ONCE)
        await each_by_itself(context, Chore.DOORS, left, self._go_on, named=lambda one: one.id)
        await each_by_itself(context, Chore.DOORS, old, self._forget_file, named=lambda one: one.id)
        await each_by_itself(context, Chore.DOORS, ended, self._forget_parts, named=lambda one: one.id)
        await each_by_itself(context, Chore.DOORS, ["requests for text that nobody waits for"], self._forget_requests)

    async def _go_on(self, tuning: FineTuning) -> None:
        """What fails again and again ends with a word to its owner, who would wait for ever otherwise."""
        now_ms = self._context.clock.now_ms()
        if tuning.created_ms >= now_ms - GIVEN_UP_AFTER_MS:
            await self._tunings.advance(tuning)
            return
        message = "the server could not read the files in an hour; create the job again"
        error = {"code": "server_error", "message": message, "param": None}
        async with self._context.led() as connection:
            await end_tuning(connection, tuning.id, error=error, now_ms=now_ms)

    async def _forget_file(self, file: DoorFile) -> None:
        await self._objects.delete(key_of(file))
        async with self._context.led() as connection:
            await files.delete_file(connection, file.id)

    async def _forget_parts(self, upload: DoorUpload) -> None:
        async with self._context.database.transaction() as connection:
            parts = await uploads.parts_of(connection, upload.id)
        for part in parts.values():
            await self._objects.delete(door_key(upload.project_id, part.id, part.sha256))
        async with self._context.led() as connection:
            await uploads.delete_parts(connection, upload.id, sorted(parts))

    async def _forget_requests(self, _what: str) -> None:
        async with self._context.led() as connection:
            before_ms = self._context.clock.now_ms() - GIVEN_UP_AFTER_MS
            await delete_completions(connection, before_ms=before_ms)
