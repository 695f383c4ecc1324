"""What runs leave behind, as rows: for tests that read it."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import Any

from app.api.context import ApiContext
from app.api.views import instant
from app.core import codec
from app.core.board import Board
from app.core.defragmentation import Goal
from app.core.model.checkpoint import CheckpointState
from app.core.model.job import JobState
from app.core.model.node import Tier
from app.core.model.pool import JOINED, Pool
from app.core.model.run import RunEnd, RunState
from app.core.model.snapshot import Snapshot
from app.core.policies import policy_named
from app.core.policy import PolicyConfig, PolicyState
from app.core.recording import RecordedDecision, Recorder
from app.core.replaying import named_ids
from app.db import notify
from app.db.decisions.ticks import TickRow, add_tick
from app.db.defragmentation import defragmentations
from app.db.defragmentation.defragmentations import DefragRow
from app.db.pools.pools import PoolRow, add_pool
from app.db.tables import (
    artifacts,
    checkpoint_files,
    checkpoint_pieces,
    checkpoints,
    host_machines,
    hosts,
    ledger,
    log_chunks,
    metric_points,
)
from app.ports.objects import content_key
from app.services.standby.begin_standby import begin_standby
from tests.api.conftest import Tenant
from tests.core.samples import CONFIG
from tests.seeds import T0_MS, new_id, seed_job, seed_node, seed_run


async def add_job(context: ApiContext, tenant: Tenant, **columns: Any) -> str:
    """A job of the tenant's app, `queued` unless said otherwise."""
    async with context.database.transaction() as connection:
        return await seed_job(connection, tenant.project_id, (tenant.app_id, tenant.version_id), **columns)


async def add_run(
    context: ApiContext, tenant: Tenant, job_id: str, *, epoch: int = 1, tier: Tier = Tier.MARKETPLACE, **columns: Any
) -> tuple[str, str]:
    """A live run of the job on a node of its own: (run id, node id)."""
    node = {name.removeprefix("node_"): columns.pop(name) for name in list(columns) if name.startswith("node_")}
    async with context.database.transaction() as connection:
        node_id = await seed_node(connection, tenant.project_id, tier=tier, **node)
        run_id = await seed_run(
            connection, tenant.project_id, job_id, node_id, epoch=epoch, **({"tier": tier} | columns)
        )
    return run_id, node_id


async def add_lender(context: ApiContext, tenant: Tenant, *, stands_by: bool = False, **columns: Any) -> str:
    """A job that runs on a host of a pool, all of whose GPUs are its own; or one that is about to stand by."""
    steady = {"state": JobState.RUNNING, "epoch": 1, "first_running_ms": T0_MS, "saves_ms": T0_MS, "step": 50}
    job_id = await add_job(context, tenant, **(steady | columns))
    pool, host_id = f"p-{secrets.token_hex(8)}", new_id("host")
    place = {"node_provider": JOINED, "node_region": pool, "node_host": f"{host_id}/A100", "node_gpu_count": 2}
    _, node_id = await add_run(context, tenant, job_id, tier=Tier.OWN, gpu_indices=(0, 1), **place)
    now_ms = context.clock.now_ms()
    since = {"created_ms": now_ms, "started_ms": now_ms}
    async with context.database.transaction() as connection:
        await add_pool(connection, PoolRow(Pool(pool), "", {}, now_ms))
        host = {"id": host_id, "pool": pool, "name": "one", "nonce_sha256": secrets.token_bytes(32), "boot_id": "1"}
        await connection.execute(hosts.insert().values(**host, facts={}, joined_ms=now_ms, heard_ms=now_ms))
        machine = {"id": new_id("mach"), "host_id": host_id, "node_id": node_id, "gpu_indices": [0, 1]}
        await connection.execute(host_machines.insert().values(**machine, price_micros_per_hour=0, **since))
        if stands_by:
            until_ms = now_ms + 3_600_000
            await begin_standby(connection, context.ids, tenant.project_id, job_id, until_ms=until_ms, now_ms=now_ms)
    return job_id


async def add_ended_run(context: ApiContext, tenant: Tenant, job_id: str, *, epoch: int = 1) -> str:
    """A run that is over."""
    run_id, _ = await add_run(
        context, tenant, job_id, epoch=epoch, state=RunState.ENDED, end_reason=RunEnd.DEMOTED, ended_ms=T0_MS + 1
    )
    return run_id


async def add_chunk(
    context: ApiContext,
    tenant: Tenant,
    job_id: str,
    run_id: str,
    epoch: int,
    sequence: int,
    text: str,
    *,
    stored: bool = True,
) -> None:
    """A piece of the log, as the agent's report leaves it; `stored` False: its bytes are lost."""
    data = text.encode()
    sha256 = hashlib.sha256(data).hexdigest()
    if stored:
        await context.objects.put(content_key(tenant.project_id, sha256), data, sha256=sha256)
    async with context.database.transaction() as connection:
        await connection.execute(
            log_chunks.insert().values(
                job_id=job_id,
                epoch=epoch,
                sequence=sequence,
                run_id=run_id,
                sha256=sha256,
                size_bytes=len(data),
                line_count=text.count("\n"),
                first_ms=T0_MS,
                last_ms=T0_MS,
            )
        )
        await notify.job(connection, job_id)


async def add_metric(
    context: ApiContext, job_id: str, step: int, *, epoch: int = 1, at_ms: int | None = None, **values: float
) -> None:
    row = {"job_id": job_id, "step": step, "epoch": epoch, "at_ms": T0_MS + step if at_ms is None else at_ms}
    async with context.database.transaction() as connection:
        await connection.execute(metric_points.insert().values(**row, values=values))


async def add_checkpoint(
    context: ApiContext,
    tenant: Tenant,
    job_id: str,
    run_id: str,
    step: int,
    *,
    state: CheckpointState = CheckpointState.COMMITTED,
    paths: tuple[str, ...] = (),
) -> str:
    checkpoint_id = new_id("ckpt")
    async with context.database.transaction() as connection:
        await connection.execute(
            checkpoints.insert().values(
                id=checkpoint_id,
                project_id=tenant.project_id,
                job_id=job_id,
                run_id=run_id,
                epoch=1,
                step=step,
                state=state,
                manifest_sha256="a" * 64,
                size_bytes=len(paths),
                metrics={"loss": 1.5},
                opened_ms=T0_MS,
                committed_ms=T0_MS + step if state is CheckpointState.COMMITTED else None,
            )
        )
        for path in paths:
            await connection.execute(
                checkpoint_files.insert().values(checkpoint_id=checkpoint_id, path=path, size_bytes=1)
            )
            await connection.execute(
                checkpoint_pieces.insert().values(
                    checkpoint_id=checkpoint_id,
                    path=path,
                    position=0,
                    sha256="c" * 64,
                    size_bytes=1,
                    start_byte=0,
                    length_bytes=1,
                )
            )
    return checkpoint_id


async def add_artifact(context: ApiContext, job_id: str, run_id: str, path: str, sha256: str = "d" * 64) -> None:
    async with context.database.transaction() as connection:
        await connection.execute(
            artifacts.insert().values(
                job_id=job_id, path=path, run_id=run_id, sha256=sha256, size_bytes=7, created_ms=T0_MS
            )
        )


async def add_ledger_line(
    context: ApiContext, tenant: Tenant, node_id: str, job_id: str | None, run_id: str | None, payer: str, micros: int
) -> None:
    async with context.database.transaction() as connection:
        await connection.execute(
            ledger.insert().values(
                project_id=tenant.project_id,
                node_id=node_id,
                run_id=run_id,
                job_id=job_id,
                payer=payer,
                from_ms=T0_MS,
                to_ms=T0_MS + 1,
                amount_micros=micros,
            )
        )


async def add_decision(context: ApiContext, seen: Snapshot, at_ms: int = T0_MS, config: PolicyConfig = CONFIG) -> int:
    """A decision of the default policy on this, stored."""
    plan, after = policy_named("allpass").decide(Board.of(seen), PolicyState(), config)
    record = Recorder().record(RecordedDecision(seen, PolicyState(), config, plan))
    stored = codec.encode(replace(plan, waiting=()))
    named = sorted(named_ids(plan.actions))
    async with context.database.transaction() as connection:
        row = TickRow(at_ms, 1, "tick", "allpass", after, stored, 0, 7, record=record, named_ids=named)
        return await add_tick(connection, row)


async def add_defragmentation(context: ApiContext) -> str:
    """One that is under way; there may be one before."""
    async with context.database.transaction() as connection:
        row = DefragRow(context.ids.new("dfrg"), Goal.POOLS, None, "owner", 20, "asked", context.clock.now_ms())
        if await defragmentations.add_defragmentation(connection, row):
            return row.id
        other = await defragmentations.open_of_goal(connection, Goal.POOLS)
        assert other is not None
        return other.id


async def add_reservable(context: ApiContext) -> dict[str, Any]:
    """A pool with a host of two GPUs: what a request for one of them in an hour says."""
    pool, now_ms = f"p-{secrets.token_hex(8)}", context.clock.now_ms()
    gpus = [{"index": index, "type": "A100", "memory_bytes": 40 * 2**30} for index in range(2)]
    host = {"id": new_id("host"), "pool": pool, "name": "one", "nonce_sha256": secrets.token_bytes(32), "boot_id": "1"}
    facts = {"cpus": 16, "memory_bytes": 64 * 2**30, "gpus": gpus}
    async with context.database.transaction() as connection:
        await add_pool(connection, PoolRow(Pool(pool), "", {}, now_ms))
        await connection.execute(hosts.insert().values(**host, facts=facts, joined_ms=now_ms, heard_ms=now_ms))
    begins, ends = (instant(now_ms + hours * 3_600_000).isoformat() for hours in (1, 2))
    return {"pool": pool, "gpu_type": "A100", "gpus": 1, "begins_at": begins, "ends_at": ends}
