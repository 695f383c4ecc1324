"""Simulations over HTTP: what `allpass simulate` does, each in a process of its own, within limits."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from allpass.wire.simulations import SimulateRequest, Simulation, TraceFormat, TraceReport
from app.api.audit import Write
from app.api.auth import Reader, Submitter
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.finetunes import FILE
from app.api.once import answer_once, first_answer
from app.api.own_path import OwnPath
from app.api.patience import while_awaited
from app.api.requests import IdempotencyHeader
from app.api.uploads import read_upload
from app.errors import InvalidInput
from app.services.apps.keep_upload import Uploads
from app.services.jobs.pack_rows import plain_name
from app.services.kit.apart import Desk, WorkBounds, work_apart
from app.settings import Settings
from app.simulator.asked import AskedSimulation, Generated, TraceFile, check_size, play_asked, read_sent
from app.simulator.own.words import joined_words

router = APIRouter(prefix="/v1", tags=["simulations"], route_class=OwnPath)
ContextOf = Annotated[ApiContext, Depends(context_of)]
_MEMORY_BYTES = 4 * 2**30
_AT_HOME = "run `allpass simulate`, which has no such limit"
FileName = Annotated[
    str,
    Query(
        min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$", description="Of the file", examples=["seren.csv"]
    ),
]
Format = Annotated[
    TraceFormat,
    Query(
        alias="format",
        description="Of the file: csv (of `allpass trace`, or the Tiresias simulator's), or whose published log it is",
        examples=["csv"],
    ),
]


@router.put(
    "/simulations/trace",
    operation_id="send_trace",
    summary="Check a trace of jobs",
    responses=documented(401, 403, 413, 422, 429, 503),
    openapi_extra={"requestBody": {"required": True, "content": FILE}},
)
async def send_trace(
    name: FileName, request: Request, caller: Submitter, context: ContextOf, source: Format = "csv"
) -> TraceReport:
    """The body is the file as it is, packed with gzip or not: a csv of jobs, or the published log of a cluster.
    It is kept for an hour, to be simulated."""
    uploads: Uploads = request.app.state.uploads
    plain = plain_name(name, "name")
    async with _desk(request).place(caller.project_id):
        content = await read_upload(request, uploads.max_bytes, uploads.too_large("body", _AT_HOME))
        found = await work_apart(read_sent, TraceFile(plain, content, source), _bounds(context.settings))
        kept = found.text.encode()
        if len(kept) > uploads.max_bytes:
            raise uploads.too_large("body", "unpacked it is too large; " + _AT_HOME)
        sha256 = await uploads.keep(caller.project_id, kept)
    return TraceReport(
        sha256=sha256,
        name=found.name,
        jobs=found.jobs,
        left_out=found.left_out,
        span_s=found.span_s,
        gpu_hours=found.gpu_hours,
    )


@router.post(
    "/simulations",
    operation_id="simulate",
    summary="Simulate policies",
    response_model=Simulation,
    responses=documented(401, 403, 409, 413, 422, 429, 503),
)
async def simulate(
    body: SimulateRequest,
    request: Request,
    caller: Reader,
    context: ContextOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Plays the very functions that decide in production, on a virtual clock: what each policy would have cost, and
    whom it would have made wait. Nothing is rented. Jobs x policies x seeds, and the time it may take, are limited; a
    project plays one at a time.
    """
    first = await first_answer(context, request)
    if first is not None:
        return first
    settings = context.settings
    if body.trace is None:
        _check_known(body, settings)
    async with _desk(request).place(caller.project_id, idempotency_key):
        first = await first_answer(context, request)  # of the same request, which was under way
        if first is not None:
            return first
        source = await _source(body, request, caller.project_id)
        asked = work_apart(play_asked, _asked(body, source, settings), _bounds(settings))
        found = await while_awaited(request, asked)
    simulation = Simulation.model_validate(found)

    async def act(write: Write) -> Simulation:
        return simulation

    return await answer_once(context, request, act)


def new_desk() -> Desk:
    return Desk("simulation", 1)


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.simulating
    return desk


def _bounds(settings: Settings) -> WorkBounds:
    return WorkBounds("this simulation", settings.simulation_s, _MEMORY_BYTES, f"take fewer jobs, or {_AT_HOME}")


def _check_known(body: SimulateRequest, settings: Settings) -> None:
    """Before a process is begun: how large a generated workload is, is known."""
    jobs = 200 if body.generated is None else body.generated.jobs
    check_size(jobs, len(set(body.policies)), body.seeds, settings.simulation_jobs)


async def _source(body: SimulateRequest, request: Request, project_id: str) -> TraceFile | Generated:
    if body.trace is not None and body.generated is not None:
        raise InvalidInput("trace: give either a trace or generated, not both", param="trace")
    if body.trace is None:
        return Generated(
            **({"like": "seren", "jobs": 200, "seed": 0} if body.generated is None else dict(body.generated))
        )
    uploads: Uploads = request.app.state.uploads
    content = await uploads.find(project_id, body.trace.sha256, "trace.sha256", "PUT /v1/simulations/trace")
    return TraceFile(f"{plain_name(body.trace.name, 'trace.name')}.csv", content)


def _asked(body: SimulateRequest, source: TraceFile | Generated, settings: Settings) -> AskedSimulation:
    given = {
        "world": body.world,
        "gpus": body.gpus,
        "market": body.market,
        "startup": body.startup,
        "knowledge": body.knowledge,
        "deadlines": body.deadlines,
        "move-seconds": None if body.move_seconds is None else f"{body.move_seconds:f}",
        "serverful-limit": None if body.serverful_limit is None else str(body.serverful_limit),
        "pool": joined_words(body.pools) if body.pools else None,
    }
    return AskedSimulation(
        source=source,
        start_s=0.0 if body.trace is None else body.trace.start_s,
        first_jobs=None if body.trace is None else body.trace.most_jobs,
        policies=body.policies,
        words={name: text for name, text in given.items() if text is not None},
        settings=body.settings,
        seeds=range(body.seed, body.seed + body.seeds),
        most_jobs=settings.simulation_jobs,
    )
