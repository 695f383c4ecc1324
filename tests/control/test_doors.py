"""What the leader looks after at doors: nothing that was accepted is lost, and nothing stays that was deleted."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from app.control.doors import GIVEN_UP_AFTER_MS, LEFT_AFTER_MS, DoorRounds
from app.core.model.health import Chore
from app.db import tables as t
from app.db.access.audit import Author
from app.db.doors.files import DoorFile
from app.db.doors.tunings import FineTuning
from app.errors import StoreUnavailable
from app.services.doors.assemble_upload import LIFE_MS, UploadDesk
from app.services.doors.create_tuning import TuningAsked, create_tuning
from app.services.doors.models import Meant
from app.services.doors.store_file import FileShelf, key_of
from app.storage.directory import DirectoryStore
from tests.api.openai.conftest import chats
from tests.conftest import ManualClock
from tests.control.world import World

MODEL = "Qwen/Qwen2.5-7B-Instruct"


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[DirectoryStore]:
    made = DirectoryStore(tmp_path / "objects", "http://127.0.0.1:1", "k" * 32, max_object_bytes=1024**3, clock=clock)
    yield made
    await made.close()


@pytest.fixture
def shelf(world: World, store: DirectoryStore) -> FileShelf:
    return FileShelf(world.database, store, world.clock, world.ids)


@pytest.fixture
def rounds(world: World, store: DirectoryStore) -> DoorRounds:
    return DoorRounds(world.control.context, store)


async def accepted(world: World, file: DoorFile) -> FineTuning:
    """A fine-tuning that was accepted by a process that died right afterwards."""
    asked = TuningAsked(file.id, None, "supervised", {}, 1, None, {}, [])
    author = Author(world.project_id, "key_1", "req_1", "POST /openai/v1/fine_tuning/jobs")
    async with world.database.transaction() as connection:
        return await create_tuning(
            connection, world.ids, author, asked, Meant(MODEL, MODEL), now_ms=world.clock.now_ms()
        )


async def failures(world: World) -> int:
    async with world.database.transaction() as connection:
        of = t.part_health.c
        found = await connection.execute(select(of.failures).where(of.name == Chore.DOORS))
        return int(found.scalar_one_or_none() or 0)


async def count(world: World, table: Any) -> int:
    async with world.database.transaction() as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())


async def test_a_tuning_whose_process_died_becomes_one_job(world: World, shelf: FileShelf, rounds: DoorRounds) -> None:
    await accepted(world, await shelf.store(world.project_id, "a.jsonl", "fine-tune", chats()))
    await rounds.look()
    assert await count(world, t.jobs) == 0, "the process that took it may still be at it"
    world.clock.advance(ms=LEFT_AFTER_MS + 1)
    for _ in range(3):
        await rounds.look()
    assert await count(world, t.jobs) == 1


async def test_two_that_go_on_with_the_same_tuning_make_one_job(
    world: World, shelf: FileShelf, rounds: DoorRounds
) -> None:
    tuning = await accepted(world, await shelf.store(world.project_id, "a.jsonl", "fine-tune", chats()))
    await asyncio.gather(*(rounds._tunings.advance(tuning) for _ in range(2)))
    (row,) = await world.rows(t.tunings)
    (job,) = await world.rows(t.jobs)
    assert (row.job_id, row.error) == (job.id, None)


@pytest.mark.parametrize("step", ["_pack", "_register", "submit"])
async def test_a_process_that_dies_at_any_step_loses_nothing(
    world: World, shelf: FileShelf, rounds: DoorRounds, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before rows are packed, before the app is registered, and after the job is submitted but not written down."""
    tuning = await accepted(world, await shelf.store(world.project_id, "a.jsonl", "fine-tune", chats()))

    class Died(Exception):
        pass

    async def dies(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        if step == "submit":
            patched.setattr("app.services.doors.advance_tuning.set_job", dies)
        else:
            patched.setattr(rounds._tunings, step, dies)
        with pytest.raises(Died):
            await rounds._tunings.advance(tuning)
    world.clock.advance(ms=LEFT_AFTER_MS + 1)
    await rounds.look()
    (row,) = await world.rows(t.tunings)
    (job,) = await world.rows(t.jobs)
    assert row.job_id == job.id


async def test_what_cannot_be_read_for_an_hour_fails_with_a_word(
    world: World, shelf: FileShelf, rounds: DoorRounds, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And holds up nobody else's meanwhile."""
    bad = await accepted(world, await shelf.store(world.project_id, "a.jsonl", "fine-tune", chats(11)))
    good = await accepted(world, await shelf.store(world.project_id, "b.jsonl", "fine-tune", chats(12)))
    away, get = key_of(await shelf.find(world.project_id, bad.training_file_id)), store.get

    async def sometimes(key: str, **options: Any) -> bytes:
        if key == away:
            raise StoreUnavailable("the store does not answer")
        return await get(key, **options)

    monkeypatch.setattr(store, "get", sometimes)
    world.clock.advance(ms=LEFT_AFTER_MS + 1)
    await rounds.look()
    rows = {row.id: row for row in await world.rows(t.tunings)}
    assert rows[good.id].job_id is not None
    assert (rows[bad.id].job_id, rows[bad.id].error) == (None, None)
    world.clock.advance(ms=GIVEN_UP_AFTER_MS)
    await rounds.look()
    rows = {row.id: row for row in await world.rows(t.tunings)}
    assert rows[bad.id].error["code"] == "server_error"
    assert await failures(world) == 0


async def test_content_of_deleted_expired_and_broken_off_files_goes(
    world: World, shelf: FileShelf, rounds: DoorRounds, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.db.doors.files import set_deleted

    kept = await shelf.store(world.project_id, "kept", "batch", b"kept")
    deleted = await shelf.store(world.project_id, "deleted", "batch", b"deleted")
    expired = await shelf.store(world.project_id, "expired", "batch", b"expired", life_s=3600)

    async def dies(*_: object, **__: object) -> None:
        raise StoreUnavailable("it stored them, and did not say so")

    monkeypatch.setattr("app.services.doors.store_file.rows.set_stored", dies)
    with pytest.raises(StoreUnavailable):
        await shelf.store(world.project_id, "broken off", "batch", b"broken off")
    async with world.database.transaction() as connection:
        await set_deleted(connection, world.project_id, deleted.id, now_ms=world.clock.now_ms())
    world.clock.advance(ms=GIVEN_UP_AFTER_MS + 1)
    await rounds.look()
    assert [row.filename for row in await world.rows(t.door_files)] == ["kept"]
    assert await store.head(key_of(kept)) is not None
    for gone in (deleted, expired):
        assert await store.head(key_of(gone)) is None
    left = [info.key async for info in store.list(f"projects/{world.project_id}/door/")]
    assert left == [key_of(kept)]


async def test_parts_go_when_their_upload_is_over(
    world: World, shelf: FileShelf, rounds: DoorRounds, store: DirectoryStore
) -> None:
    desk = UploadDesk(world.database, store, world.clock, world.ids, shelf)

    async def begun() -> str:
        upload = await desk.begin(
            world.project_id, filename="a", purpose="batch", mime_type="x/y", size_bytes=4, file_life_s=None
        )
        return upload.id

    done, cancelled, late, going_on = [await begun() for _ in range(4)]
    parts = {one: await desk.add_part(world.project_id, one, b"1234") for one in (done, cancelled, late)}
    await desk.complete(world.project_id, done, [parts[done].id], hashlib.md5(b"1234").hexdigest())
    await desk.cancel(world.project_id, cancelled)
    await rounds.look()
    assert [row.upload_id for row in await world.rows(t.door_parts)] == [late]
    world.clock.advance(ms=LIFE_MS)
    await rounds.look()
    assert await world.rows(t.door_parts) == []
    states = {row.id: row.state for row in await world.rows(t.door_uploads)}
    assert states == {done: "completed", cancelled: "cancelled", late: "expired", going_on: "pending"}
    assert len([info async for info in store.list(f"projects/{world.project_id}/door/")]) == 1, "the file itself"


async def test_the_collector_of_content_leaves_files_alone(
    world: World, shelf: FileShelf, store: DirectoryStore
) -> None:
    """Nor would that of a release that knows no files."""
    from app.services.checkpoints.collect_garbage import adopt_strays, collect_garbage

    kept = await shelf.store(world.project_id, "kept", "batch", b"kept")
    for _ in range(2):
        await adopt_strays(world.database, store, world.clock, world.project_id)
        world.clock.advance(s=86_400)
        await collect_garbage(world.database, store, world.clock, world.project_id)
    assert await shelf.content(kept) == b"kept"
