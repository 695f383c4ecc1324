"""`/v1/agent`: where rented machines call. The contract is `allpass.wire.agent`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.security import HTTPBearer

from allpass.wire.agent import (
    ArtifactReport,
    CheckpointComing,
    CheckpointCommit,
    CheckpointOpen,
    CheckpointOpened,
    DamageAnswer,
    DamageReport,
    DownloadReply,
    DownloadRequest,
    Id,
    JoinReply,
    JoinRequest,
    LogReport,
    MetricReport,
    Refusal,
    SyncReply,
    SyncRequest,
    SystemReport,
    TransferReport,
    UploadReply,
    UploadRequest,
)
from allpass.wire.gangs import CheckpointCommitted
from app.api.context import ApiContext, context_of
from app.api.errors import documented
from app.api.example_ids import example_id
from app.api.measure import Tally, tally_of
from app.db.nodes.agents import NodeIdentity
from app.ports.clock import Clock
from app.services.checkpoints.commit_checkpoint import commit_checkpoint
from app.services.checkpoints.follow_transfers import take_transfer
from app.services.checkpoints.open_checkpoint import open_checkpoint
from app.services.checkpoints.record_partial_checkpoint import record_partial_checkpoint
from app.services.checkpoints.refuse_checkpoint import refuse_checkpoint
from app.services.checkpoints.report_damage import report_damage
from app.services.checkpoints.sign_transfers import sign_downloads, sign_uploads
from app.services.kit.node_tokens import TokenMint
from app.services.kit.rate_limit import RateLimiter
from app.services.nodes.advise_node import Advisor
from app.services.nodes.authenticate_node import authenticate_node
from app.services.nodes.join_node import join_node
from app.services.nodes.sync_agent import sync_agent
from app.services.runs.record_artifacts import record_artifacts
from app.services.runs.record_logs import record_logs
from app.services.runs.record_metrics import record_metrics
from app.services.runs.record_system import record_system
from app.settings import Settings

router = APIRouter(prefix="/v1/agent", tags=["agent"])

_ANY = documented(401, 409, 413, 422, 503)
_FENCED = documented(401, 404, 409, 413, 422, 503)
_OBJECTS = documented(401, 404, 409, 413, 422, 502, 503)
_PACED_FENCED = documented(401, 404, 409, 413, 422, 429, 503)
_PACED_OBJECTS = documented(401, 404, 409, 413, 422, 429, 502, 503)

ContextOf = Annotated[ApiContext, Depends(context_of)]
AGENTS_AT_ONCE = 16
_PROBES_PER_S, _PROBES_AT_ONCE = 1 / 600, 3  # an agent asks once, and again when it is started again
_BURST_S = 20  # of a node's rates: what comes at the end of some runs is not kept waiting


async def turns_of(request: Request) -> asyncio.Semaphore:
    """Agents take turns at the database, `AGENTS_AT_ONCE` at a time."""
    turns: asyncio.Semaphore = request.app.state.turns
    return turns


async def advisor_of(request: Request) -> Advisor:
    """What agents are told of the jobs to come, from what all of a project share."""
    advisor: Advisor = request.app.state.advisor
    return advisor


@dataclass(frozen=True, slots=True)
class NodeRates:
    """What one node may send, whatever its jobs write: others have words and points too."""

    points: RateLimiter
    chunks: RateLimiter
    probes: RateLimiter

    @classmethod
    def of(cls, settings: Settings, clock: Clock) -> NodeRates:
        points, chunks = settings.node_points_per_s, settings.node_chunks_per_s
        return cls(
            RateLimiter(points, round(_BURST_S * points) or 1, clock, what="metric points", whose="of this node"),
            RateLimiter(chunks, round(_BURST_S * chunks) or 1, clock, what="pieces of logs", whose="of this node"),
            RateLimiter(_PROBES_PER_S, _PROBES_AT_ONCE, clock, what="probes", whose="of this node"),
        )


async def rates_of(request: Request) -> NodeRates:
    rates: NodeRates = request.app.state.node_rates
    return rates


TurnsOf = Annotated[asyncio.Semaphore, Depends(turns_of)]
AdvisorOf = Annotated[Advisor, Depends(advisor_of)]
TallyOf = Annotated[Tally, Depends(tally_of)]
RatesOf = Annotated[NodeRates, Depends(rates_of)]


_NODE_TOKEN = HTTPBearer(
    auto_error=False,
    scheme_name="NodeToken",
    description="The token of one rented machine, which gets it from `/v1/agent/join`. It opens `/v1/agent` alone, for "
    "the jobs of that machine, until the machine is given back.",
)
_JOIN_TOKEN = HTTPBearer(
    auto_error=False,
    scheme_name="JoinToken",
    description="What a machine is started with. One machine can exchange it for its node's token, and only in time.",
)


async def calling_node(
    context: ContextOf,
    turns: TurnsOf,
    _: Annotated[object, Depends(_NODE_TOKEN)],
    authorization: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> NodeIdentity:
    async with turns:
        return await authenticate_node(context.database, authorization)


OpenedId = Annotated[Id, Path(description="`checkpoint_id` of the opened one", examples=[example_id("ckpt")])]
CallingNode = Annotated[NodeIdentity, Depends(calling_node)]


@router.post("/join", operation_id="agent_join", summary="Become a node", responses=_ANY)
async def join(
    context: ContextOf,
    turns: TurnsOf,
    request: JoinRequest,
    _: Annotated[object, Depends(_JOIN_TOKEN)],
    authorization: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> JoinReply:
    """A machine's first call. The same machine gets the same answer again; another one with its join token does not."""
    async with turns:
        mint = TokenMint.of(context.settings)
        return await join_node(context.database, mint, authorization, request, now_ms=context.clock.now_ms())


@router.post("/sync", operation_id="agent_sync", summary="Report and hear what should be", responses=_ANY)
async def sync(
    context: ContextOf, turns: TurnsOf, advisor: AdvisorOf, node: CallingNode, request: SyncRequest
) -> SyncReply:
    """Report what is, hear what should be; waits up to `wait_ms` for news."""
    return await sync_agent(
        context.database, context.listener, context.settings, context.clock, context.ids, turns, advisor, node, request
    )


@router.post(
    "/downloads", operation_id="agent_sign_downloads", summary="Ask for links to read from", responses=_OBJECTS
)
async def downloads(context: ContextOf, node: CallingNode, request: DownloadRequest) -> DownloadReply:
    """Signed URLs for the job's code and checkpoints."""
    return await sign_downloads(
        context.database,
        context.objects,
        node,
        request,
        now_ms=context.clock.now_ms(),
        ttl_s=context.settings.signed_url_ttl_s,
    )


@router.post("/uploads", operation_id="agent_sign_uploads", summary="Ask for links to store to", responses=_OBJECTS)
async def uploads(context: ContextOf, node: CallingNode, request: UploadRequest) -> UploadReply:
    """Signed URLs for content that is not stored yet."""
    return await sign_uploads(
        context.database,
        context.objects,
        node,
        request,
        now_ms=context.clock.now_ms(),
        ttl_s=context.settings.signed_url_ttl_s,
    )


@router.post("/checkpoints", operation_id="agent_open_checkpoint", summary="Open a checkpoint", responses=_OBJECTS)
async def open_(context: ContextOf, node: CallingNode, request: CheckpointOpen) -> CheckpointOpened:
    """Open a manifest, or find the one that the same request opened before."""
    return await open_checkpoint(
        context.database,
        context.objects,
        context.ids,
        node,
        request,
        now_ms=context.clock.now_ms(),
        ttl_s=context.settings.signed_url_ttl_s,
    )


@router.post(
    "/checkpoints/coming",
    operation_id="agent_note_coming",
    summary="Tell of a checkpoint that is being written",
    responses=_OBJECTS,
)
async def coming(context: ContextOf, node: CallingNode, request: CheckpointComing) -> UploadReply:
    """Signed URLs for parts that are not stored yet; those that are may be fetched ahead."""
    return await record_partial_checkpoint(
        context.database,
        context.objects,
        context.ids,
        node,
        request,
        now_ms=context.clock.now_ms(),
        ttl_s=context.settings.signed_url_ttl_s,
    )


@router.post(
    "/refusals",
    status_code=204,
    operation_id="agent_report_refusal",
    summary="Say that a checkpoint cannot be kept",
    responses=_FENCED,
)
async def refused(context: ContextOf, node: CallingNode, request: Refusal) -> None:
    """The job's owner is told, and no plan moves the job until a checkpoint of it is kept."""
    await refuse_checkpoint(context.database, context.ids, node, request, now_ms=context.clock.now_ms())


@router.post(
    "/transfers",
    status_code=204,
    operation_id="agent_report_transfer",
    summary="Say how far a long transfer is",
    responses=_FENCED,
)
async def transfers(context: ContextOf, node: CallingNode, request: TransferReport) -> None:
    """Who waits for these bytes is patient as long as they come."""
    await take_transfer(context.database, node, request, now_ms=context.clock.now_ms())


@router.post(
    "/checkpoints/{checkpoint_id}/commit",
    operation_id="agent_commit_checkpoint",
    summary="Commit a checkpoint",
    responses=_OBJECTS,
)
async def commit(
    context: ContextOf, node: CallingNode, checkpoint_id: OpenedId, request: CheckpointCommit
) -> CheckpointCommitted:
    """Commit it, once every piece is stored."""
    return await commit_checkpoint(
        context.database,
        context.objects,
        node,
        checkpoint_id,
        request,
        keep_last=context.settings.checkpoint_keep_last,
        now_ms=context.clock.now_ms(),
    )


@router.post(
    "/checkpoints/{checkpoint_id}/damaged",
    operation_id="agent_report_damage",
    summary="Report a damaged checkpoint",
    responses=_OBJECTS,
)
async def damaged(
    context: ContextOf, node: CallingNode, checkpoint_id: OpenedId, request: DamageReport
) -> DamageAnswer:
    """A piece of what the run begins with cannot be read: hear what to begin with instead."""
    return await report_damage(context.database, context.objects, node, checkpoint_id, request, context.clock)


@router.post(
    "/logs",
    status_code=204,
    operation_id="agent_report_logs",
    summary="Report stored pieces of a log",
    responses=_PACED_OBJECTS,
)
async def logs(context: ContextOf, node: CallingNode, request: LogReport, tally: TallyOf, rates: RatesOf) -> None:
    """Index stored pieces of a log."""
    rates.chunks.take(node.node_id, len(request.chunks))
    await record_logs(context.database, context.objects, node, request, now_ms=context.clock.now_ms())
    tally.took_logs(request)


@router.post(
    "/metrics", status_code=204, operation_id="agent_report_metrics", summary="Report metrics", responses=_PACED_FENCED
)
async def metrics(context: ContextOf, node: CallingNode, request: MetricReport, tally: TallyOf, rates: RatesOf) -> None:
    """Keep measured values by step."""
    rates.points.take(node.node_id, len(request.points))
    await record_metrics(context.database, node, request, now_ms=context.clock.now_ms())
    tally.took_metrics(request)


@router.post(
    "/system", status_code=204, operation_id="agent_report_system", summary="Report use", responses=_PACED_FENCED
)
async def system(context: ContextOf, node: CallingNode, request: SystemReport, rates: RatesOf) -> None:
    """Keep what a run's processes and GPUs use, by instant."""
    rates.points.take(node.node_id, len(request.samples))
    await record_system(context.database, node, request)


@router.post(
    "/artifacts", status_code=204, operation_id="agent_report_artifacts", summary="Report artifacts", responses=_OBJECTS
)
async def artifacts(context: ContextOf, node: CallingNode, request: ArtifactReport) -> None:
    """Register the files that the job leaves behind."""
    await record_artifacts(context.database, context.objects, node, request, now_ms=context.clock.now_ms())
