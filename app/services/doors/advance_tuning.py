"""From a fine-tuning that was asked for to its job: the rows are packed, the app registered, the job submitted.

Each step may be done twice with one effect, so that whoever finds one unfinished goes on with it: the process that took
the request, or the leader after a crash.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

from allpass.errors import AllpassError as RecipeError
from allpass.recipe.adapters import CONFIG_NAME, WEIGHTS_NAME
from allpass.submission import app_request, job_request
from allpass.templates import check_template
from allpass.wire.jobs import JobRequest
from app.db.access.audit import Author
from app.db.access.idempotency import RequestKey
from app.db.checkpoints.objects import claim_objects
from app.db.connection import Connection
from app.db.doors.tunings import FineTuning, end_tuning, find_tuning, set_estimate, set_job
from app.db.engine import Database
from app.db.reading.job_records import artifacts_after
from app.errors import AllpassError, InvalidInput, NotFound, StoreError, Unavailable, UserError
from app.ports.clock import Clock, IdSource
from app.ports.objects import ObjectStore, content_key
from app.services.apps.check_bundle import BundleChecks
from app.services.apps.register_app import describe_content, register_app
from app.services.doors.estimate_tuning import estimate_tuning
from app.services.doors.rows import BadRows, PackedTuning
from app.services.doors.store_file import FileShelf
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.submit_jobs import JobSubmitter

APP_NAME = "openai-fine-tuning"
ROUTE = "POST /openai/v1/fine_tuning/jobs"
_LONGEST_MESSAGE = 4000
_MOST_FILES = 1000
log = logging.getLogger(__name__)


class TuningDesk:
    """Makes jobs of tunings. `objects`, `bundles`, `submitter`: as `POST /v1/apps` and `/v1/jobs` use them."""

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        clock: Clock,
        ids: IdSource,
        shelf: FileShelf,
        bundles: BundleChecks,
        submitter: JobSubmitter,
        *,
        offers_max_age_ms: int,
    ) -> None:
        self._database = database
        self._objects = objects
        self._clock = clock
        self._ids = ids
        self._shelf = shelf
        self._bundles = bundles
        self._submitter = submitter
        self._offers_max_age_ms = offers_max_age_ms

    async def advance(self, tuning: FineTuning) -> None:
        """It is a job afterwards, or over with the reason. Where a part of the service does not answer, it stays as it
        is, to be gone on with later. Raises nothing that the caller could mend."""
        try:
            job_id = await self._submit(tuning)
        except (StoreError, Unavailable) as error:
            log.warning("%s is gone on with later: %s", tuning.id, error.message)
            return
        except (UserError, RecipeError) as error:
            await self._refuse(tuning, error)
            return
        async with self._database.transaction() as connection:
            taken = await set_job(connection, tuning.id, job_id)
        if not taken:
            await self._cancelled_meanwhile(tuning, job_id)

    async def _submit(self, tuning: FineTuning) -> str:
        packed = await self._pack(tuning)
        await self._estimate(tuning, packed)
        app_id, version = await self._register(tuning, packed)
        request = job_request(
            app_id,
            version,
            name=tuning.request["suffix"] or tuning.id,
            template=check_template(packed.template, "template"),
            parameters=packed.parameters,
            soft_deadline=tuning.request["deadline"],
        )
        assert isinstance(request, JobRequest)
        key = RequestKey(f"tuning {tuning.id}", ROUTE, hashlib.sha256(tuning.id.encode()).digest())
        author = Author(project_id=tuning.project_id, **tuning.author)
        submitted = await self._submitter.submit_job(tuning.project_id, request, key, author)
        return submitted.owner_id

    async def _estimate(self, tuning: FineTuning, packed: PackedTuning) -> None:
        told = await estimate_tuning(
            self._database,
            tuning,
            packed.template["training"],
            offers_max_age_ms=self._offers_max_age_ms,
            now_ms=self._clock.now_ms(),
        )
        if told is not None:
            async with self._database.transaction() as connection:
                await set_estimate(connection, tuning.id, told)

    async def _pack(self, tuning: FineTuning) -> PackedTuning:
        train = await self._file(tuning, "training_file", tuning.training_file_id)
        held_out = None
        if tuning.validation_file_id is not None:
            held_out = await self._file(tuning, "validation_file", tuning.validation_file_id)
        adapter = None if tuning.adapter_of is None else await self._adapter(tuning)
        template = {
            **tuning.request["template"],
            "labels": {**tuning.request["template"].get("labels", {}), "openai": tuning.id},
        }
        return await self._shelf.reader.pack(tuning.request["settings"], template, train, held_out, adapter)

    async def _file(self, tuning: FineTuning, param: str, file_id: str) -> tuple[str, bytes]:
        try:
            file = await self._shelf.find(tuning.project_id, file_id)
            return file.filename, await self._shelf.content(file)
        except NotFound:
            raise InvalidInput(f"{param}: {file_id} was deleted before it was read", param=param) from None

    async def _adapter(self, tuning: FineTuning) -> dict[str, bytes]:
        """The result of the tuning that this one goes on from."""
        assert tuning.adapter_of is not None
        async with self._database.transaction() as connection:
            files = await adapter_files(connection, tuning.project_id, tuning.adapter_of)
        found: dict[str, bytes] = {}
        for name, sha256 in files.items():
            if name in (CONFIG_NAME, WEIGHTS_NAME):
                found[name] = await self._objects.get(content_key(tuning.project_id, sha256))
        if len(found) < 2:
            what = f"model: {tuning.model} has left no adapter to go on from"
            raise InvalidInput(what, param="model")
        return found

    async def _register(self, tuning: FineTuning, packed: PackedTuning) -> tuple[str, int]:
        project_id, now_ms = tuning.project_id, self._clock.now_ms()
        async with self._database.transaction() as connection:  # before the look: what is found then, stays
            await claim_objects(connection, project_id, [packed.sha256], now_ms=now_ms)
        await self._objects.put(content_key(project_id, packed.sha256), packed.bundle, sha256=packed.sha256)
        request = app_request(APP_NAME, tuning.author["key_id"], {"pip": packed.pip}, packed.sha256, packed.entrypoint)
        content = await describe_content(self._objects, self._bundles, project_id, request)
        async with self._database.transaction() as connection:
            app = (await register_app(connection, self._ids, project_id, request, content, now_ms=now_ms)).app
        self._submitter.apps.forget(project_id, app.app_id)
        return app.app_id, app.version

    async def _refuse(self, tuning: FineTuning, error: AllpassError | RecipeError) -> None:
        """It has failed, for a reason that its owner can mend."""
        told: dict[str, Any] = {
            "code": "invalid_training_file" if isinstance(error, BadRows) else getattr(error, "error_code", "invalid"),
            "message": error.message[:_LONGEST_MESSAGE],
            "param": "training_file" if isinstance(error, BadRows) else getattr(error, "param", None),
        }
        async with self._database.transaction() as connection:
            await end_tuning(connection, tuning.id, error=told, now_ms=self._clock.now_ms())
        log.info("%s has failed: %s", tuning.id, json.dumps(told)[:200])

    async def _cancelled_meanwhile(self, tuning: FineTuning, job_id: str) -> None:
        """Another process may have gone on with it too: then the job is the same. Where its owner has cancelled it
        while its rows were read, so is the job."""
        async with self._database.transaction() as connection:
            now = await find_tuning(connection, tuning.project_id, tuning.id)
            if now is not None and now.job_id is None:
                await cancel_job(connection, self._ids, tuning.project_id, job_id, now_ms=self._clock.now_ms())


async def adapter_files(connection: Connection, project_id: str, tuning_id: str) -> dict[str, str]:
    """The hashes of what a tuning's job has left, by name; nothing of one that is not there."""
    tuning = await find_tuning(connection, project_id, tuning_id)
    if tuning is None or tuning.job_id is None:
        return {}
    files = await artifacts_after(connection, tuning.job_id, None, limit=_MOST_FILES)
    return {file.path: file.sha256 for file in files if "/" not in file.path}
