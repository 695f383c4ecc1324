"""An elastic job lends a GPU to one that waits, through the loop itself, and has it back."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import null, select, update

from allpass.wire.agent import GpusTold, RunReport
from app.control.lend import Lender
from app.core.explaining import JobExplanation
from app.core.keeping_gpus import FOLLOWED_BY_MS, SILENT_MS, SPOKEN_BY_MS
from app.core.lending import REST_MS, TAKE_MS
from app.core.model.health import Chore
from app.core.model.job import JobState, PauseReason, Resources
from app.db.jobs.reads import find_job
from app.db.tables import allocations, job_events, jobs, runs
from app.services.reading.explain_job import explain_job
from app.services.runs.apply_run_reports import apply_run_reports
from app.services.sizes.resize_job import resize_job
from tests.control.world import World
from tests.seeds import resources_json, seed_job, seed_node, seed_run

LABEL = {"lends": "one"}


class Pool:
    """A machine of four GPUs that one job has, whose owner lends them, in a world where nothing can be rented."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def begin(self, held: tuple[int, ...] = (0, 1, 2, 3), gpu_count: int = 4, **columns: Any) -> None:
        world = self.world
        world.cloud.on_offer = []
        four = resources_json(Resources(gpus_min=4, gpus_max=4))
        job = {"state": JobState.RUNNING, "epoch": 1, "resources": four, "labels": LABEL, "elastic": True} | columns
        async with world.database.transaction() as connection:
            self.node_id = await seed_node(connection, world.project_id, gpu_count=gpu_count, cpus=48)
            self.lender = await seed_job(connection, world.project_id, world.app, **job)
            gpus = {"gpu_indices": held}
            self.run_id = await seed_run(connection, world.project_id, self.lender, self.node_id, **gpus)
        await self.says(*held)
        await self.decide(REST_MS)

    async def asks(self, gpus: int = 1, **more: Any) -> str:
        """A job that is to run there and nowhere else."""
        async with self.world.database.transaction() as connection:
            columns = {"affinity": {"affinity": LABEL}, "resources": resources_json(Resources(gpus, gpus))} | more
            return await seed_job(connection, self.world.project_id, self.world.app, **columns)

    async def decide(self, after_ms: int = 0) -> None:
        self.world.clock.advance(ms=after_ms)
        await self.world.beat(self.node_id)
        await self.world.decide()

    async def says(self, *used: int, leaving: tuple[int, ...] = (), refused: tuple[int, ...] = ()) -> None:
        gpus = GpusTold(used=list(used), leaving=list(leaving), refused=list(refused))
        report = RunReport(run_id=self.run_id, job_id=self.lender, epoch=1, phase="running", step=1, gpus=gpus)
        now_ms = self.world.clock.now_ms()
        database, ids = self.world.database, self.world.ids
        await apply_run_reports(database, ids, self.node_id, [report], now_ms=now_ms, fault_budget=3)

    async def size(self) -> tuple[int, list[int]]:
        """What the lender is to use, and what it holds."""
        async with self.world.database.transaction() as connection:
            row = await connection.execute(
                select(runs.c.wanted_gpus, allocations.c.gpu_indices)
                .join(allocations, allocations.c.run_id == runs.c.id)
                .where(runs.c.id == self.run_id, allocations.c.to_ms.is_(None))
            )
            wanted, held = row.one()
        return len(held) if wanted is None else wanted, list(held)

    async def state(self, job_id: str) -> str:
        return str((await self.world.job(job_id)).state)

    async def told(self) -> list[str]:
        async with self.world.database.transaction() as connection:
            of = job_events.c
            rows = await connection.execute(
                select(of.kind).where(of.job_id == self.lender, of.kind.like("gpus%")).order_by(of.position)
            )
        return list(rows.scalars())

    async def events(self, kind: str) -> list[Any]:
        async with self.world.database.transaction() as connection:
            of = job_events.c
            rows = await connection.execute(
                select(of.message, of.data).where(of.job_id == self.lender, of.kind == kind).order_by(of.position)
            )
        return list(rows.all())

    async def is_silent(self, **columns: Any) -> None:
        """Its code takes steps, and has not said which GPUs it uses."""
        columns |= {"gpus_told": null(), "running_ms": self.world.clock.now_ms()}
        async with self.world.database.transaction() as connection:
            await connection.execute(update(runs).where(runs.c.id == self.run_id).values(columns))
            await connection.execute(update(jobs).where(jobs.c.id == self.lender).values(step=7))

    async def explained(self) -> JobExplanation:
        settings, now_ms = self.world.control.context.settings, self.world.clock.now_ms()
        async with self.world.database.transaction() as connection:
            row = await find_job(connection, self.world.project_id, self.lender)
            assert row is not None
            return await explain_job(connection, settings, row, now_ms=now_ms)

    async def end(self, job_id: str) -> None:
        """The job's run is over."""
        async with self.world.database.transaction() as connection:
            (run_id,) = (
                await connection.execute(
                    select(allocations.c.run_id).where(
                        allocations.c.node_id == self.node_id,
                        allocations.c.to_ms.is_(None),
                        allocations.c.run_id != self.run_id,
                    )
                )
            ).scalars()
            now_ms = self.world.clock.now_ms()
            await connection.execute(update(allocations).where(allocations.c.run_id == run_id).values(to_ms=now_ms))
            await connection.execute(update(runs).where(runs.c.id == run_id).values(state="ended", ended_ms=now_ms))
            await connection.execute(update(jobs).where(jobs.c.id == job_id).values(state="succeeded"))


@pytest.fixture
async def pool(world: World) -> Pool:
    made = Pool(world)
    await made.begin()
    return made


async def test_it_is_lent_taken_and_given_back(pool: Pool) -> None:
    """Each step waits for the training's word; nothing is decided twice."""
    job_id = await pool.asks()
    await pool.decide()
    assert await pool.size() == (3, [0, 1, 2, 3])
    await pool.decide(REST_MS)
    assert (await pool.size(), await pool.state(job_id)) == ((3, [0, 1, 2, 3]), "queued")
    await pool.says(0, 1, 2)
    await pool.decide()
    assert (await pool.size(), await pool.state(job_id)) == ((3, [0, 1, 2]), "starting")
    await pool.decide(60_000)
    assert await pool.size() == (3, [0, 1, 2])
    await pool.end(job_id)
    await pool.decide()
    assert await pool.size() == (4, [0, 1, 2, 3])
    await pool.says(0, 1, 2, 3)
    await pool.decide(60_000)
    assert await pool.size() == (4, [0, 1, 2, 3])
    assert await pool.told() == ["gpus_lent", "gpus_changed", "gpus_given_back", "gpus_changed"]


async def test_a_range_grows_on_what_is_free_and_shrinks_to_its_least(world: World) -> None:
    """It begins with what it needs where it is rented, has what nobody waits for, and lends what is above its least."""
    pool = Pool(world)
    await pool.begin(resources=resources_json(Resources(gpus_min=2, gpus_max=4)) | {"gpus_least": 2}, held=(0, 1))
    assert await pool.size() == (4, [0, 1, 2, 3])
    await pool.says(0, 1, 2, 3)
    three = await pool.asks(3)
    await pool.decide(REST_MS)
    assert (await pool.size(), await pool.state(three)) == ((4, [0, 1, 2, 3]), "queued")
    async with world.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == three).values(state=JobState.CANCELLED))
    two = await pool.asks(2)
    await pool.decide(REST_MS)
    assert await pool.size() == (2, [0, 1, 2, 3])
    await pool.says(0, 1)
    await pool.decide()
    assert (await pool.size(), await pool.state(two)) == ((2, [0, 1]), "starting")


async def test_it_looks_again_by_itself_while_something_is_owed(pool: Pool) -> None:
    """What rests now is due soon, although nothing else happens until then."""
    lender = pool.world.control.loop._lender
    await pool.decide()
    assert lender.wake_at_ms is None
    await pool.asks()
    await pool.decide()
    assert lender.wake_at_ms == pool.world.clock.now_ms() + REST_MS


@pytest.mark.parametrize(
    ("columns", "run"),
    [
        ({"elastic": False}, {}),
        ({"pause_reason": PauseReason.USER}, {}),
        ({}, {"gpus_told": None}),
        ({}, {"gpus_told": {"used": "all"}}),
        ({"resources": {"gpus_min": "four"}}, {}),
    ],
    ids=["not elastic", "about to pause", "has not said", "said nonsense", "a row of another release"],
)
async def test_of_others_nothing_is_lent(pool: Pool, columns: dict[str, Any], run: dict[str, Any]) -> None:
    async with pool.world.database.transaction() as connection:
        if columns:
            await connection.execute(update(jobs).where(jobs.c.id == pool.lender).values(columns))
        if run:
            await connection.execute(update(runs).where(runs.c.id == pool.run_id).values(run))
    await pool.asks()
    await pool.decide(60_000)
    assert await pool.told() == []


async def test_who_never_takes_it_is_lent_it_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that has the job wait for something else: the lender has its GPU back, and keeps it for a while."""
    from app.core.policies.plan_builder import PlanBuilder

    monkeypatch.setattr(PlanBuilder, "ready_place", lambda self, job, most=0: None)
    await pool.asks()
    await pool.decide()
    await pool.says(0, 1, 2)
    for _ in range(4):
        await pool.decide(TAKE_MS // 3)
    assert await pool.size() == (4, [0, 1, 2, 3])
    await pool.says(0, 1, 2, 3)
    for _ in range(4):
        await pool.decide(REST_MS)
    assert await pool.told() == ["gpus_lent", "gpus_changed", "gpus_given_back", "gpus_changed"]


async def test_code_that_never_says_what_it_uses_is_told_so_once(pool: Pool) -> None:
    """With the line to add; its GPUs stay its own, and where it speaks after all it lends as any other."""
    await pool.is_silent()
    job_id = await pool.asks()
    for _ in range(4):
        await pool.decide(SPOKEN_BY_MS // 2)
    (event,) = await pool.events("gpus_kept")
    assert "keeps its 4 GPUs" in event.message and "elastic.train(build)" in event.message
    assert event.data == {"run_id": pool.run_id, "why": "silent", "gpus": 4}
    (remark,) = [one.text for one in (await pool.explained()).because if "keeps" in one.text]
    assert remark.startswith("keeps its 4 GPUs: it is elastic, and its code does not follow")
    for _ in range(3):
        await pool.decide(SILENT_MS)
    assert (await pool.told(), await pool.size()) == (["gpus_kept"], (4, [0, 1, 2, 3]))
    assert await pool.state(job_id) == "queued"
    await pool.says(0, 1, 2, 3)
    assert [one for one in (await pool.explained()).because if "keeps" in one.text] == []
    await pool.decide(REST_MS)
    assert await pool.size() == (3, [0, 1, 2, 3])


async def test_of_its_next_run_it_is_not_told_again(pool: Pool) -> None:
    """The code is the same; that it keeps its GPUs is still explained."""
    await pool.is_silent()
    await pool.decide(SPOKEN_BY_MS)
    first = pool.run_id
    async with pool.world.database.transaction() as connection:
        now_ms = pool.world.clock.now_ms()
        await connection.execute(update(allocations).where(allocations.c.run_id == first).values(to_ms=now_ms))
        await connection.execute(update(runs).where(runs.c.id == first).values(state="ended", ended_ms=now_ms))
        again = {"gpu_indices": (0, 1, 2, 3), "epoch": 2, "running_ms": now_ms}
        await connection.execute(update(jobs).where(jobs.c.id == pool.lender).values(epoch=2))
        pool.run_id = await seed_run(connection, pool.world.project_id, pool.lender, pool.node_id, **again)
    await pool.decide(SILENT_MS)
    await pool.decide(SILENT_MS)
    assert await pool.told() == ["gpus_kept"]
    assert [one.data["run_id"] for one in (await pool.explained()).because if "keeps" in one.text] == [first]


@pytest.mark.parametrize(
    ("columns", "changes"),
    [({"elastic": False}, {}), ({"pause_reason": PauseReason.USER}, {}), ({}, {"purpose": "profile"})],
    ids=["not elastic", "about to pause", "is measured"],
)
async def test_of_others_it_is_not_told(pool: Pool, columns: dict[str, Any], changes: dict[str, Any]) -> None:
    await pool.is_silent(**changes)
    if columns:
        async with pool.world.database.transaction() as connection:
            await connection.execute(update(jobs).where(jobs.c.id == pool.lender).values(columns))
    await pool.decide(SILENT_MS)
    await pool.decide(SILENT_MS)
    assert await pool.told() == []


async def test_code_that_says_it_follows_and_does_not_is_asked_once(pool: Pool) -> None:
    """What it was to leave is its own again, nobody has it meanwhile, and whoever waits is lent to by others. Its owner
    may ask again, and hears again that nothing comes of it."""
    job_id = await pool.asks()
    await pool.decide()
    assert await pool.size() == (3, [0, 1, 2, 3])
    for _ in range(3):
        await pool.decide(FOLLOWED_BY_MS // 3)
    await pool.decide(REST_MS)
    assert (await pool.told(), await pool.size()) == (["gpus_lent", "gpus_kept"], (4, [0, 1, 2, 3]))
    (event,) = await pool.events("gpus_kept")
    assert "was to use 3 and has not left the others" in event.message
    for _ in range(3):
        await pool.decide(FOLLOWED_BY_MS)
    assert (await pool.told(), await pool.state(job_id)) == (["gpus_lent", "gpus_kept"], "queued")
    async with pool.world.database.transaction() as connection:
        now_ms = pool.world.clock.now_ms()
        await resize_job(connection, pool.world.ids, pool.world.project_id, pool.lender, 2, now_ms=now_ms)
    await pool.decide(FOLLOWED_BY_MS)
    await pool.decide(FOLLOWED_BY_MS)
    assert (await pool.told(), await pool.size()) == (["gpus_lent", "gpus_kept", "gpus_kept"], (4, [0, 1, 2, 3]))


async def test_what_it_leaves_late_is_not_anybodys(pool: Pool) -> None:
    """A step of twenty minutes: it leaves what it was to leave after that was withdrawn, and begins there again."""
    await pool.asks()
    await pool.decide()
    await pool.decide(FOLLOWED_BY_MS)
    await pool.decide(REST_MS)
    await pool.says(0, 1, 2)
    assert await pool.size() == (4, [0, 1, 2, 3])
    await pool.says(0, 1, 2, 3)
    await pool.decide(REST_MS)
    assert await pool.size() == (4, [0, 1, 2, 3])


async def test_gpus_that_it_never_begins_on_are_told_of(world: World) -> None:
    """They stay its own: it may be loading there. It pays for them, and is not given more."""
    pool = Pool(world)
    await pool.begin(resources=resources_json(Resources(gpus_min=1, gpus_max=4)), held=(0,))
    assert await pool.size() == (4, [0, 1, 2, 3])
    await pool.decide(FOLLOWED_BY_MS)
    await pool.decide(FOLLOWED_BY_MS)
    (event,) = await pool.events("gpus_kept")
    assert "holds its 4 GPUs and uses 1, for" in event.message
    assert await pool.size() == (4, [0, 1, 2, 3])


async def test_a_gpu_on_which_nothing_can_begin_is_not_given_back_again(pool: Pool) -> None:
    """Else it would be tried every few seconds for as long as the job lives."""
    job_id = await pool.asks()
    await pool.decide()
    await pool.says(0, 1, 2)
    await pool.decide()
    await pool.end(job_id)
    await pool.decide(REST_MS)
    await pool.says(0, 1, 2, refused=(3,))
    await pool.says(0, 1, 2)
    for _ in range(4):
        await pool.decide(REST_MS)
    assert await pool.size() == (3, [0, 1, 2])
    assert (await pool.told()).count("gpus_given_back") == 1


async def test_its_owner_may_ask_for_another_number_meanwhile(pool: Pool) -> None:
    """That is what it has from then on, and comes back to."""
    job_id = await pool.asks()
    await pool.decide()
    await pool.says(0, 1, 2)
    await pool.decide()
    async with pool.world.database.transaction() as connection:
        now_ms = pool.world.clock.now_ms()
        await resize_job(connection, pool.world.ids, pool.world.project_id, pool.lender, 2, now_ms=now_ms)
    await pool.says(0, 1)
    await pool.end(job_id)
    await pool.decide(60_000)
    assert await pool.size() == (2, [0, 1])


async def test_what_fails_of_it_is_its_own(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision it follows is enacted and told as ever."""

    async def fails(self: Lender, snapshot: object, plan: object) -> None:
        raise ValueError("nothing can be lent")

    job_id = await pool.asks()
    await pool.decide()
    lender = pool.world.control.loop._lender
    assert lender.wake_at_ms is not None
    monkeypatch.setattr(Lender, "_lend", fails)
    await pool.decide(2 * REST_MS)
    assert lender.wake_at_ms is None  # else what was due then is due at once, again and again
    assert (await pool.world.job(job_id)).wait_reason
    assert Chore.LEND in str(pool.world.control.context.health.__dict__)
