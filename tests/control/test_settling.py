"""Settling operations: many ends in one statement, and each worker is told whether its own counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, update

from app.db import tables as t
from app.db.nodes.operations import LeasedOperation, OperationState, Settlement, claim, set_called, settle
from tests.control.world import World


async def _claimed(world: World, count: int) -> list[LeasedOperation]:
    for _ in range(count):
        await world.submit()
    await world.decide()
    operations = await claim(world.database, limit=count, lease_s=60, now_ms=world.clock.now_ms())
    assert len(operations) == count
    return operations


async def _rows(world: World) -> dict[str, Any]:
    return {row.id: row for row in await world.rows(t.provider_operations)}


async def _steal(world: World, operation: LeasedOperation) -> None:
    async with world.database.transaction() as connection:
        statement = update(t.provider_operations).where(t.provider_operations.c.id == operation.operation_id)
        await connection.execute(statement.values(lease_token="somebody else"))


async def test_ends_that_come_together_are_one_write(world: World) -> None:
    """Twenty workers end at once: all count, and the database is asked a few times only."""
    operations = await _claimed(world, 20)
    now_ms = world.clock.now_ms()
    context = world.control.context
    counted = await asyncio.gather(
        *(context.settle(Settlement(one, OperationState.DONE, now_ms)) for one in operations)
    )
    assert counted == [True] * 20
    assert context._settling.writes <= 2
    for row in (await _rows(world)).values():
        assert (row.state, row.ended_ms, row.lease_token, row.lease_until) == ("done", now_ms, None, None)


async def test_only_the_holder_of_the_token_ends_an_operation(world: World) -> None:
    """One of three was taken over meanwhile: its late worker is told so, its row stays, its neighbours end."""
    first, stolen, last = await _claimed(world, 3)
    await _steal(world, stolen)
    done = [Settlement(one, OperationState.DONE, world.clock.now_ms()) for one in (last, stolen, first)]
    assert await asyncio.gather(*(world.control.context.settle(one) for one in done)) == [True, False, True]
    rows = await _rows(world)
    assert rows[stolen.operation_id].state == "pending"
    assert rows[stolen.operation_id].lease_token == "somebody else"
    assert rows[first.operation_id].state == rows[last.operation_id].state == "done"


async def test_the_same_end_twice_counts_once(world: World) -> None:
    """A lease is given up with the settlement: the token is worth nothing afterwards."""
    (operation,) = await _claimed(world, 1)
    done = Settlement(operation, OperationState.DONE, world.clock.now_ms())
    assert await world.control.context.settle(done)
    assert not await world.control.context.settle(done)
    async with world.database.transaction() as connection:
        assert not await settle(connection, done)
        assert not await set_called(connection, operation, "outcome_unknown")


async def test_a_postponed_operation_comes_back_when_it_is_due(world: World) -> None:
    """What was learnt of it is kept, and nobody gets it before its time."""
    (operation,) = await _claimed(world, 1)
    again_ms = world.clock.now_ms() + 5_000
    later = Settlement(operation, OperationState.PENDING, again_ms, "transient", "502")
    assert await world.control.context.settle(later)
    assert await claim(world.database, limit=9, lease_s=60, now_ms=again_ms - 1) == []
    (again,) = await claim(world.database, limit=9, lease_s=60, now_ms=again_ms)
    assert (again.operation_id, again.attempts, again.error_code) == (operation.operation_id, 2, "transient")
    assert again.lease_token != operation.lease_token
    row = (await _rows(world))[operation.operation_id]
    assert (row.ended_ms, row.error_message) == (None, "502")


async def test_a_settlement_goes_with_its_transaction(world: World) -> None:
    """Written beside other changes, it is undone with them."""
    (operation,) = await _claimed(world, 1)

    async def fail_behind_it() -> None:
        async with world.database.transaction() as connection:
            assert await settle(connection, Settlement(operation, OperationState.DONE, world.clock.now_ms()))
            raise RuntimeError("the rest went wrong")

    with pytest.raises(RuntimeError):
        await fail_behind_it()
    row = (await _rows(world))[operation.operation_id]
    assert (row.state, row.lease_token) == ("pending", operation.lease_token)


@given(
    stolen=st.sets(st.integers(0, 5)),
    states=st.lists(st.sampled_from(list(OperationState)), min_size=6, max_size=6),
    order=st.permutations(range(6)),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_each_settlement_is_written_as_told_or_not_at_all(
    world: World, stolen: set[int], states: list[OperationState], order: list[int]
) -> None:
    """Any mix of ends, postponements and lost leases, in any order: no worker gets another one's answer."""
    async with world.database.transaction() as connection:
        await connection.execute(delete(t.provider_operations))
    operations = await _fresh(world)
    for number in stolen:
        await _steal(world, operations[number])
    outcomes = [
        Settlement(one, state, 1_000, "code", one.node_id) for one, state in zip(operations, states, strict=True)
    ]
    counted = await asyncio.gather(*(world.control.context.settle(outcomes[number]) for number in order))
    assert counted == [number not in stolen for number in order]
    rows = await _rows(world)
    for number, (operation, state) in enumerate(zip(operations, states, strict=True)):
        row = rows[operation.operation_id]
        if number in stolen:
            assert (row.state, row.error_code, row.lease_token) == ("pending", None, "somebody else")
        else:
            assert (row.state, row.error_message, row.lease_token) == (state, operation.node_id, None)
            assert (row.ended_ms is None) == (state is OperationState.PENDING)


async def _fresh(world: World) -> list[LeasedOperation]:
    """Six operations under lease, on nodes of their own."""
    known = await world.rows(t.nodes)
    if not known:
        for _ in range(6):
            await world.submit()
        await world.decide()
        known = await world.rows(t.nodes)
    async with world.database.transaction() as connection:
        await connection.execute(delete(t.provider_operations))
        values = [
            {
                "id": world.ids.new("op"),
                "node_id": node.id,
                "provider": "cloud",
                "kind": "create",
                "state": "pending",
                "not_before_ms": 0,
                "created_ms": 0,
            }
            for node in known
        ]
        await connection.execute(t.provider_operations.insert(), values)
    return await claim(world.database, limit=6, lease_s=60, now_ms=world.clock.now_ms())
