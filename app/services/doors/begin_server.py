"""A job that answers for a base model: its code is ours, all else is a job's."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from allpass.archive import tar_gz
from allpass.recipe.libraries import PACKAGES
from allpass.submission import app_request
from allpass.wire.jobs import JobRequest
from allpass.wire.template import Template
from app.core.memory.catalogue import known_name, model_named
from app.core.memory.parameters import parameters_of
from app.db.access.audit import Author
from app.db.access.idempotency import RequestKey
from app.db.checkpoints.objects import claim_objects
from app.db.doors.servers import ModelServer, set_server_job
from app.db.engine import Database
from app.ports.clock import Clock, IdSource
from app.ports.objects import ObjectStore, content_key
from app.services.access.keep_secret import set_secret
from app.services.apps.check_bundle import BundleChecks
from app.services.apps.register_app import describe_content, register_app
from app.services.jobs.submit_jobs import JobSubmitter
from app.services.kit.seal import Sealer
from app.services.kit.serving_keys import ServingKeys
from app.settings import Settings

APP_NAME = "openai-serving"
TOKEN = "OPENAI_SERVING_TOKEN"  # noqa: S105 - the name of a secret
ENTRYPOINT = "serve.py"
ROUTE = "POST /openai/v1/chat/completions"
SCRIPT = '''"""Answers for a model; the code is with the agent of the machine, the settings are parameters."""

from allpass import training  # noqa: F401 - first: from here on SIGTERM is a request, also while torch is loading


def main():
    from workers.serving.serve import main as serve

    serve()


if __name__ == "__main__":
    main()
'''
_UNKNOWN_GB = 14.0  # of a model whose size is not known here
_GB = 1_000_000_000


class ServerStarter:
    """Submits jobs that serve. Starting the same server twice gives one job."""

    def __init__(
        self,
        database: Database,
        objects: ObjectStore,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        bundles: BundleChecks,
        submitter: JobSubmitter,
    ) -> None:
        self._database = database
        self._objects = objects
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._bundles = bundles
        self._submitter = submitter

    async def start(self, server: ModelServer) -> None:
        """Raises what registering an app and submitting a job raise."""
        project_id, now_ms = server.project_id, self._clock.now_ms()
        async with self._database.transaction() as connection:
            token = ServingKeys.of(self._settings).token(project_id)
            await set_secret(connection, Sealer.of(self._settings), project_id, TOKEN, token, now_ms=now_ms)
        app_id, version = await self._register(project_id, server.author["key_id"])
        request = JobRequest(
            app_id=app_id,
            app_version=version,
            name=f"serve {server.base_model}"[-100:],
            template=Template.model_validate(template_of(server)),
            parameters={
                "url": self._settings.public_url,
                "server": server.id,
                "base": server.base_model,
                "idle_s": self._settings.openai_serving_idle_s,
                "at_once": self._settings.openai_serving_at_once,
                "engine": self._settings.openai_serving_engine,
                "in_flight": self._settings.openai_serving_tokens,
            },
        )
        key = RequestKey(f"server {server.id}", ROUTE, hashlib.sha256(server.id.encode()).digest())
        author = Author(project_id=project_id, **server.author)
        submitted = await self._submitter.submit_job(project_id, request, key, author)
        async with self._database.transaction() as connection:
            await set_server_job(connection, server.id, submitted.owner_id)

    async def _register(self, project_id: str, user_name: str) -> tuple[str, int]:
        bundle, sha256 = serving_bundle()
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as connection:
            await claim_objects(connection, project_id, [sha256], now_ms=now_ms)
        await self._objects.put(content_key(project_id, sha256), bundle, sha256=sha256)
        request = app_request(APP_NAME, user_name, {"pip": list(PACKAGES)}, sha256, ENTRYPOINT)
        content = await describe_content(self._objects, self._bundles, project_id, request)
        async with self._database.transaction() as connection:
            app = (await register_app(connection, self._ids, project_id, request, content, now_ms=now_ms)).app
        self._submitter.apps.forget(project_id, app.app_id)
        return app.app_id, app.version


def template_of(server: ModelServer) -> dict[str, Any]:
    """One GPU that the weights fit on, at once: somebody is waiting."""
    return {
        "kind": "interactive",
        "start": "now",
        "sharing": False,
        "gpu": {"memory_gb": memory_gb(server.base_model)},
        "secrets": [TOKEN],
        "labels": {"openai": "serving", "model": server.base_model[-100:]},
    }


def memory_gb(base_model: str) -> float:
    """Of the GPU: weights of two bytes, and a quarter of that again, with two gigabytes, for what they compute."""
    if known_name(base_model) is None:
        return _UNKNOWN_GB
    weights_gb = 2 * parameters_of(model_named(base_model)).total / _GB
    return round(1.25 * weights_gb + 2, 1)


@cache
def serving_bundle() -> tuple[bytes, str]:
    """The code, with its hash: the same in every process of a release."""
    content = tar_gz([(ENTRYPOINT, SCRIPT.encode())])
    return content, hashlib.sha256(content).hexdigest()
