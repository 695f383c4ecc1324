"""What has happened, as GET /metrics counts it: everything once, from every process, across restarts and settling."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from sqlalchemy import func, insert, select, update

from app.api.app import create_app
from app.api.context import ApiContext
from app.core.model.job import JobEnd
from app.core.model.move import MoveState
from app.core.policy import PolicyState
from app.db.counting.counts import settle_counts
from app.db.counting.series import CountedSeries
from app.db.decisions.ticks import TickRow, add_tick
from app.db.moves.planned_moves import set_pause
from app.db.nodes.operations import OperationKind, OperationState
from app.db.tables import counts, jobs, moves, provider_operations
from tests.api.builders import add_job, add_run
from tests.api.conftest import Tenant
from tests.api.test_prometheus import Numbers, of, scrape
from tests.conftest import ManualClock
from tests.seeds import new_id


async def add_start(context: ApiContext, tenant: Tenant, *, took_ms: int, start: str = "now") -> str:
    """A job whose code runs from this moment on."""
    now_ms = context.clock.now_ms()
    return await add_job(context, tenant, start=start, submitted_ms=now_ms - took_ms, first_running_ms=now_ms)


async def add_tick_of(context: ApiContext, duration_ms: int, dropped: int = 0) -> None:
    async with context.database.transaction() as connection:
        plan: dict[str, Any] = {"signals": []}
        now_ms = context.clock.now_ms()
        tick = TickRow(now_ms, 1, "tick", "fixed-threshold", PolicyState(), plan, dropped, duration_ms)
        await add_tick(connection, tick)


async def settle(context: ApiContext, *, after_s: float = 120) -> None:
    """As the leader does."""
    async with context.database.transaction() as connection:
        await settle_counts(connection, before_ms=context.clock.now_ms() - round(after_s * 1000))


def happened(numbers: Numbers) -> Numbers:
    """The counters and histograms of the whole service."""
    ours = ("start_latency", "move_pause", "tick_seconds_", "actions_dropped", "ended", "provider_operation")
    return {key: value for key, value in numbers.items() if key[0].startswith(tuple(f"allpass_{one}" for one in ours))
            or key[0].endswith("_ended_total")}  # fmt: skip


async def test_what_happens_is_counted_once(
    api: FastAPI, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """Starts, ends and provider operations, however often they are read, and when they are settled too."""
    job_id = await add_job(context, tenant, submitted_ms=clock.now_ms())
    _, node_id = await add_run(context, tenant, job_id)
    before = await scrape(api, clock)
    assert of(before, "allpass_start_latency_seconds_count", start="now") == 0
    clock.advance(s=7)
    now_ms = clock.now_ms()
    async with context.database.transaction() as connection:
        columns = {"first_running_ms": now_ms, "ended_ms": now_ms, "state": "failed", "end_reason": JobEnd.NODE_LOST}
        await connection.execute(update(jobs).where(jobs.c.id == job_id).values(**columns))
        operation = {"node_id": node_id, "provider": "vast", "created_ms": now_ms - 2500, "not_before_ms": 0}
        rows = [
            {"id": new_id("op"), "kind": kind, "state": state, "error_code": error, "ended_ms": ended, **operation}
            for kind, state, error, ended in (
                (OperationKind.CREATE, OperationState.FAILED, "no_capacity", now_ms),
                (OperationKind.CREATE, OperationState.DONE, None, now_ms),
                (OperationKind.TERMINATE, OperationState.DONE, None, now_ms),
                (OperationKind.CREATE, OperationState.PENDING, "outcome_unknown", None),
            )
        ]
        await connection.execute(provider_operations.insert(), rows)
    for _ in range(4):
        numbers = await scrape(api, clock)
        assert of(numbers, "allpass_start_latency_seconds_count", start="now") == 1
        assert of(numbers, "allpass_start_latency_seconds_sum", start="now") == 12
        assert of(numbers, "allpass_start_latency_seconds_bucket", start="now", le="10") == 0
        assert of(numbers, "allpass_start_latency_seconds_bucket", start="now", le="20") == 1
        assert of(numbers, "allpass_start_latency_seconds_bucket", start="now", le="+Inf") == 1
        assert of(numbers, "allpass_jobs_ended_total", state="failed", reason="node_lost", late="no") == 1
        failed = {"provider": "vast", "kind": "create", "outcome": "no_capacity"}
        assert of(numbers, "allpass_provider_operations_total", **failed) == 1
        done = {"provider": "vast", "kind": "terminate", "outcome": "ok"}
        assert of(numbers, "allpass_provider_operations_total", **done) == 1
        open_ = {"provider": "vast", "kind": "create", "error": "outcome_unknown"}
        assert of(numbers, "allpass_provider_operations_pending", **open_) == 1
        assert of(numbers, "allpass_provider_operation_seconds_sum", provider="vast", kind="create") == 5
        clock.advance(s=60)
        await settle(context)


async def test_counts_are_the_same_from_every_process_and_after_a_restart(
    api: FastAPI, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """One that has served for long, one that comes later, and one that comes when all is settled; none goes back."""
    await scrape(api, clock)
    last: Numbers = {}
    for took_ms in (900, 1000, 1001, 86_400_001):
        await add_start(context, tenant, took_ms=took_ms)
        await add_tick_of(context, duration_ms=took_ms, dropped=2)
        clock.advance(s=50)
        if took_ms != 900:
            await settle(context, after_s=30)
        numbers, other = happened(await scrape(api, clock)), happened(await scrape(create_app(context)))
        assert numbers == other
        assert all(numbers[key] >= value for key, value in last.items())
        last = numbers
    await settle(context, after_s=0)
    assert happened(await scrape(api, clock)) == last
    assert happened(await scrape(create_app(context))) == last
    assert of(last, "allpass_start_latency_seconds_bucket", start="now", le="1") == 2
    assert of(last, "allpass_start_latency_seconds_bucket", start="now", le="2") == 3
    assert of(last, "allpass_start_latency_seconds_bucket", start="now", le="86400") == 3
    assert of(last, "allpass_start_latency_seconds_count", start="now") == 4
    assert of(last, "allpass_actions_dropped_total") == 8


async def test_what_is_settled_is_not_settled_again(tenant: Tenant, context: ApiContext, clock: ManualClock) -> None:
    """Not by a repetition, nor by a leader whose clock is behind."""
    await add_start(context, tenant, took_ms=10)
    clock.advance(s=1)
    for after_s in (0, 0, 3600, 0):
        await settle(context, after_s=after_s)
    async with context.database.transaction() as connection:
        statement = select(func.sum(counts.c.number)).where(counts.c.series == CountedSeries.START_LATENCY)
        assert (await connection.execute(statement)).scalar_one() == 1


async def test_moves_and_how_long_training_paused(
    api: FastAPI, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """A pause counts when it was measured, which may be long after the move was over; one that was not has none."""
    job_id = await add_job(context, tenant)
    runs = [(await add_run(context, tenant, job_id, epoch=epoch))[0] for epoch in (1, 2, 3)]
    ended_ms = clock.now_ms()
    move = {"job_id": job_id, "source_run_id": runs[0], "reason": "cheaper", "begun_ms": 1, "ended_ms": ended_ms}
    async with context.database.transaction() as connection:
        for move_id, run_id, state in (("m1", runs[1], MoveState.DONE), ("m2", runs[2], MoveState.ABANDONED)):
            await connection.execute(insert(moves).values(id=move_id, target_run_id=run_id, state=state, **move))
    numbers = await scrape(api, clock)
    assert of(numbers, "allpass_moves_ended_total", state="done") == 1
    assert of(numbers, "allpass_moves_ended_total", state="abandoned") == 1
    assert of(numbers, "allpass_move_pause_seconds_count") == 0
    clock.advance(s=3600)
    await settle(context)
    async with context.database.transaction() as connection:
        await set_pause(connection, "m1", 800, now_ms=clock.now_ms())
    numbers = await scrape(api, clock)
    assert of(numbers, "allpass_move_pause_seconds_bucket", le="0.5") == 0
    assert of(numbers, "allpass_move_pause_seconds_bucket", le="1") == 1
    assert of(numbers, "allpass_move_pause_seconds_sum") == 0.8


async def test_a_clock_that_was_off_and_other_bounds_spoil_no_scrape(
    api: FastAPI, tenant: Tenant, context: ApiContext, clock: ManualClock
) -> None:
    """A start before its submission took no time; what another release kept falls into the next larger bucket, and a
    series that this one does not know is left out."""
    await add_start(context, tenant, took_ms=-5)
    await add_start(context, tenant, took_ms=2**61, start="auto")
    async with context.database.transaction() as connection:
        for series, le_s in ((CountedSeries.MOVE_PAUSE, 4.0), ("of_tomorrow", 1.0)):
            row = {"series": series, "labels": [], "le_s": le_s, "number": 3, "total_ms": 12_000}
            await connection.execute(insert(counts).values(row))
    numbers = await scrape(api, clock)
    assert of(numbers, "allpass_start_latency_seconds_bucket", start="now", le="1") == 1
    assert of(numbers, "allpass_start_latency_seconds_count", start="auto") == 1
    assert of(numbers, "allpass_move_pause_seconds_bucket", le="3") == 0
    assert of(numbers, "allpass_move_pause_seconds_bucket", le="5") == 3
