"""One round of the agent's protocol: it says what is, and hears what should be."""

from __future__ import annotations

import asyncio
import json
import logging

from allpass.recipe.libraries import pins
from allpass.recipe.packing import SCRIPT_NAME
from allpass.wire.agent import ComingSpan, DesiredRun, Keep, NextJob, ResumeFrom, RunSpec, SyncReply, SyncRequest
from app.core.model.node import NodeState
from app.core.model.run import RunState
from app.db.checkpoints.manifests import begins_with, get_checkpoint, learned_from, newest_before
from app.db.checkpoints.partial import coming_for
from app.db.connection import Connection
from app.db.engine import Database
from app.db.listen import Listener
from app.db.nodes.agents import NodeIdentity, orders_of, outrun_agent, set_heartbeat
from app.db.notify import NODE
from app.db.runs.desired_state import RunOrder, orders, set_resumed
from app.errors import Fenced, InvalidInput, InvariantBroken, Unauthenticated, Unavailable
from app.ports.clock import Clock, IdSource
from app.services.access.keep_secret import open_secrets
from app.services.checkpoints.resume_from import reads_listings, resume_from
from app.services.gangs.hooks import wanted_of_gang
from app.services.jobs.fill_cut import laid_out
from app.services.kit.seal import Sealer
from app.services.nodes.advise_node import Advisor
from app.services.nodes.apply_machine_report import apply_machine_report
from app.services.nodes.check_machine import give_back_if_gpus_failed, let_in
from app.services.nodes.judge_machine import give_back_if_it_does_not_compute, let_go_if_slow
from app.services.runs.apply_run_reports import apply_run_reports
from app.services.runs.capabilities import further_orders, was_given
from app.settings import Settings

log = logging.getLogger(__name__)

_CALLS_HOME = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN, NodeState.UNREACHABLE)
_NOT_YET_RUNNING = (RunState.ASSIGNED, RunState.STARTING, RunState.STANDBY, RunState.PROMOTING)
_HOST_CHARS = 16_000
_REPORT_AT_MOST_EVERY_MS = 1_000
_REPORT_COST_MS = 10  # for each agent that waits here: reports of progress take at most half of a process


async def sync_agent(
    database: Database,
    listener: Listener,
    settings: Settings,
    clock: Clock,
    ids: IdSource,
    turns: asyncio.Semaphore,
    advisor: Advisor,
    node: NodeIdentity,
    request: SyncRequest,
) -> SyncReply:
    """Take the report in, then answer: at once when something is new to the agent, else when it becomes so.

    `turns` lets so many agents at once to the database: when more call than can be served, all of them wait a little
    longer, and none is turned away after half of the work. Waits at most `request.wait_ms`, capped by
    ALLPASS_AGENT_POLL_S, and holds neither a turn nor a connection meanwhile: one indexed query when it begins, one
    per wake-up, one at the end, and what `advisor` asks. Raises Unauthenticated as soon as the node is on its way out,
    InvalidInput.
    """
    async with turns:
        now_ms = clock.now_ms()
        await _note_call(database, node, request, now_ms=now_ms)
        await _check_machine(database, settings, ids, node, request, now_ms=now_ms)
        changed = await apply_run_reports(
            database, ids, node.node_id, request.runs, now_ms=now_ms, fault_budget=settings.fault_budget
        )
        await apply_machine_report(database, ids, node, request.host, now_ms=now_ms)
    wait_s = 0.0 if changed else min(request.wait_ms / 1000, settings.agent_poll_s)
    version = await _wait_for_news(database, listener, turns, node, seen=request.seen, wait_s=wait_s, reported=changed)
    pace_ms = max(_REPORT_AT_MOST_EVERY_MS, listener.watched(NODE) * _REPORT_COST_MS)
    async with turns:
        advice = await _advice(advisor, node)
        if version == request.seen:
            return SyncReply(version=version, runs=None, report_every_ms=pace_ms, next=advice)
        async with database.transaction() as connection:
            standing = await orders(connection, node.node_id)
            lists = reads_listings(request.host)
            desired = [await _desired_run(connection, settings, clock, order, lists=lists) for order in standing]
    return SyncReply(version=version, runs=desired, report_every_ms=pace_ms, next=advice)


async def _note_call(database: Database, node: NodeIdentity, request: SyncRequest, *, now_ms: int) -> None:
    if len(json.dumps(request.host)) > _HOST_CHARS:
        raise InvalidInput(f"facts about a host have at most {_HOST_CHARS} characters of JSON", param="host")
    report = {"agent_version": request.agent_version, "host": request.host}
    async with database.statement() as connection:
        await set_heartbeat(connection, node.node_id, report, now_ms=now_ms)


async def _check_machine(
    database: Database, settings: Settings, ids: IdSource, node: NodeIdentity, request: SyncRequest, *, now_ms: int
) -> None:
    """Raises Unauthenticated for a machine that is not what was rented, or is so no longer. Before its runs are heard
    of: what ended with its GPUs is no failure of their code."""
    if node.state in _CALLS_HOME:
        promised_cuda = settings.promised_cuda
        if not await let_in(database, ids, node, request.host, promised_cuda=promised_cuda, now_ms=now_ms):
            raise Unauthenticated("this machine is not what was rented, and is given back; end this agent")
    if await give_back_if_gpus_failed(database, ids, node, request.host, now_ms=now_ms):
        raise Unauthenticated("this machine has lost its GPUs, and is given back; end this agent")
    if await give_back_if_it_does_not_compute(database, ids, node, request.host, now_ms=now_ms):
        raise Unauthenticated("a GPU of this machine does not compute, and it is given back; end this agent")
    gone_after_ms = settings.offers_gone_after_ms
    if await let_go_if_slow(database, ids, node, request.host, offers_gone_after_ms=gone_after_ms, now_ms=now_ms):
        raise Unauthenticated("this machine's link is far slower than promised, and it is given back; end this agent")


async def _advice(advisor: Advisor, node: NodeIdentity) -> list[NextJob]:
    """What the node may fetch ahead. That it cannot be said is no reason to leave those without orders who train."""
    try:
        return await advisor.next_for(node)
    except (Fenced, Unavailable):
        raise
    except Exception:
        log.exception("what %s may fetch ahead is not known", node.node_id)
        return []


async def _wait_for_news(
    database: Database,
    listener: Listener,
    turns: asyncio.Semaphore,
    node: NodeIdentity,
    *,
    seen: int,
    wait_s: float,
    reported: bool,
) -> int:
    """The version of the orders that stand, once it differs from `seen` or the time is up.

    `reported`: this very call changed something. It is answered even when that ended the node.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    with listener.watch(NODE, node.node_id) as woken:
        while True:
            woken.clear()
            async with turns, database.statement() as connection:
                standing = await orders_of(connection, node.node_id)
            if not standing.welcome and not reported:
                raise Unauthenticated("this node is being ended; end this agent")
            if standing.version < seen:
                return await _after_restore(database, turns, node, seen)
            if standing.version != seen or loop.time() >= until:
                return standing.version
            try:
                async with asyncio.timeout_at(until):
                    await woken.wait()
            except TimeoutError:
                continue  # one last look: wake-ups are hints


async def _after_restore(database: Database, turns: asyncio.Semaphore, node: NodeIdentity, seen: int) -> int:
    """The agent has seen orders that this database does not know: it was restored from an older dump. An agent ignores
    what is older than what it has seen, so the orders that stand here are given a number above that."""
    async with turns, database.transaction() as connection:
        version = await outrun_agent(connection, node.node_id, seen)
    log.warning(
        "the agent of %s has seen version %d of its orders: this database is older than that, and was restored; "
        "what it says counts from now on, as version %d",
        node.node_id,
        seen,
        version,
    )
    return version


async def _desired_run(
    connection: Connection, settings: Settings, clock: Clock, order: RunOrder, *, lists: bool
) -> DesiredRun:
    want = "standby" if order.state is RunState.STANDBY else "run"
    state, stop_mode = order.state, order.stop_mode
    if order.lead_state is RunState.STOPPING:  # a further machine of a job does what the first one is asked to
        state, stop_mode = order.lead_state, order.lead_stop_mode
    if state is RunState.STOPPING:
        if stop_mode is None:
            raise InvariantBroken(f"{order.run_id} is stopping without a stop mode")
        want = stop_mode.value
    elif order.node_rank is not None:
        want = await wanted_of_gang(connection, order) or want
    return DesiredRun.model_validate(
        {
            "run_id": order.run_id,
            "job_id": order.job_id,
            "epoch": order.epoch,
            "want": want,
            "grace_ms": order.own_grace_ms or int(settings.stop_grace_s * 1000),
            "spec": await _spec(connection, settings, clock, order, lists=lists),
            "coming": await _coming(connection, order),
            "companion": order.companion,
            "companion_of": order.companion_of,
        }
    )


async def _coming(connection: Connection, order: RunOrder) -> list[ComingSpan]:
    """What a run that stands by may fetch ahead."""
    if order.state is not RunState.STANDBY:
        return []
    return [
        ComingSpan(
            path=span.path,
            file_bytes=span.file_bytes,
            offset=span.offset_bytes,
            sha256=span.sha256,
            size_bytes=span.piece_bytes,
            start=span.start_byte,
            length=span.length_bytes,
        )
        for span in await coming_for(connection, order.run_id)
    ]


async def _spec(connection: Connection, settings: Settings, clock: Clock, order: RunOrder, *, lists: bool) -> RunSpec:
    resume = await _resume(connection, order, lists=lists)
    return RunSpec(
        app_name=order.app_name,
        job_name=order.job_name,
        project_id=order.project_id,
        bundle_sha256=order.bundle_sha256,
        bundle_size_bytes=order.bundle_size_bytes,
        # An agent of a release that knows no commands finds no script then, and says so, rather than run another.
        entrypoint="" if order.template.get("command") else order.entrypoint,
        pip=list(order.pip),
        environment_sha256=order.environment_sha256,
        base_image=order.template.get("image") or order.base_image,
        parameters=laid_out(order.parameters, order.entrypoint, order.template, order.layout),
        template=order.template,
        total_steps=order.total_steps,
        checkpoint_interval_s=order.checkpoint_interval_s,
        mean_life_s=_mean_life_s(order),
        gpu_indices=list(order.gpu_indices),
        use_gpus=list(order.use_gpus),
        layout=order.layout,
        resume=resume,
        secrets=await _secrets(connection, settings, order),
        purpose=order.purpose.value,
        log_bytes=settings.run_log_bytes,
        keep=Keep(most_bytes=settings.keep_bytes, named_bytes=settings.keep_named_bytes, every_s=settings.keep_every_s),
        pins=_pins(order, goes_on=resume is not None or order.state is RunState.STANDBY),
        **await further_orders(connection, settings, order, now_ms=clock.now_ms()),
    )


def _mean_life_s(order: RunOrder) -> float | None:
    """Who says how often to save gets that."""
    if not order.mean_life_ms or order.template.get("checkpoint_interval_s"):
        return None
    return order.mean_life_ms / 1000


def _pins(order: RunOrder, *, goes_on: bool) -> list[str]:
    """Of the built-in recipe, whose packages are ours. What begins anew takes what its machine has."""
    return pins(order.libraries, order.pip) if goes_on and order.entrypoint == SCRIPT_NAME else []


async def _secrets(connection: Connection, settings: Settings, order: RunOrder) -> dict[str, str]:
    """What its template names, until its code runs: an agent needs the values once, to start it."""
    names = order.template.get("secrets") or ()
    if not names or order.state not in _NOT_YET_RUNNING:
        return {}
    sealer = Sealer.of(settings)
    return await open_secrets(connection, sealer, order.project_id, names)


async def _resume(connection: Connection, order: RunOrder, *, lists: bool) -> ResumeFrom | None:
    """The same answer for as long as the run lives, whatever becomes of the checkpoint meanwhile."""
    if order.resumed_checkpoint_id is not None:
        told = await get_checkpoint(connection, order.resumed_checkpoint_id)
        if told is None:
            return None
        learned = told.job_id != order.job_id and await was_given(connection, order.job_id, told.checkpoint_id)
        return await resume_from(connection, told, learned=learned, lists=lists)
    checkpoint = await newest_before(connection, order.job_id, order.epoch)
    if checkpoint is None:
        checkpoint = await begins_with(connection, order.job_id)
    learned = False
    if checkpoint is None:
        checkpoint = await learned_from(connection, order.job_id)
        learned = checkpoint is not None
    step = None if checkpoint is None else 0 if learned else checkpoint.step
    if order.resumed_from_step not in (None, step):
        raise InvariantBroken(
            f"{order.run_id} was to resume at step {order.resumed_from_step}, "
            f"but the newest checkpoint of {order.job_id} before epoch {order.epoch} is of step {step}"
        )
    if checkpoint is None:
        return None
    if order.resumed_from_step is None and order.state is not RunState.STANDBY:  # which will begin with a newer one
        await set_resumed(connection, order.run_id, checkpoint.checkpoint_id, step or 0)
    return await resume_from(connection, checkpoint, learned=learned, lists=lists)
