"""The collector against everybody who refers to content: nothing that is referred to is ever deleted."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import delete, func, select

from app.core.model.checkpoint import CheckpointState, SavedFile
from app.db.checkpoints.garbage import condemn_unreferenced, delete_condemned_rows, lease_condemned
from app.db.checkpoints.manifests import CheckpointRow, abort_open_checkpoints, add_checkpoint, files_of, mark_committed
from app.db.checkpoints.objects import KEPT_MS, claim_objects
from app.db.checkpoints.retention import prune
from app.db.engine import Database, make_engine
from app.db.tables import artifacts, checkpoints, condemned_objects, objects
from app.errors import StoreUnavailable, Unavailable
from app.ports.objects import content_key
from app.services.checkpoints.collect_garbage import adopt_strays, collect_garbage, forget_old_files
from app.services.checkpoints.find_pieces import find_missing, sizes_of_pieces
from app.storage.directory import DirectoryStore
from tests.conftest import ManualClock
from tests.seeds import new_id, seed_job, seed_node, seed_project, seed_run

T = TypeVar("T")
CONTENTS = [f"content {number}".encode() for number in range(6)]
_chosen = st.sets(st.sampled_from(range(len(CONTENTS))), min_size=1, max_size=3)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class World:
    """One project with one job and run, a database and a store; time moves only when told to."""

    def __init__(self, database: Database, store: DirectoryStore, clock: ManualClock) -> None:
        self.database = database
        self.store = store
        self.clock = clock
        self.project_id = self.job_id = self.run_id = ""

    async def begin(self) -> None:
        async with self.database.transaction() as connection:
            self.project_id = await seed_project(connection)
            self.job_id = await seed_job(connection, self.project_id, epoch=1)
            node_id = await seed_node(connection, self.project_id)
            self.run_id = await seed_run(connection, self.project_id, self.job_id, node_id)

    def key(self, data: bytes) -> str:
        return content_key(self.project_id, sha(data))

    async def open(self, chosen: set[int], step: int) -> CheckpointRow:
        """As `open_checkpoint` writes it. Raises Unavailable while one of them is being deleted."""
        files = tuple(SavedFile.whole(f"f{one}", sha(CONTENTS[one]), len(CONTENTS[one])) for one in sorted(chosen))
        row = CheckpointRow(
            new_id("ckpt"), self.project_id, self.job_id, self.run_id, 1, step, CheckpointState.OPEN, "m" * 64, 1
        )
        async with self.database.transaction() as connection:
            await add_checkpoint(connection, row, files, {}, now_ms=self.clock.ms)
            sizes = sizes_of_pieces(files)
            await claim_objects(connection, self.project_id, sizes, now_ms=self.clock.ms)
        return row

    async def missing(self, row: CheckpointRow, *, look_again: bool) -> list[str]:
        async with self.database.transaction() as connection:
            sizes = sizes_of_pieces(await files_of(connection, row.checkpoint_id))
        return await find_missing(
            self.database, self.store, self.project_id, sizes, now_ms=self.clock.ms, look_again=look_again
        )

    async def upload(self, data: bytes) -> None:
        await self.store.put(self.key(data), data, sha256=sha(data))

    async def condemn(self, most: int = 500) -> int:
        async with self.database.transaction() as connection:
            return await condemn_unreferenced(connection, self.project_id, now_ms=self.clock.ms, most=most)

    async def referred(self) -> set[str]:
        """The pieces of complete checkpoints, and artifacts."""
        async with self.database.transaction() as connection:
            ids = await connection.execute(
                select(checkpoints.c.id).where(
                    checkpoints.c.project_id == self.project_id, checkpoints.c.state == CheckpointState.COMMITTED
                )
            )
            found = {
                span.sha256
                for checkpoint_id in ids.scalars().all()
                for file in await files_of(connection, checkpoint_id)
                for span in file.spans
            }
            kept = select(artifacts.c.sha256).where(artifacts.c.job_id == self.job_id)
            return found | set((await connection.execute(kept)).scalars())


async def collect(world: World) -> int:
    """As the leader does, of the one project."""
    await forget_old_files(world.database, world.clock)
    return await collect_garbage(world.database, world.store, world.clock, world.project_id)


class Collection(RuleBasedStateMachine):
    """Agents open, upload, commit and give up; retention lets go; the collector takes its steps one by one between."""

    make_world: Callable[[], World]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world = type(self).make_world()
        self.do(self.world.begin())
        self.open_rows: list[CheckpointRow] = []
        self.committed: list[CheckpointRow] = []
        self.leased: tuple[list[str], int] = ([], 0)
        self.step = 0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.do(self.world.database.close())
        self.runner.close()

    @rule(chosen=_chosen)
    def open(self, chosen: set[int]) -> None:
        self.step += 1
        try:
            self.open_rows.append(self.do(self.world.open(chosen, self.step)))
        except Unavailable:
            return  # an agent tries again later

    @rule(data=st.data())
    def upload_what_is_missing(self, data: st.DataObject) -> None:
        if not self.open_rows:
            return
        row = data.draw(st.sampled_from(self.open_rows))
        for sha256 in self.do(self.world.missing(row, look_again=False)):
            (content,) = [one for one in CONTENTS if sha(one) == sha256]
            self.do(self.world.upload(content))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        if not self.open_rows:
            return
        row = data.draw(st.sampled_from(self.open_rows))
        if self.do(self.world.missing(row, look_again=True)):
            return

        async def write() -> bool:
            async with self.world.database.transaction() as connection:
                return await mark_committed(connection, row, now_ms=self.world.clock.ms)

        assert self.do(write())
        self.open_rows.remove(row)
        self.committed.append(row)

    @rule(number=st.integers(0, len(CONTENTS) - 1))
    def upload_something_that_is_never_told(self, number: int) -> None:
        async def work() -> None:
            # As an agent does: it asks first, and uploads only what is lacking.
            sizes = {sha(CONTENTS[number]): len(CONTENTS[number])}
            try:
                lacking = await find_missing(
                    self.world.database, self.world.store, self.world.project_id, sizes, now_ms=self.world.clock.ms
                )
            except Unavailable:
                return
            if lacking:
                await self.world.upload(CONTENTS[number])

        self.do(work())

    @rule(number=st.integers(0, len(CONTENTS) - 1))
    def register_an_artifact(self, number: int) -> None:
        """The collector comes between the look at the store and the row."""
        content, world = CONTENTS[number], self.world

        async def work() -> None:
            sizes = {sha(content): len(content)}
            try:
                lacking = await find_missing(
                    world.database, world.store, world.project_id, sizes, now_ms=world.clock.ms
                )
            except Unavailable:
                return
            await world.condemn()
            if lacking:
                return
            values = {"job_id": world.job_id, "path": "a", "run_id": world.run_id, "created_ms": world.clock.ms}
            async with world.database.transaction() as connection:
                await connection.execute(delete(artifacts).where(artifacts.c.job_id == world.job_id))
                await connection.execute(artifacts.insert().values(sha256=sha(content), size_bytes=1, **values))

        self.do(work())

    @rule()
    def give_up(self) -> None:
        async def work() -> None:
            async with self.world.database.transaction() as connection:
                await abort_open_checkpoints(connection, self.world.run_id)

        self.do(work())
        self.open_rows.clear()

    @rule(data=st.data())
    def let_go_of_one(self, data: st.DataObject) -> None:
        if not self.committed:
            return
        row = data.draw(st.sampled_from(self.committed))

        async def work() -> None:
            async with self.world.database.transaction() as connection:
                await prune(connection, [row.checkpoint_id], now_ms=self.world.clock.ms)

        self.do(work())
        self.committed.remove(row)

    @rule(ms=st.sampled_from([1000, KEPT_MS // 2, KEPT_MS + 1]))
    def time_passes(self, ms: int) -> None:
        self.world.clock.advance(ms=ms)

    @rule(most=st.sampled_from([1, 500]))
    def condemn(self, most: int) -> None:
        self.do(self.world.condemn(most))

    @rule()
    def lease(self) -> None:
        async def work() -> tuple[list[str], int]:
            now_ms = self.world.clock.ms
            async with self.world.database.transaction() as connection:
                found = await lease_condemned(
                    connection, self.world.project_id, now_ms=now_ms, until_ms=now_ms + 300_000, most=500
                )
            return found, now_ms + 300_000

        if not self.leased[0] or self.world.clock.ms > self.leased[1]:
            self.leased = self.do(work())

    @rule(forget=st.booleans())
    def delete_leased(self, forget: bool) -> None:
        """A collector that holds a lease deletes; it may die before it could say so."""
        sha256s, until_ms = self.leased
        if not sha256s or self.world.clock.ms > until_ms:
            return

        async def work() -> None:
            for sha256 in sha256s:
                await self.world.store.delete(content_key(self.world.project_id, sha256))
            if forget:
                async with self.world.database.transaction() as connection:
                    await delete_condemned_rows(connection, self.world.project_id, sha256s, until_ms=until_ms)

        self.do(work())
        self.leased = ([], 0)

    @rule()
    def collect(self) -> None:
        self.do(collect(self.world))

    @rule()
    def adopt(self) -> None:
        self.do(adopt_strays(self.world.database, self.world.store, self.world.clock, self.world.project_id))

    @invariant()
    def what_is_referred_to_is_there(self) -> None:
        for sha256 in self.do(self.world.referred()):
            key = content_key(self.world.project_id, sha256)
            assert self.do(self.world.store.head(key)) is not None, f"{sha256} was deleted"

    @invariant()
    def what_is_known_is_there(self) -> None:
        async def known() -> list[str]:
            async with self.world.database.transaction() as connection:
                statement = select(objects.c.sha256).where(objects.c.project_id == self.world.project_id)
                return list((await connection.execute(statement)).scalars())

        for sha256 in self.do(known()):
            key = content_key(self.world.project_id, sha256)
            assert self.do(self.world.store.head(key)) is not None, f"{sha256} is noted as stored"


def test_nothing_that_is_referred_to_is_ever_deleted(new_database: Callable[[], str], tmp_path: Path) -> None:
    """Whatever agents, retention and collectors do, in any order of their single steps."""
    url, count = new_database(), iter(range(10**6))

    def make() -> World:
        clock = ManualClock()
        database = Database(make_engine(url, pool_size=4, timeout_s=10.0))
        return World(database, a_store(tmp_path / str(next(count)), clock), clock)

    machine = type("Machine", (Collection,), {"make_world": staticmethod(make)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=30, suppress_health_check=list(HealthCheck), deadline=None
        ),
    )


def a_store(folder: Path, clock: ManualClock) -> DirectoryStore:
    return DirectoryStore(folder, "http://127.0.0.1:1", "k" * 32, max_object_bytes=1024**2, clock=clock)


@pytest.fixture
async def world(database: Database, tmp_path: Path, clock: ManualClock) -> World:
    world = World(database, a_store(tmp_path / "objects", clock), clock)
    await world.begin()
    return world


async def saved(world: World, *chosen: int, step: int) -> CheckpointRow:
    """A complete checkpoint."""
    row = await world.open(set(chosen), step)
    for one in chosen:
        await world.upload(CONTENTS[one])
    assert await world.missing(row, look_again=True) == []
    async with world.database.transaction() as connection:
        assert await mark_committed(connection, row, now_ms=world.clock.ms)
    return row


async def stored(world: World) -> set[str]:
    return {info.sha256 async for info in world.store.list(f"projects/{world.project_id}/")}


async def test_what_was_let_go_of_is_deleted_and_what_is_shared_stays(world: World) -> None:
    """After a while, the pieces that only the old checkpoint had are gone; its row is still there, without files."""
    old = await saved(world, 0, 1, step=1)
    new = await saved(world, 1, 2, step=2)
    async with world.database.transaction() as connection:
        assert await prune(connection, [old.checkpoint_id], now_ms=world.clock.ms) == 1
    assert await collect(world) == 0, "somebody may be about to refer to it"
    world.clock.advance(ms=KEPT_MS + 1)
    assert await collect(world) == 1
    assert await stored(world) == {sha(CONTENTS[1]), sha(CONTENTS[2])}
    async with world.database.transaction() as connection:
        assert await files_of(connection, old.checkpoint_id) == ()
        assert len(await files_of(connection, new.checkpoint_id)) == 2
        assert (await connection.execute(select(func.count()).select_from(condemned_objects))).scalar_one() == 0


async def test_uploads_that_were_never_told_are_found_and_deleted(world: World) -> None:
    """The store's own listing is what tells of them."""
    await world.upload(CONTENTS[3])
    world.clock.advance(ms=KEPT_MS + 1)
    assert await collect(world) == 0
    assert await adopt_strays(world.database, world.store, world.clock, world.project_id) == 1
    assert await adopt_strays(world.database, world.store, world.clock, world.project_id) == 0
    assert await collect(world) == 0
    world.clock.advance(ms=KEPT_MS + 1)
    assert await collect(world) == 1
    assert await stored(world) == set()


async def test_a_store_that_is_away_delays_a_deletion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is condemned may not be referred to until it is really gone, which a later round brings about."""
    old = await saved(world, 0, step=1)
    async with world.database.transaction() as connection:
        await prune(connection, [old.checkpoint_id], now_ms=world.clock.ms)
    world.clock.advance(ms=KEPT_MS + 1)

    async def away(self: object, key: str) -> None:
        raise StoreUnavailable("the object store does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(DirectoryStore, "delete", away)
        with pytest.raises(StoreUnavailable):
            await collect(world)
    with pytest.raises(Unavailable, match="being deleted"):
        await world.open({0}, 2)
    world.clock.advance(s=301)  # the lease of the collector that failed
    await collect(world)
    assert await stored(world) == set()
    row = await world.open({0}, 3)
    assert await world.missing(row, look_again=False) == [sha(CONTENTS[0])]


async def test_an_open_manifest_that_is_being_written_holds_its_pieces(world: World) -> None:
    """The collector passes over content that a transaction in progress refers to, and sees the reference afterwards."""
    old = await saved(world, 0, step=1)
    async with world.database.transaction() as connection:
        await prune(connection, [old.checkpoint_id], now_ms=world.clock.ms)
    world.clock.advance(ms=KEPT_MS + 1)
    async with world.database.transaction() as writing:
        await claim_objects(writing, world.project_id, [sha(CONTENTS[0])], now_ms=world.clock.ms)
        assert await world.condemn() == 0
    await world.open({0}, 2)
    world.clock.advance(ms=KEPT_MS + 1)
    assert await world.condemn() == 0


async def test_who_looks_for_content_keeps_it_for_a_while(world: World) -> None:
    """Between the look ("it is stored") and the reference that relies on it, however old it is, nothing takes it."""
    old = await saved(world, 0, step=1)
    async with world.database.transaction() as connection:
        await prune(connection, [old.checkpoint_id], now_ms=world.clock.ms)
    world.clock.advance(ms=KEPT_MS + 1)
    sizes = {sha(CONTENTS[0]): len(CONTENTS[0])}
    lacking = await find_missing(world.database, world.store, world.project_id, sizes, now_ms=world.clock.ms)
    assert lacking == []
    assert await world.condemn() == 0
    world.clock.advance(ms=KEPT_MS + 1)
    assert await world.condemn() == 1
    with pytest.raises(Unavailable, match="being deleted"):
        await find_missing(world.database, world.store, world.project_id, sizes, now_ms=world.clock.ms)
