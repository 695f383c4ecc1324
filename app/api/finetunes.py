"""Fine-tunings by the built-in recipe, without the SDK: rows are checked and packed here as `allpass finetune` does."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from allpass.wire.finetunes import DataReport, FinetuneRequest, RowProblem
from allpass.wire.jobs import Job
from app.api.audit import NOTED, author_of
from app.api.auth import Submitter
from app.api.errors import documented
from app.api.once import REPLAYED
from app.api.requests import IdempotencyHeader, request_key
from app.api.uploads import read_upload
from app.api.views import submitted_job
from app.errors import InvariantBroken
from app.services.jobs.pack_rows import RowsFound
from app.services.jobs.submit_finetune import Finetunes
from app.services.jobs.submit_jobs import CREATED

router = APIRouter(prefix="/v1", tags=["jobs"])
FileName = Annotated[
    str,
    Query(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        description="Of the file; its end says how it is read: .jsonl, .json, .csv or .parquet",
        examples=["support.jsonl"],
    ),
]
FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.put(
    "/finetunes/data",
    operation_id="send_rows",
    summary="Check a file of rows",
    responses=documented(401, 403, 413, 422, 429, 503),
    openapi_extra={"requestBody": {"required": True, "content": FILE}},
)
async def send_rows(name: FileName, request: Request, caller: Submitter) -> DataReport:
    """The body is the file as it is. Each row is checked as before a submission, and the first ten that cannot be
    trained on are named with their place and a reason. A file without any is kept for an hour, to be submitted.

    A project's files are looked through one at a time: another is answered with 429 meanwhile.
    """
    finetunes: Finetunes = request.app.state.finetunes
    too_large = finetunes.uploads.too_large("body", "submit it with `allpass finetune`, which packs it at home")
    async with finetunes.desk.place(caller.project_id):
        content = await read_upload(request, finetunes.uploads.max_bytes, too_large)
        sha256, found = await finetunes.take_rows(caller.project_id, name, content)
    return _report(name, len(content), sha256, found)


@router.post(
    "/finetunes",
    operation_id="submit_finetune",
    summary="Submit a fine-tuning",
    status_code=CREATED,
    response_model=Job,
    responses=documented(401, 403, 409, 413, 422, 429, 502, 503),
)
async def submit_finetune(
    body: FinetuneRequest,
    request: Request,
    caller: Submitter,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """On rows that were sent before (`PUT /v1/finetunes/data`): they are packed as `allpass finetune` packs them, their
    app is registered, and the job is submitted. Where it fits and what it costs says `POST /v1/jobs/plan`."""
    finetunes: Finetunes = request.app.state.finetunes
    key = request_key(request.scope, "POST /v1/finetunes")
    author = author_of(request.scope)
    if author is None:
        raise InvariantBroken("only requests of a key that was let in submit jobs")
    first = await finetunes.submitter.first_answer(caller.project_id, key)
    if first is None:
        async with finetunes.desk.place(caller.project_id, None if key is None else key.key):
            first = await finetunes.submitter.first_answer(caller.project_id, key)
            if first is None:
                first = await finetunes.submit(caller.project_id, body, key, author)
    request.scope[NOTED] = True
    content = submitted_job(first.jobs[0], first.app_name, first.app_version)
    headers = {REPLAYED: "true"} if first.replayed else {}
    return Response(content, CREATED, headers, media_type="application/json")


def _report(name: str, size_bytes: int, sha256: str | None, found: RowsFound) -> DataReport:
    return DataReport(
        sha256=sha256,
        name=name,
        size_bytes=size_bytes,
        rows=found.rows,
        shape=found.shape,
        labels=found.labels,
        characters=found.characters,
        ignored=list(found.ignored),
        problems=[RowProblem(where=one.where, message=one.message, hint=one.hint) for one in found.problems],
        problem_count=found.problem_count,
    )
