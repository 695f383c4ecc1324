"""POST /v1/jobs and /v1/sweeps: the hot path, kept short.

The routes are documented like any other, but answered in front of FastAPI: its middleware, routing and dependencies
cost more than all the rest of a submission. The body is parsed and validated once, from bytes to models, and the
answer is written once, from rows to bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from allpass.wire.jobs import Job, JobRequest, Sweep, SweepRequest
from app.api.audit import NOTED, author_of
from app.api.auth import Door, Submitter
from app.api.errors import documented, invalid_input
from app.api.once import REPLAYED
from app.api.requests import IdempotencyHeader, request_key
from app.api.views import submitted_job, submitted_sweep
from app.errors import InvariantBroken
from app.services.jobs.submit_jobs import CREATED, JobSubmitter

Body = TypeVar("Body", JobRequest, SweepRequest)
Reply = tuple[bytes, bool]  # the answer, and whether it was given before
_ERRORS = documented(401, 403, 404, 409, 413, 422, 503)
_JOBS = "POST /v1/jobs"
_SWEEPS = "POST /v1/sweeps"
_REPLAYED = (REPLAYED.lower().encode(), b"true")


class DirectSubmit:
    """ASGI: answers the two POSTs itself and hands everything else on."""

    def __init__(self, app: ASGIApp, door: Door, submitter: JobSubmitter) -> None:
        self._app = app
        self._door = door
        self._submitter = submitter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = _DIRECT.get(scope.get("path", ""))
        if handle is None or scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        content, replayed = await handle(self, scope)
        scope[NOTED] = True
        length = str(len(content)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        if replayed:
            headers.append(_REPLAYED)
        await send({"type": "http.response.start", "status": CREATED, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def job(self, scope: Scope) -> Reply:
        caller = await self._door.admit(scope, "submit")
        body = _parse(JobRequest, scope)
        key = request_key(scope, _JOBS)
        submitted = await self._submitter.submit_job(caller.project_id, body, key, author_of(scope))
        return submitted_job(submitted.jobs[0], submitted.app_name, submitted.app_version), submitted.replayed

    async def sweep(self, scope: Scope) -> Reply:
        caller = await self._door.admit(scope, "submit")
        body = _parse(SweepRequest, scope)
        key = request_key(scope, _SWEEPS)
        submitted = await self._submitter.submit_sweep(caller.project_id, body, key, author_of(scope))
        return submitted_sweep(submitted), submitted.replayed


_DIRECT: dict[str, Callable[[DirectSubmit, Scope], Awaitable[Reply]]] = {
    "/v1/jobs": DirectSubmit.job,
    "/v1/sweeps": DirectSubmit.sweep,
}


def _parse(model: type[Body], scope: Scope) -> Body:
    try:
        return model.model_validate_json(scope["allpass.body"])
    except ValidationError as error:
        raise invalid_input(error) from None


router = APIRouter(prefix="/v1", tags=["jobs"])


@router.post("/jobs", summary="Submit a job", status_code=CREATED, responses=_ERRORS)
async def submit_job(caller: Submitter, body: JobRequest, idempotency_key: IdempotencyHeader = None) -> Job:
    """Durable when this answers; the job starts within seconds. The answer is the job as it was accepted."""
    raise InvariantBroken("documents the route; DirectSubmit answers it")


@router.post("/sweeps", summary="Submit a sweep of jobs", status_code=CREATED, responses=_ERRORS)
async def submit_sweep(caller: Submitter, body: SweepRequest, idempotency_key: IdempotencyHeader = None) -> Sweep:
    """One job per parameter set: all of them are submitted, or none."""
    raise InvariantBroken("documents the route; DirectSubmit answers it")
