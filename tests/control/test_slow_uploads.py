"""Final checkpoints that take longer than anybody would wait for nothing: they are waited for while they arrive."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.control.heartbeats import Heartbeats
from app.core.model.checkpoint import CheckpointState, SavedFile
from app.core.model.job import PauseReason
from app.core.model.move import MoveState
from app.core.model.transfer import TransferKind
from app.db import tables as t
from app.db.checkpoints.manifests import CheckpointRow, add_checkpoint
from app.db.checkpoints.transfers import set_transfer
from app.db.jobs.steering import lock_standing
from app.db.moves.planned_moves import slow_moves
from app.errors import StoreUnavailable
from app.ports.objects import ObjectInfo, content_key
from app.services.jobs.hold_job import hold_job
from tests.control.world import World

PIECES = [hashlib.sha256(bytes([number])).hexdigest() for number in range(100)]
MINUTE_S = 60
ROUND_S = 30
LIMIT_S = 3_600


class Store:
    """Of an object store, what a look at it needs: which pieces are there."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.is_away = False
        self.looks = 0

    async def head(self, key: str) -> ObjectInfo | None:
        self.looks += 1
        if self.is_away:
            raise StoreUnavailable("the object store does not answer")
        sha256 = key.rpartition("/")[2]
        return ObjectInfo(key, 1, sha256) if sha256 in self.stored else None


class Saving:
    """A job that was paused at step 412 and whose agent sends the final checkpoint, piece by piece."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = Store()
        world.control.heartbeats = Heartbeats(world.control.context, self.store)  # type: ignore[arg-type]

    async def begin(self, *, opens: bool = True) -> None:
        world = self.world
        self.job_id, self.node_id = await world.run_on_serverless()
        self.run_id = (await world.rows(t.runs))[-1].id
        async with world.database.transaction() as connection:
            await connection.execute(t.jobs.update().values(step=412))
            job = await lock_standing(connection, self.job_id)
            assert job is not None
            await hold_job(connection, world.ids, job, PauseReason.USER, now_ms=world.clock.now_ms())
        await world.check_heartbeats()
        if opens:
            await self.open()

    async def open(self) -> None:
        world, epoch = self.world, (await self.world.job(self.job_id)).epoch
        files = tuple(SavedFile.whole(f"part-{number}", sha256, 1) for number, sha256 in enumerate(PIECES))
        checkpoint_id = world.ids.new("ckpt")
        row = CheckpointRow(
            checkpoint_id, world.project_id, self.job_id, self.run_id, epoch, 412, CheckpointState.OPEN, "a" * 64, 100
        )
        async with world.database.transaction() as connection:
            await add_checkpoint(connection, row, files, {}, now_ms=world.clock.now_ms())

    async def wait(self, seconds: int, every: Callable[[], Awaitable[None]] | None = None) -> None:
        for number in range(0, seconds, ROUND_S):
            if number % 600 == 0:
                assert await self.world.control.context.leader.step()  # its lease is one of real seconds
            self.world.clock.advance(s=ROUND_S)
            await self.world.beat(self.node_id)
            if every is not None:
                await every()
            await self.world.check_heartbeats()

    async def says(self, kind: TransferKind, done_bytes: int) -> None:
        async with self.world.database.transaction() as connection:
            await set_transfer(connection, self.run_id, kind, done_bytes, 10**12, now_ms=self.world.clock.now_ms())

    async def state(self) -> str:
        return str((await self.world.job(self.job_id)).state)

    async def end(self) -> Any:
        return next(row for row in await self.world.rows(t.runs) if row.id == self.run_id)


@pytest.fixture
async def saving(world: World) -> Saving:
    world.settings = world.settings.model_copy(update={"transfer_limit_s": LIMIT_S})
    await world.restart()
    return Saving(world)


async def test_a_final_upload_of_many_times_the_patience_is_waited_for_while_its_pieces_arrive(saving: Saving) -> None:
    """One piece in eight minutes, for most of an hour. The agent, of an older release, says nothing of it; the store is
    looked at, and seldom."""
    await saving.begin()
    arriving = iter(sorted(PIECES))
    count = 0

    async def one_in_eight_minutes() -> None:
        nonlocal count
        count += 1
        if count % 16 == 0:
            saving.store.stored.add(next(arriving))

    await saving.wait(45 * MINUTE_S, one_in_eight_minutes)
    assert await saving.state() == "checkpointing"
    assert 0 < saving.store.looks <= 20 * len(PIECES)
    await saving.wait(14 * MINUTE_S)
    assert await saving.state() == "paused"
    end = await saving.end()
    assert end.end_reason == "unsaved"
    assert "nothing of its final checkpoint came for 10 min" in end.end_message
    assert "412 steps since it began are lost" in end.end_message


async def test_an_agent_that_says_it_sends_while_nothing_arrives_is_not_believed(saving: Saving) -> None:
    """Its word is shown, and counts for nothing."""
    await saving.begin()
    sent = 0

    async def boast() -> None:
        nonlocal sent
        sent += 10**9
        await saving.says(TransferKind.SEND, sent)

    await saving.wait(600, boast)
    assert await saving.state() == "checkpointing"
    await saving.wait(180, boast)
    assert await saving.state() == "paused"
    assert (await saving.end()).end_reason == "unsaved"


async def test_reading_a_large_checkpoint_is_waited_for_up_to_the_limit(saving: Saving) -> None:
    """Nothing can be seen of it from outside: the agent's word counts, and not for ever."""
    await saving.begin(opens=False)
    read = 0

    async def read_on() -> None:
        nonlocal read
        read += 10**6
        await saving.says(TransferKind.READ, read)

    await saving.wait(55 * MINUTE_S, read_on)
    assert await saving.state() == "checkpointing"
    await saving.wait(8 * MINUTE_S, read_on)
    assert await saving.state() == "paused"
    assert "ALLPASS_TRANSFER_LIMIT_S, 3600 s" in (await saving.end()).end_message


async def test_reading_that_stands_still_is_not_waited_for(saving: Saving) -> None:
    """The same figure again and again is no progress."""
    await saving.begin(opens=False)

    async def stand_still() -> None:
        await saving.says(TransferKind.READ, 5)

    await saving.wait(960, stand_still)
    assert await saving.state() == "paused"


async def test_while_the_store_is_away_nothing_is_concluded(saving: Saving) -> None:
    """Nobody can send anything; when it is back, and nothing comes, the wait is over."""
    await saving.begin()
    saving.store.is_away = True
    await saving.wait(45 * MINUTE_S)
    assert await saving.state() == "checkpointing"
    saving.store.is_away = False
    await saving.wait(120)
    assert await saving.state() == "paused"


async def test_a_target_that_fetches_is_waited_for_as_long_as_it_gets_on(saving: Saving) -> None:
    """`move_timeout_s` counts from the last bytes that it told of; without any, from the beginning."""
    world = saving.world
    await saving.begin(opens=False)
    begun_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        await connection.execute(
            t.moves.insert().values(
                id="move_1",
                job_id=saving.job_id,
                source_run_id=saving.run_id,
                target_run_id=saving.run_id,
                state=MoveState.PREPARING,
                reason="",
                begun_ms=begun_ms,
            )
        )
        assert await slow_moves(connection, quiet_since_ms=begun_ms + 1, begun_before_ms=0) == [saving.run_id]
    world.clock.advance(s=800)
    await saving.says(TransferKind.FETCH, 10**9)
    told_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        assert await slow_moves(connection, quiet_since_ms=told_ms, begun_before_ms=0) == []
        assert await slow_moves(connection, quiet_since_ms=told_ms + 1, begun_before_ms=0) == [saving.run_id]
        assert await slow_moves(connection, quiet_since_ms=0, begun_before_ms=begun_ms + 1) == [saving.run_id]


def test_the_keys_that_are_looked_for_end_in_the_hash() -> None:
    """What `Store` above relies on."""
    assert content_key("proj_1", PIECES[0]).rpartition("/")[2] == PIECES[0]
