"""Submit a fine-tuning by the built-in recipe on rows that were sent to the service: the job of `allpass finetune`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from allpass.recipe.run import app_name, is_model_name
from allpass.wire.apps import AppRequest, Runtime
from allpass.wire.finetunes import FinetuneRequest
from allpass.wire.jobs import JobRequest
from app.db.access.audit import Author
from app.db.access.idempotency import RequestKey
from app.db.access.keys import key_facts
from app.db.engine import Database
from app.errors import InvalidInput
from app.ports.clock import Clock, IdSource
from app.ports.objects import ObjectStore
from app.services.apps.check_bundle import BundleChecks
from app.services.apps.keep_upload import Uploads
from app.services.apps.register_app import describe_content, register_app
from app.services.jobs.compose_job import deadline_ms
from app.services.jobs.pack_rows import PackedRows, RowsFile, RowsFound, ToPack, check_rows, pack_rows, plain_name
from app.services.jobs.submit_jobs import JobSubmitter, Submitted
from app.services.kit.apart import Desk, WorkBounds, work_apart

_BOUNDS = WorkBounds(
    "a file of rows", 120.0, 4 * 2**30, "send fewer rows, or submit it with `allpass finetune`, which packs it at home"
)
_OF_ITS_OWN = ("model", "method", "held_out")
_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Finetunes:
    """One per process."""

    database: Database
    objects: ObjectStore
    clock: Clock
    ids: IdSource
    bundles: BundleChecks
    submitter: JobSubmitter
    uploads: Uploads
    desk: Desk

    async def take_rows(self, project_id: str, name: str, content: bytes) -> tuple[str | None, RowsFound]:
        """Checks the rows; where nothing is wrong they are kept for an hour, under the hash that is returned."""
        file = RowsFile(plain_name(name, "name"), content)
        found = await work_apart(check_rows, file, _BOUNDS)
        if found.problems:
            return None, found
        return await self.uploads.keep(project_id, content), found

    async def submit(
        self, project_id: str, asked: FinetuneRequest, key: RequestKey | None, author: Author
    ) -> Submitted:
        """Raises InvalidInput that names a field, TooLarge, and what submitting a job raises."""
        settings = _settings(asked)
        if asked.soft_deadline is not None:
            deadline_ms(asked.soft_deadline, self.clock.now_ms())  # before anything is written
        name = plain_name(asked.data.name, "data.name")
        content = await self.uploads.find(project_id, asked.data.sha256, "data.sha256", "PUT /v1/finetunes/data")
        file = RowsFile(name, content)
        packed = await work_apart(
            pack_rows, ToPack(file, settings, asked.held_out, asked.template, asked.config), _BOUNDS
        )
        await self.uploads.keep(project_id, packed.bundle)
        app_id, version = await self._register(project_id, asked, packed, author)
        request = JobRequest(
            app_id=app_id,
            app_version=version,
            name=asked.name,
            template=packed.template,
            parameters=dict(packed.parameters),
            soft_deadline=asked.soft_deadline,
        )
        return await self.submitter.submit_job(project_id, request, key, author)

    async def _register(
        self, project_id: str, asked: FinetuneRequest, packed: PackedRows, author: Author
    ) -> tuple[str, int]:
        name = asked.app_name or app_name(asked.model, plain_name(asked.data.name, "data.name"))
        async with self.database.transaction() as connection:
            facts = await key_facts(connection, project_id, author.key_id)
        request = AppRequest(
            name=name,
            user_name=asked.user_name or (facts.name if facts else "") or "rest",
            runtime=Runtime(pip=list(packed.pip)),
            bundle_sha256=packed.sha256,
            entrypoint=packed.entrypoint,
        )
        content = await describe_content(self.objects, self.bundles, project_id, request)
        async with self.database.transaction() as connection:
            registered = await register_app(
                connection, self.ids, project_id, request, content, now_ms=self.clock.now_ms()
            )
        self.submitter.apps.forget(project_id, registered.app.app_id)
        return registered.app.app_id, registered.app.version


def new_desk() -> Desk:
    return Desk("file of rows", _AT_ONCE)


def _settings(asked: FinetuneRequest) -> dict[str, Any]:
    """The recipe's. Nothing in them may be a path of this host."""
    for name in _OF_ITS_OWN:
        if name in asked.settings:
            param = f"settings.{name}"
            raise InvalidInput(f"{param}: is a field of its own; give {name} beside settings", param=param)
    if "adapter" in asked.settings:
        raise InvalidInput(
            "settings.adapter: is read where it lies; submit it with `allpass finetune --adapter`",
            param="settings.adapter",
        )
    if not is_model_name(asked.model):
        raise InvalidInput(
            f"model: {asked.model!r} is no name of the hub, which looks like organisation/model, as "
            "HuggingFaceTB/SmolLM2-135M",
            param="model",
        )
    return {"model": asked.model, "method": asked.method, **asked.settings}
