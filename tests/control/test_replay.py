"""Every decision is recorded so that it can be taken again, and what may not be enacted is not."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from app.core import codec
from app.core.board import Board
from app.core.model.offer import Offer
from app.core.model.plan import Start
from app.core.recording import Recorder
from app.db import tables as t
from app.db.decisions.health import read_health
from app.db.decisions.recorded_ticks import RecordedTick, read_recorded_tick
from app.db.decisions.ticks import delete_old_ticks, delete_unseen_offers
from app.errors import Conflict, InvalidInput
from app.services.decisions.policy_settings import policy_config
from app.services.decisions.replay_tick import ReplayedTick, replay_tick
from tests.control.world import World, make_settings


@pytest.fixture
async def busy(world: World) -> World:
    """A story of the default policy: jobs that start, run, end, and wait."""
    world.settings = make_settings(world.settings.database_url.get_secret_value(), policy="allpass", serverless_limit=2)
    world.control = world.new_control()
    await world.restart()
    _, node_id = await world.run_on_serverless()
    for _ in range(4):
        await world.submit()
    for _ in range(6):
        await world.decide()
        await world.work()
        await world.beat(node_id)
        world.clock.advance(s=30)
    await world.report(node_id, "exited", exit_code=0)
    await world.decide()
    return world


async def recorded(world: World) -> list[RecordedTick]:
    found = []
    async with world.database.transaction() as connection:
        for row in await world.rows(t.ticks):
            tick = await read_recorded_tick(connection, row.id)
            assert tick is not None
            found.append(tick)
    return found


def again(world: World, tick: RecordedTick, **how: Any) -> ReplayedTick:
    return replay_tick(tick, policy_config(world.settings), policy=how.get("policy"), rules=how.get("rules", {}))


async def test_every_stored_decision_comes_out_the_same(busy: World) -> None:
    """Of a whole story, records of differences among them: each decision is taken again with the very same plan."""
    ticks = await recorded(busy)
    assert len(ticks) > 4
    assert [tick.base is None for tick in ticks].count(False) >= 3
    for tick in ticks:
        done = again(busy, tick)
        assert done.replay.is_same, (tick.number, done.replay)
        assert done.caveat is None
    assert any(done.replay.both for done in (again(busy, tick) for tick in ticks))


async def test_another_policy_decides_on_what_this_one_saw(busy: World) -> None:
    """What it would have done is shown beside what was done; nothing of it is enacted."""
    before = [row.state for row in await busy.rows(t.jobs)]
    done = again(busy, (await recorded(busy))[0], policy="modal-only")
    assert done.policy == "modal-only"
    assert "p" in done.replay.signals_then
    assert "p" not in done.replay.signals_now
    assert [row.state for row in await busy.rows(t.jobs)] == before


async def test_unknown_policies_and_rules_are_refused_by_name(busy: World) -> None:
    tick = (await recorded(busy))[0]
    with pytest.raises(InvalidInput, match="modal-only"):
        again(busy, tick, policy="best")
    with pytest.raises(InvalidInput, match="move_gain"):
        again(busy, tick, rules={"moves_gain": 2.0})


async def test_what_is_on_offer_is_kept_once(busy: World) -> None:
    """Decisions that saw the same offers share their record; it goes when the last of them has gone."""
    assert len(await busy.rows(t.tick_offers)) == 1
    assert {row.offers_sha256 for row in await busy.rows(t.ticks)} == {
        row.sha256 for row in await busy.rows(t.tick_offers)
    }
    async with busy.database.transaction() as connection:
        assert await delete_unseen_offers(connection, before_ms=2**60) == 0
        await connection.execute(t.ticks.delete())
        assert await delete_unseen_offers(connection, before_ms=2**60) == 1


async def test_a_tick_of_an_earlier_release_is_taken_again_with_a_caveat(busy: World) -> None:
    """It kept the snapshot and the plan, and not the configuration: that is said. One that kept nothing is refused."""
    decision = await busy.decide()
    async with busy.database.transaction() as connection:
        await connection.execute(
            update(t.ticks).values(
                recorded=None,
                base_id=None,
                offers_sha256=None,
                observed=codec.encode(decision.snapshot),
                plan=codec.encode(decision.plan),
            )
        )
    done = again(busy, (await recorded(busy))[-1])
    assert done.caveat is not None and "earlier release" in done.caveat
    assert not done.replay.only_now
    async with busy.database.transaction() as connection:
        await connection.execute(update(t.ticks).values(observed=None))
    with pytest.raises(Conflict, match="not kept"):
        again(busy, (await recorded(busy))[-1])


async def test_a_record_of_another_release_or_a_damaged_one_is_refused(busy: World) -> None:
    tick = (await recorded(busy))[0]
    with pytest.raises(Conflict, match="format 9"):
        again(busy, replace(tick, body=zlib.compress(b'{"format": 9}')))
    with pytest.raises(Conflict, match="damaged"):
        again(busy, replace(tick, body=b"?"))


async def test_the_oldest_decisions_go_first_and_those_that_others_need_stay(world: World) -> None:
    """By age and by size. The newest stay whatever they take; a whole record stays for what differs from it."""
    async with world.database.transaction() as connection:
        await connection.execute(t.ticks.delete())
        rows = [
            {"at_ms": number, "term": 1, "trigger": "tick", "policy": "p", "policy_state": {}, "plan": {}, "dropped": 0,
             "duration_ms": 1, "size_bytes": 100, "recorded": b"x", "named_ids": []}
            for number in range(1_000)
        ]  # fmt: skip
        await connection.execute(t.ticks.insert(), rows)
        first = min(row.id for row in await connection.execute(t.ticks.select()))
        await connection.execute(update(t.ticks).where(t.ticks.c.id == first + 400).values(base_id=first + 10))
        assert await delete_old_ticks(connection, before_ms=0, most_bytes=10**9) == 0
        assert await delete_old_ticks(connection, before_ms=100, most_bytes=10**9) == 99
        assert await delete_old_ticks(connection, before_ms=0, most_bytes=70_000) == 200
        kept = {row.id - first for row in await connection.execute(t.ticks.select())}
        assert kept == {10, *range(300, 1_000)}
        await delete_old_ticks(connection, before_ms=2**60, most_bytes=1)
        kept = {row.id - first for row in await connection.execute(t.ticks.select())}
        assert kept == set(range(600, 1_000))


async def test_what_cannot_be_recorded_undoes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job starts all the same; the tick is there without its record, and the next one is whole."""
    job_id = await world.submit()

    def fail(*_: object) -> None:
        raise RecursionError

    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "record", fail)
        await world.decide()
    assert (await world.job(job_id)).state == "starting"
    await world.submit()
    await world.decide()
    first, second = await world.rows(t.ticks)
    assert (first.recorded, second.base_id) == (None, None)
    assert second.recorded is not None


async def test_an_action_that_breaks_an_invariant_is_refused_and_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that starts a job at a price nobody offers: nothing is rented for it, the job and the metric say so, and
    the job beside it starts."""
    cheap, honest = await world.submit(), await world.submit()
    policy = world.control.loop._policy

    class Dreams:
        name, uses = policy.name, policy.uses

        def decide(self, board: Board, state: Any, config: Any) -> Any:
            plan, after = policy.decide(board, state, config)
            return replace(plan, actions=tuple(_dreamed(action) for action in plan.actions)), after

    def _dreamed(action: Any) -> Any:
        if not isinstance(action, Start) or action.job_id != cheap:
            return action
        offer: Offer = action.offer
        return replace(action, offer=replace(offer, price_per_hour=type(offer.price_per_hour)(1)))

    monkeypatch.setattr(world.control.loop, "_policy", Dreams())
    await world.decide()
    assert [(await world.job(job_id)).state for job_id in (cheap, honest)] == ["queued", "starting"]
    assert "action_refused" in await world.events(cheap)
    async with world.database.transaction() as connection:
        health = {(part.kind, part.name): part.failures for part in await read_health(connection)}
    assert health["invariant", "offer"] == 1
