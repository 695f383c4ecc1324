"""Whom elastic jobs lend to first, and who lends, through the loop: queues, kinds and measured speeds, kept in rows."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from sqlalchemy import select, update

from app.core.lending import REST_MS, TAKE_MS
from app.core.machine_clock import TOLERATED_MS
from app.core.model.job import JobState, Resources
from app.db.queues.thresholds import thresholds_of
from app.db.tables import job_queues, jobs, metric_points, nodes, queue_thresholds, runs, size_speeds
from app.services.reading.list_sizes import list_sizes
from tests.control.poison import poison
from tests.control.test_lending import LABEL, Pool
from tests.control.world import World
from tests.seeds import resources_json, seed_app, seed_job, seed_run


@pytest.fixture
async def pool(world: World) -> Pool:
    made = Pool(world)
    await made.begin()
    return made


class Standing(NamedTuple):
    """A row of where a job stands."""

    kind: str
    queue: int
    because: str
    since_ms: int


async def standing(pool: Pool, job_id: str) -> Standing:
    async with pool.world.database.transaction() as connection:
        of = job_queues.c
        row = await connection.execute(select(of.kind, of.queue, of.because, of.since_ms).where(of.job_id == job_id))
        return Standing(*row.one())


async def test_an_interactive_job_has_what_is_lent_to_it_before_whoever_is_due_earlier(pool: Pool) -> None:
    """The one that waits is due first, and both fit: what is left for the other one is not given to it."""
    now_ms = pool.world.clock.now_ms()
    batch = await pool.asks(deadline_ms=now_ms + 1)
    short = await pool.asks(deadline_ms=now_ms + 9_000_000, total_steps=20)
    await pool.decide()
    assert await pool.size() == (3, [0, 1, 2, 3])
    await pool.says(0, 1, 2)
    await pool.decide()
    assert (await pool.state(short), await pool.state(batch)) == ("starting", "queued")
    (event,) = await pool.events("gpus_lent")
    assert event.message == f"lends 1 of 1 GPU that {short}, which is interactive, waits for"
    await pool.decide(REST_MS)
    await pool.says(0, 1)
    await pool.decide()
    assert await pool.state(batch) == "starting"
    assert await standing(pool, short) == ("interactive", 1, "20 steps, at most 100", 0)
    assert await standing(pool, batch) == ("batch", 2, "nothing shows that it is short", 0)


async def test_what_was_set_aside_and_never_left_is_anybodys_after_a_while(pool: Pool) -> None:
    """The lender's step is long: the interactive job is decided on as any other again."""
    short = await pool.asks(total_steps=20)
    await pool.decide()
    async with pool.world.database.transaction() as connection:
        of = jobs.c
        row = (await connection.execute(select(of.set_aside_place, of.set_aside_gpus).where(of.id == short))).one()
    assert tuple(row) == (pool.node_id, 1)
    await pool.decide(TAKE_MS + 1)
    await pool.decide()
    await pool.says(0, 1, 2)
    await pool.decide()
    assert await pool.state(short) == "starting"


async def test_one_that_its_owner_calls_interactive_lends_nothing_until_it_has_run_for_long(world: World) -> None:
    """Twenty minutes, until something is known of such jobs: a wrong label costs no more."""
    pool = Pool(world)
    await pool.begin(kind="interactive")
    waiting = await pool.asks()
    await pool.decide(REST_MS)
    assert await pool.told() == []
    (remark,) = [one.text for one in (await pool.explained()).because if "queue" in one.text]
    assert remark == (
        "it is interactive (labelled interactive), and stands in the interactive queue: elastic jobs of the project "
        "lend it GPUs before others, and none of its own are lent"
    )
    await pool.decide(1_200_000)
    assert await pool.told() == ["gpus_lent"]
    assert (await standing(pool, pool.lender)).queue == 2
    remarks = [one.text for one in (await pool.explained()).because if "queue" in one.text]
    assert "stands in the batch queue since 0 s: elastic jobs of the project lend GPUs" in remarks[0]
    assert await pool.state(waiting) == "queued"


async def test_a_batch_job_that_is_labelled_so_is_not_taken_for_an_interactive_one(pool: Pool) -> None:
    """Though it has few steps."""
    job_id = await pool.asks(total_steps=20, kind_said=True)
    await pool.decide()
    assert await standing(pool, job_id) == ("batch", 2, "labelled batch", 0)


async def test_who_runs_a_debugger_is_waited_for(pool: Pool) -> None:
    """Whatever its app's jobs take, and its steps; but not against its label."""
    command = {"command": ["python", "-m", "debugpy", "--listen", "5678", "train.py"]}
    job_id = await pool.asks(total_steps=1_000, predicted_step_ms=60_000, template=command)
    labelled = await pool.asks(template=command, kind_said=True)
    plain = await pool.asks(template={"command": ["python", "train.py", "debugpy"]})
    odd = await pool.asks(template={"command": {"debugpy": 1}})
    await pool.decide()
    assert await standing(pool, job_id) == ("interactive", 1, "runs in debugpy", 0)
    assert [(await standing(pool, one)).kind for one in (labelled, plain, odd)] == ["batch"] * 3


async def test_what_it_shows_of_its_steps_judges_it_again(world: World) -> None:
    """A step count was taken for a short job; its steps take long. The next leader knows."""
    pool = Pool(world)
    await pool.begin(total_steps=1000)
    assert (await standing(pool, pool.lender)).kind == "batch"
    async with world.database.transaction() as connection:
        await connection.execute(update(jobs).where(jobs.c.id == pool.lender).values(total_steps=50))
    await pool.decide(REST_MS)
    assert (await standing(pool, pool.lender)).kind == "interactive"
    async with world.database.transaction() as connection:
        for step in range(1, 8):
            point = {"job_id": pool.lender, "epoch": 1, "step": step, "at_ms": 100_000 * step}
            await connection.execute(metric_points.insert().values(**point, values={}))
    await pool.decide(REST_MS)
    assert await standing(pool, pool.lender) == ("batch", 2, "50 steps of 100 s: 5000 s, more than 600 s", 0)
    await world.restart()
    await pool.decide(7_200_000)
    assert (await standing(pool, pool.lender)).queue == 3


async def test_what_has_ended_is_in_the_means_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the project, and kept: after so many as it takes they are estimated anew."""
    monkeypatch.setattr("app.core.elastic.queues.RE_ESTIMATED_EVERY", 3)
    ended = [await pool.asks(total_steps=20) for _ in range(2)] + [await pool.asks(kind_said=True)]
    await pool.decide()
    async with pool.world.database.transaction() as connection:
        for job_id, ran_ms in zip(ended, (20_000, 40_000, 900_000), strict=True):
            gone = {"state": JobState.SUCCEEDED, "ran_ms": ran_ms, "ended_ms": 1}
            await connection.execute(update(jobs).where(jobs.c.id == job_id).values(gone))
    await pool.decide(60_000)
    await pool.world.restart()
    await pool.decide(60_000)
    (row,) = await pool.world.rows(queue_thresholds)
    assert (row.project_id, row.interactive_s, row.batch_s) == (pool.world.project_id, 30.0, 900.0)
    assert (row.interactive_count, row.batch_count) == (0, 0)
    async with pool.world.database.transaction() as connection:
        known = await thresholds_of(connection, [pool.world.project_id])
    assert known[pool.world.project_id].interactive_s == 30.0


async def points(pool: Pool, job_id: str, epoch: int, first: int, step_ms: int, *, count: int = 12) -> None:
    """It has just taken so many steps, each that long; and time has passed meanwhile."""
    begun_ms = pool.world.clock.now_ms() + TOLERATED_MS
    pool.world.clock.advance(ms=TOLERATED_MS + count * step_ms)
    async with pool.world.database.transaction() as connection:
        for number in range(count):
            point = {"job_id": job_id, "epoch": epoch, "step": first + number, "at_ms": begun_ms + number * step_ms}
            await connection.execute(metric_points.insert().values(**point, values={}))


async def speeds(pool: Pool) -> dict[int, tuple[float, int]]:
    """By number of GPUs: steps per second, and how often that was measured."""
    return {row.gpus: (round(row.steps_per_s, 6), row.samples) for row in await pool.world.rows(size_speeds)}


async def test_it_is_measured_with_each_number_of_gpus_that_it_has(pool: Pool) -> None:
    """And kept for its app, over restarts; what it took while it changed is left out. `explain` and its sizes tell."""
    await pool.decide()
    await points(pool, pool.lender, 1, 1, 1_000)
    job_id = await pool.asks()
    await pool.decide(15_000)
    assert await speeds(pool) == {4: (1.0, 1)}
    await points(pool, pool.lender, 1, 20, 9_000)  # while it leaves the fourth one
    await pool.says(0, 1, 2)
    await pool.decide()
    await points(pool, pool.lender, 1, 40, 1_250)
    await pool.decide(15_000)
    assert await speeds(pool) == {4: (1.0, 1), 3: (0.8, 1)}
    await pool.world.restart()
    await pool.decide(15_000)
    await points(pool, pool.lender, 1, 60, 1_250)
    await pool.decide(15_000)
    assert await speeds(pool) == {4: (1.0, 1), 3: (0.8, 2)}
    remarks = [one for one in (await pool.explained()).because if "measured" in one.text]
    assert [one.text for one in remarks] == [
        "jobs of its app were measured with 3 x A100: 0.8 steps/s (1.00 times, ±0%); "
        "4 x A100: 1 steps/s (1.25 times, ±0%)"
    ]
    async with pool.world.database.transaction() as connection:
        told = [(one.held.gpus, one.speed) for one in await list_sizes(connection, pool.lender, None, limit=9)]
    assert [(gpus, speed and round(speed.steps_per_s, 6)) for gpus, speed in told] == [(4, 1.0), (3, 0.8)]
    assert await pool.state(job_id) == "starting"


async def test_what_another_job_of_the_app_has_shown_decides_who_lends(pool: Pool) -> None:
    """The last GPU of the one brings nothing, as earlier jobs of its app showed; then that of the other one."""
    world = pool.world
    async with world.database.transaction() as connection:
        other_app = await seed_app(connection, world.project_id)
        four = resources_json(Resources(gpus_min=2, gpus_max=2))
        job = {"state": JobState.RUNNING, "epoch": 1, "resources": four, "labels": LABEL, "elastic": True}
        second = await seed_job(connection, world.project_id, other_app, **job)
        await connection.execute(update(nodes).where(nodes.c.id == pool.node_id).values(gpu_count=6))
        told = {"used": [4, 5], "leaving": [], "refused": []}
        run_id = await seed_run(connection, world.project_id, second, pool.node_id, gpu_indices=(4, 5), gpus_told=told)
        for app, curve in ((world.app, {3: 2.9, 4: 2.9}), (other_app, {1: 1.0, 2: 1.9})):
            for gpus, steps_per_s in curve.items():
                kept = {"steps_per_s": steps_per_s, "noise": 0.0, "samples": 1, "updated_ms": 1}
                row = {"app_id": app[0], "shape": "", "gpu_type": "a100", "gpus": gpus} | kept
                await connection.execute(size_speeds.insert().values(row))
    await pool.asks()
    await pool.decide(REST_MS)
    assert (await pool.size())[0] == 3
    async with world.database.transaction() as connection:
        await connection.execute(update(runs).where(runs.c.id == pool.run_id).values(wanted_gpus=None))
        await connection.execute(
            update(size_speeds)
            .where(size_speeds.c.app_id == other_app[0], size_speeds.c.gpus == 2)
            .values(steps_per_s=1.0)
        )
        await connection.execute(
            update(size_speeds)
            .where(size_speeds.c.app_id == world.app[0], size_speeds.c.gpus == 3)
            .values(steps_per_s=1.0)
        )
        await connection.execute(update(jobs).where(jobs.c.state == JobState.QUEUED).values(state=JobState.CANCELLED))
    await pool.asks()
    await pool.decide(60_000)
    async with world.database.transaction() as connection:
        wanted = dict(iter(await connection.execute(select(runs.c.id, runs.c.wanted_gpus))))
    assert (wanted[pool.run_id], wanted[run_id]) == (None, 1)


async def test_where_nothing_is_known_of_queues_gpus_are_lent_all_the_same(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told as amiss."""

    async def fails(*_args: object, **_more: object) -> None:
        raise ValueError("no queues")

    monkeypatch.setattr("app.control.queueing.look_at_queues", fails)
    await pool.asks()
    await pool.decide()
    assert (await pool.told(), await pool.size()) == (["gpus_lent"], (3, [0, 1, 2, 3]))
    assert "where jobs stand that share GPUs" in str(pool.world.control.context.health.__dict__)


async def test_a_standing_that_cannot_be_written_is_its_own(pool: Pool) -> None:
    """The others are kept, and all are lent to as they stand."""
    bad, good = await pool.asks(total_steps=20), await pool.asks(deadline_ms=pool.world.clock.now_ms() + 1)
    await poison(pool.world, "job_queues", bad)
    await pool.decide()
    rows = {row.job_id for row in await pool.world.rows(job_queues)}
    assert (bad in rows, good in rows) == (False, True)
    (event,) = await pool.events("gpus_lent")
    assert bad in event.message


async def test_a_speed_that_cannot_be_kept_stops_nobody(pool: Pool) -> None:
    await pool.decide()
    await poison(pool.world, "size_speeds", pool.world.app[0])
    await points(pool, pool.lender, 1, 1, 1_000)
    await pool.asks()
    await pool.decide(15_000)
    assert (await speeds(pool), await pool.told()) == ({}, ["gpus_lent"])


async def test_rows_of_another_release_are_read_as_none(pool: Pool) -> None:
    job_id = await pool.asks(total_steps=20)
    await pool.decide()
    async with pool.world.database.transaction() as connection:
        await connection.execute(update(job_queues).values(kind="patient", queue=9))
    await pool.world.restart()
    await pool.decide(60_000)
    assert (await standing(pool, job_id)).kind == "interactive"
