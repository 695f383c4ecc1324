"""The world of `benchmarks.loop`: a company that rents what is asked of it, and a database full of live jobs."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import asyncpg

from app.core import codec
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.ports.provider import Machine, MachineRequest, MachineStatus
from benchmarks.agents_server import OFFER, PROVIDER, StandingCloud

SERVERLESS = 50  # places, all of them taken
_OFFERS = (
    OFFER,
    replace(OFFER, offer_id="a100-now", tier=Tier.SERVERLESS, price_per_hour=Money.usd("2.10"), startup_ms=4_000),
)
_IMAGE = "allpass-node"


class LendingCloud(StandingCloud):
    """Rents any machine at once. Nothing boots on it: what is measured ends with the order to its agent."""

    def __init__(self, database_url: str) -> None:
        super().__init__(database_url)
        self.rented: list[Machine] = []

    def traits(self) -> tuple[ProviderTraits, ...]:
        billing = BillingRule(unit_ms=1000, starts=BillingStart.READY)
        return tuple(
            ProviderTraits(
                provider=PROVIDER,
                tier=tier,
                billing=billing,
                startup_mean_ms=30_000,
                startup_deadline_ms=600_000,
                create_grace_ms=60_000,
                dies_with_run=tier is Tier.SERVERLESS,
                preemptible=True,
            )
            for tier in (Tier.MARKETPLACE, Tier.SERVERLESS)
        )

    async def offers(self) -> list[Offer]:
        return list(_OFFERS)

    async def list_owned(self) -> list[Machine]:
        return [*await super().list_owned(), *self.rented]

    async def create(self, request: MachineRequest) -> Machine:  # type: ignore[override]
        now_ms = time.time_ns() // 10**6
        machine = Machine(
            provider=PROVIDER,
            ref=f"new-{len(self.rented)}",
            label=request.label,
            tier=request.offer.tier,
            status=MachineStatus.BOOTING,
            price_per_hour=request.offer.price_per_hour,
            created_ms=now_ms,
            billed_from_ms=None,
            billed_to_ms=None,
        )
        self.rented.append(machine)
        return machine

    async def terminate(self, ref: str) -> None:  # type: ignore[override]
        return None


async def lay_out(connection: asyncpg.Connection, world: dict[str, Any], jobs: int, nodes: int) -> None:
    """So many live jobs: one on each rented node, one at each serverless place, and all others wait."""
    now_ms = time.time_ns() // 10**6
    row = world["row"]
    names = [name for name in row if name not in ("id", "submitted_ms", "deadline_ms")]
    marks = ", ".join(f"${at}" for at in range(4, 4 + len(names)))
    await connection.execute(
        f"INSERT INTO jobs (id, state, epoch, submitted_ms, deadline_ms, {', '.join(names)}) "
        "SELECT 'job_' || lpad(n::text, 7, '0'), CASE WHEN n <= $2 THEN 'running' ELSE 'queued' END, "
        "CASE WHEN n <= $2 THEN 1 ELSE 0 END, $3::bigint, $3::bigint + 86400000 + n * 7919::bigint % 86400000, "
        f"{marks} FROM generate_series(1, $1::integer) n",
        jobs,
        nodes + SERVERLESS,
        now_ms,
        *(row[name] for name in names),
    )
    for offer, first, last in ((_OFFERS[0], 1, nodes), (_OFFERS[1], nodes + 1, nodes + SERVERLESS)):
        await _add_nodes(connection, world["project_id"], offer, first, last, now_ms)
    await connection.execute("VACUUM (ANALYZE)")


async def _add_nodes(
    connection: asyncpg.Connection, project_id: str, offer: Offer, first: int, last: int, now_ms: int
) -> None:
    """Each with the run of the job of its number."""
    await connection.execute(
        "INSERT INTO nodes (id, project_id, provider, provider_ref, tier, offer, gpu_type, gpu_count, "
        "gpu_memory_bytes, cpus, memory_bytes, region, host, image, price_micros_per_hour, billing_unit_ms, "
        "billing_starts, billing_minimum_ms, state, requested_ms, expected_ready_ms, startup_deadline_ms, ready_ms, "
        "billed_from_ms) SELECT 'node_' || lpad(n::text, 7, '0'), $3, $4, 'ref-' || n, $5, $6, $7, 1, $8, $9, $10, "
        "'', '', $11, $12, 1000, 'ready', 0, 'ready', $13::bigint, $13, $13, $13, $13 "
        "FROM generate_series($1::int, $2::int) n",
        first,
        last,
        project_id,
        PROVIDER,
        offer.tier.value,
        json.dumps(codec.encode(offer)),
        offer.gpu_type,
        offer.gpu_memory_bytes,
        offer.cpus,
        offer.memory_bytes,
        _IMAGE,
        offer.price_per_hour.micros,
        now_ms,
    )
    number = "lpad(n::text, 7, '0')"
    for statement in (
        "INSERT INTO runs (id, project_id, tier, state, created_ms, running_ms) "
        f"SELECT 'run_' || {number}, '{project_id}', '{offer.tier.value}', 'running', {now_ms}, {now_ms}",
        f"INSERT INTO run_jobs (run_id, job_id, epoch) SELECT 'run_' || {number}, 'job_' || {number}, 1",
        "INSERT INTO allocations (id, run_id, node_id, gpu_indices, from_ms) "
        f"SELECT 'aloc_' || {number}, 'run_' || {number}, 'node_' || {number}, '{{0}}', {now_ms}",
    ):
        await connection.execute(f"{statement} FROM generate_series({first}, {last}) n")


def node_image() -> str:
    """With which all machines here were rented."""
    return _IMAGE
