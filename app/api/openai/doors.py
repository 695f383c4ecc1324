"""What the routes of this door share, one for each process of the API."""

from __future__ import annotations

import asyncio
import logging

from fastapi import Request

from app.api.context import ApiContext
from app.db.doors.tunings import FineTuning
from app.services.apps.check_bundle import BundleChecks
from app.services.doors.advance_tuning import TuningDesk
from app.services.doors.assemble_upload import UploadDesk
from app.services.doors.begin_server import ServerStarter
from app.services.doors.serve_model import ModelDesk
from app.services.doors.store_file import FileShelf
from app.services.jobs.submit_jobs import JobSubmitter

_FILES_AT_ONCE = 4  # each may be held in memory
log = logging.getLogger(__name__)


class Doors:
    """`files`, `uploads`, `tunings`, `models`: the use cases. `turns`: those who send a file."""

    def __init__(self, context: ApiContext, bundles: BundleChecks, submitter: JobSubmitter) -> None:
        database, objects, clock, ids = context.database, context.objects, context.clock, context.ids
        self.files = FileShelf(database, objects, clock, ids)
        self.uploads = UploadDesk(database, objects, clock, ids, self.files)
        self.tunings = TuningDesk(
            database,
            objects,
            clock,
            ids,
            self.files,
            bundles,
            submitter,
            offers_max_age_ms=context.settings.offers_gone_after_ms,
        )
        starter = ServerStarter(database, objects, context.settings, clock, ids, bundles, submitter)
        self.models = ModelDesk(database, context.listener, clock, ids, starter, context.settings.openai_wait_s)
        self.turns = asyncio.Semaphore(_FILES_AT_ONCE)
        self._begun: set[asyncio.Task[None]] = set()

    def advance(self, tuning: FineTuning) -> None:
        """Make a job of it, while its client has the answer already. What is cut short the leader goes on with."""
        task = asyncio.create_task(self._advance(tuning))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    async def settled(self) -> None:
        """Until all that was begun here is through."""
        while self._begun:
            await asyncio.gather(*self._begun)

    async def _advance(self, tuning: FineTuning) -> None:
        """The outermost frame of it."""
        try:
            await self.tunings.advance(tuning)
        except Exception:
            log.exception("%s could not be made a job; it is tried again", tuning.id)


async def doors_of(request: Request) -> Doors:
    """Those of the app that serves this request."""
    doors: Doors = request.app.state.doors
    return doors
