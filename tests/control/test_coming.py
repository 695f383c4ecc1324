"""What a move's target hears of a checkpoint that is still being written, and what becomes of it afterwards."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from allpass.wire.agent import CheckpointComing, UploadReply
from app.core.model.checkpoint import CheckpointState
from app.db import tables as t
from app.db.checkpoints.objects import KEPT_MS
from app.db.checkpoints.partial import coming_for
from app.db.checkpoints.readable_content import readable_content
from app.db.fences import hold_fence
from app.db.nodes.agents import orders_of
from app.db.runs.desired_state import orders
from app.errors import Conflict, Fenced, InvalidInput
from app.ports.objects import content_key
from app.services.checkpoints.collect_garbage import collect_garbage, forget_old_files
from app.services.checkpoints.record_partial_checkpoint import record_partial_checkpoint
from tests.control.moving import Moving
from tests.control.world import World

PIECES = [b"first " * 1000, b"second " * 1000, b"third " * 1000]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def span(number: int, **more: Any) -> dict[str, Any]:
    data = PIECES[number]
    told = {"path": "state", "file_bytes": 2**20, "offset": 8192 * number, "sha256": sha(data)}
    return {**told, "size_bytes": len(data), "start": 0, "length": len(data), **more}


@pytest.fixture
async def moving(world: World, tmp_path: Path) -> Moving:
    moving = Moving(world, tmp_path)
    await moving.begin()
    return moving


async def tell(moving: Moving, *spans: dict[str, Any]) -> UploadReply:
    world = moving.world
    node_id, epoch = await moving.place(moving.source)
    request = CheckpointComing.model_validate(
        {"run_id": moving.source, "job_id": moving.job_id, "epoch": epoch, "step": 412, "spans": list(spans)}
    )
    node, now_ms = await moving.identity(node_id), world.clock.now_ms()
    return await record_partial_checkpoint(
        world.database, moving.objects, world.ids, node, request, now_ms=now_ms, ttl_s=60
    )


async def store(moving: Moving, *numbers: int) -> None:
    for number in numbers:
        data = PIECES[number]
        await moving.objects.put(content_key(moving.world.project_id, sha(data)), data, sha256=sha(data))


async def heard(moving: Moving) -> list[str]:
    """What the target is told."""
    async with moving.world.database.transaction() as connection:
        return [span.sha256 for span in await coming_for(connection, moving.target)]


async def version(moving: Moving) -> int:
    async with moving.world.database.transaction() as connection:
        return (await orders_of(connection, moving.target_node)).version


async def collect(moving: Moving) -> int:
    moving.world.clock.advance(ms=KEPT_MS + 1)
    world = moving.world
    await forget_old_files(world.database, world.clock)
    return await collect_garbage(world.database, moving.objects, world.clock, world.project_id)


async def test_what_is_stored_is_told_to_the_target_and_the_rest_gets_urls(moving: Moving) -> None:
    """Told twice, once before it is sent and once after: the target's agent is woken by what is new to it alone."""
    await moving.prepared()
    before = await version(moving)
    asked = await tell(moving, span(0), span(1))
    assert set(asked.urls) == {sha(PIECES[0]), sha(PIECES[1])}
    assert (await heard(moving), await version(moving)) == ([], before)
    await store(moving, 0)
    again = await tell(moving, span(0), span(1))
    assert set(again.urls) == {sha(PIECES[1])}
    assert await heard(moving) == [sha(PIECES[0])]
    assert await version(moving) == before + 1
    async with moving.world.database.transaction() as connection:
        node_id, epoch = await moving.place(moving.target)
        await hold_fence(connection, node_id, moving.job_id, epoch, to_read=True)
        readable = await readable_content(connection, moving.job_id, map(sha, PIECES))
        assert readable == {sha(PIECES[0])}
        (order,) = await orders(connection, moving.target_node)
        assert order.run_id == moving.target


async def test_nothing_of_it_can_be_resumed_from(moving: Moving) -> None:
    """A source that dies after early pieces: its target begins with the newest committed checkpoint."""
    await moving.saves(moving.source, 100)
    await moving.prepared()
    await store(moving, 0, 1, 2)
    await tell(moving, span(0), span(1), span(2))
    await moving.loses(moving.source_node)
    assert (await moving.move()).step == 100
    assert await heard(moving) == []
    (row,) = [one for one in await moving.world.rows(t.checkpoints) if one.step == 412]
    assert row.state == CheckpointState.ABORTED


async def test_pieces_are_kept_while_their_writer_lives_and_collected_afterwards(moving: Moving) -> None:
    """However long the writing takes; once its run is over they are garbage."""
    await moving.prepared()
    await store(moving, 0, 1)
    await tell(moving, span(0), span(1))
    assert await collect(moving) == 0
    assert await heard(moving) == [sha(PIECES[0]), sha(PIECES[1])]
    await moving.loses(moving.source_node)
    assert await collect(moving) == 2
    assert await moving.objects.head(content_key(moving.world.project_id, sha(PIECES[0]))) is None


async def test_the_commit_takes_the_place_of_what_was_coming(moving: Moving) -> None:
    """Its manifest counts from then on; what it does not name is let go of."""
    await moving.prepared()
    await store(moving, 0)
    for _ in range(2):
        await tell(moving, span(0), span(1))
    await moving.saves(moving.source, 412, final=True)
    assert await heard(moving) == []
    states = {row.state for row in await moving.world.rows(t.checkpoints)}
    assert states == {CheckpointState.ABORTED, CheckpointState.COMMITTED}
    (committed,) = [row for row in await moving.world.rows(t.checkpoints) if row.state == CheckpointState.COMMITTED]
    assert committed.stored_bytes == len(PIECES[0]), "what came while it was written counts"
    assert await collect(moving) == 1


async def test_what_was_never_opened_cannot_be_committed(moving: Moving) -> None:
    """Not even by its own writer, all of whose pieces are stored: the move goes on waiting for the manifest."""
    await moving.prepared()
    await store(moving, 0)
    await tell(moving, span(0))
    (row,) = [one for one in await moving.world.rows(t.checkpoints) if one.state == CheckpointState.COMING]
    with pytest.raises(Conflict, match="still being written"):
        await moving.commits(moving.source, row.id, final=True)
    assert (await moving.move()).state == "saving"


async def test_a_fenced_writer_is_refused(moving: Moving) -> None:
    """409, and nothing of what it says is believed."""
    await moving.prepared()
    await store(moving, 0)
    await moving.saves(moving.source, 412, final=True)
    with pytest.raises(Fenced):
        await tell(moving, span(0))
    assert await heard(moving) == []


async def test_the_newest_word_about_a_place_counts(moving: Moving) -> None:
    """A file that is written anew has other pieces, and maybe another size."""
    await moving.prepared()
    await store(moving, 0, 1)
    await tell(moving, span(0))
    await tell(moving, span(1, offset=0, file_bytes=2**21))
    async with moving.world.database.transaction() as connection:
        (only,) = await coming_for(connection, moving.target)
    assert (only.sha256, only.file_bytes, only.offset_bytes) == (sha(PIECES[1]), 2**21, 0)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"path": "../state"}, "spans[0].path"),
        ({"length": 9_000}, "spans[0].size_bytes"),
        ({"offset": 2**20}, "spans[0].length"),
        ({"file_bytes": 2**50}, "spans[0].length"),
    ],
    ids=["a path that leads out", "more than the piece has", "behind the file's end", "no file is that large"],
)
async def test_parts_that_no_file_could_have_are_refused(moving: Moving, wrong: dict[str, Any], field: str) -> None:
    """Naming the field; nothing is noted."""
    await store(moving, 0)
    with pytest.raises(InvalidInput) as caught:
        await tell(moving, span(0, **wrong))
    assert caught.value.param == field
    assert await moving.world.rows(t.checkpoint_pieces) == []


async def test_a_target_hears_nothing_before_the_source_was_asked_to_save(moving: Moving) -> None:
    """What a script saves by itself is committed soon enough."""
    await store(moving, 0)
    await tell(moving, span(0))
    assert await heard(moving) == []
    await moving.prepared()
    assert await heard(moving) == [sha(PIECES[0])]


async def test_more_than_a_machine_can_be_told_is_not_told(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is fetched when it is complete."""
    monkeypatch.setattr("app.db.checkpoints.partial._MOST_SPANS", 1)
    await moving.prepared()
    await store(moving, 0, 1)
    await tell(moving, span(0))
    assert len(await heard(moving)) == 1
    await tell(moving, span(1))
    assert await heard(moving) == []
