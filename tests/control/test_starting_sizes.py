"""A range begins with as many GPUs as its deadline needs, through the loop."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, text, update

from app.control import starting_sizes
from app.core.board import Board
from app.core.model.job import JobState, PauseReason, Resources
from app.core.model.snapshot import JobView
from app.db.jobs.reads import find_job
from app.db.runs.grown import jobs_waiting_in_vain
from app.db.tables import job_events, jobs, nodes, size_speeds
from app.services.reading.explain_job import explain_job
from app.services.sizes.resize_job import resize_job
from tests.control.measured_pool import MeasuredPool
from tests.control.world import World
from tests.seeds import T0_MS, resources_json, seed_node

RANGE = resources_json(Resources(gpus_min=1, gpus_max=4)) | {"gpus_least": 1}
TOLD = "would be done 15 min after its deadline with 1 GPU: begins with 2, which are done 12 min before it"


class Tight:
    """Jobs of 3,600 steps of a second on one GPU, three quarters of an hour before their deadline."""

    def __init__(self, world: World) -> None:
        self.world = world
        MeasuredPool(world).offers(0.72)

    async def knows(self, speeds: dict[int, float], shape: str = "") -> None:
        """Its app: steps a second, by number of GPUs."""
        async with self.world.database.transaction() as connection:
            for gpus, steps_per_s in speeds.items():
                known = {"steps_per_s": steps_per_s, "noise": 0.0, "samples": 1, "updated_ms": 1}
                row = {"app_id": self.world.app[0], "shape": shape, "gpu_type": "a100", "gpus": gpus} | known
                await connection.execute(size_speeds.insert().values(row))

    async def submit(self, **changes: Any) -> str:
        now_ms = self.world.clock.now_ms()
        columns = {"resources": RANGE, "elastic": True, "deadline_ms": now_ms + 2_700_000, "start": "auto"}
        columns |= {"total_steps": 3_600, "predicted_step_ms": 1_000}
        return await self.world.submit(**(columns | changes))

    async def gpus(self, job_id: str) -> tuple[int, int]:
        """What it begins with, and what it has at most."""
        async with self.world.database.transaction() as connection:
            row = (await connection.execute(select(jobs.c.resources).where(jobs.c.id == job_id))).one()
        return row.resources["gpus_min"], row.resources["gpus_max"]

    async def words(self, job_id: str, kind: str = "begins_larger") -> list[str]:
        of = job_events.c
        async with self.world.database.transaction() as connection:
            found = await connection.execute(select(of.message).where(of.job_id == job_id, of.kind == kind))
            return list(found.scalars())

    async def rented(self, job_id: str) -> list[int]:
        async with self.world.database.transaction() as connection:
            found = await connection.execute(select(nodes.c.gpu_count).where(nodes.c.rented_for_job_id == job_id))
            return list(found.scalars())


@pytest.fixture
async def tight(world: World) -> Tight:
    return Tight(world)


async def test_it_begins_with_two_where_one_would_be_late(tight: Tight) -> None:
    await tight.knows({1: 1.0, 2: 1.9, 4: 2.5})
    job_id = await tight.submit()
    await tight.world.decide()
    assert await tight.gpus(job_id) == (2, 4)
    assert await tight.words(job_id) == [TOLD]
    assert await tight.rented(job_id) == [], "what was decided on one GPU is not begun"
    await tight.world.decide()
    assert await tight.rented(job_id) == [2]
    async with tight.world.database.transaction() as connection:
        row = await find_job(connection, tight.world.project_id, job_id)
        assert row is not None
        told = await explain_job(connection, tight.world.settings, row, now_ms=tight.world.clock.now_ms())
    assert any(TOLD in one.text for one in told.because)


@pytest.mark.parametrize(
    ("speeds", "columns"),
    [
        ({}, {}),
        ({1: 1.0}, {}),
        ({1: 1.0, 2: 1.1, 4: 1.2}, {}),
        ({1: 1.0, 2: 1.9}, {"deadline_given": False}),
        ({1: 1.0, 2: 1.9}, {"deadline_ms": 1_900_000_000_000}),
        ({1: 1.0, 2: 1.9}, {"total_steps": None}),
        ({1: 1.0, 2: 1.9}, {"max_hourly_micros": 800_000}),
        ({1: 1.0, 2: 1.9}, {"elastic": False}),
        ({1: 1.0, 2: 1.9}, {"resources": resources_json(Resources(gpus_min=1, gpus_max=1))}),
        ({1: 1.0, 2: 1.9}, {"resources": resources_json(Resources(gpus_min=1, gpus_max=4)) | {"gpus_least": "1"}}),
        ({1: -1.0, 2: 0.0}, {}),
    ],
    ids=[
        "nobody knows", "not of two", "late all the same", "no deadline", "in time", "no end known", "too dear",
        "not elastic", "no range", "a row that is not ours", "speeds that are none",
    ],
)  # fmt: skip
async def test_else_it_begins_with_what_it_needs(
    tight: Tight, speeds: dict[int, float], columns: dict[str, Any]
) -> None:
    await tight.knows(speeds)
    job_id = await tight.submit(**columns)
    await tight.world.decide()
    assert (await tight.gpus(job_id))[0] == 1
    assert await tight.words(job_id) == []
    assert len(await tight.rented(job_id)) == 1, "and at once"


async def test_one_that_has_been_there_is_not_asked_again(tight: Tight) -> None:
    """By the next leader neither. What its owner says then stays."""
    await tight.knows({1: 1.0, 2: 1.9})
    job_id = await tight.submit()
    tight.world.cloud.on_offer = tight.world.cloud.on_offer[1:]  # there is no machine of one for it to begin on
    await tight.world.decide()
    assert await tight.gpus(job_id) == (2, 4)
    tight.world.cloud.on_offer = []
    tight.world.clock.advance(ms=660_000)
    await tight.world.decide()
    assert await tight.gpus(job_id) == (1, 4)
    assert await tight.words(job_id, "begins_smaller") == [
        "no machine with 2 GPUs came in time: begins with 1, as it asks for"
    ]
    MeasuredPool(tight.world).offers(0.72)
    await tight.world.restart()
    await tight.world.decide()
    assert await tight.gpus(job_id) == (1, 4)
    assert len(await tight.words(job_id)) == 1


async def test_a_machine_that_is_about_to_come_is_waited_for_and_not_without_end(tight: Tight) -> None:
    """It was rented four minutes later, and takes nine: it is not paid for a job that began on another one."""
    await tight.knows({1: 1.0, 2: 1.9})
    offers = tight.world.cloud.on_offer = [replace(one, startup_ms=540_000) for one in tight.world.cloud.on_offer]
    job_id = await tight.submit()
    await tight.world.decide()
    assert await tight.gpus(job_id) == (2, 4)
    tight.world.cloud.on_offer = []
    tight.world.clock.advance(ms=240_000)
    await tight.world.decide()
    tight.world.cloud.on_offer = offers
    await tight.world.decide()
    assert await tight.rented(job_id) == [2]
    for minutes, gpus in ((8, 2), (9, 2), (18, 1)):  # that it was rented; it was to take nine
        tight.world.clock.ms = T0_MS + (4 + minutes) * 60_000
        await tight.world.decide()
        assert (await tight.gpus(job_id))[0] == gpus, minutes


MINUTE_MS = 60_000
AFTER_MIN = 11  # that it was to have two GPUs


@pytest.mark.parametrize(
    ("columns", "is_waited_for"),
    [
        ({}, True),
        ({"state": "requested"}, True),
        ({"state": "unknown"}, True),
        ({"gpu_count": 4}, True),
        ({"gpu_count": 1}, False),
        ({"expected_ready_ms": 9}, True),
        ({"expected_ready_ms": 7}, False),
        ({"expected_ready_ms": 10, "requested_ms": 10}, False),
        ({"expected_ready_ms": 11, "requested_ms": 10}, False),
        ({"state": "ready", "ready_ms": 11}, True),
        ({"state": "ready", "ready_ms": 10}, False),
        ({"state": "failed"}, False),
        ({"state": "terminating"}, False),
        ({"rented_for_job_id": "job_another"}, False),
    ],
    ids=[
        "it boots", "it is asked for", "nobody knows yet", "larger", "smaller", "a little late", "twice as late",
        "rented too late", "and comes soon", "just ready", "ready and not taken", "failed", "ends", "another job's",
    ],
)  # fmt: skip
async def test_what_is_about_to_come(tight: Tight, columns: dict[str, Any], is_waited_for: bool) -> None:
    """A machine of two GPUs that was rented after four minutes, and was to take eight."""
    await tight.knows({1: 1.0, 2: 1.9})
    job_id, began_ms = await tight.submit(), tight.world.clock.now_ms()
    await tight.world.decide()
    moments = {name: columns.get(name, minute) for name, minute in (("requested_ms", 4), ("expected_ready_ms", 12))}
    moments |= {"ready_ms": columns["ready_ms"]} if "ready_ms" in columns else {}
    times = {name: began_ms + minute * MINUTE_MS for name, minute in moments.items()}
    row = {"gpu_count": 2, "state": "booting", "rented_for_job_id": job_id} | columns | times
    async with tight.world.database.transaction() as connection:
        await seed_node(connection, tight.world.project_id, **row)
        now_ms = began_ms + AFTER_MIN * MINUTE_MS
        found = await jobs_waiting_in_vain(connection, [job_id], now_ms=now_ms)
    assert [(one.job_id, one.gpus, one.least) for one in found] == ([] if is_waited_for else [(job_id, 2, 1)])


async def test_a_resize_before_it_begins_is_the_most_that_it_has(tight: Tight) -> None:
    await tight.knows({1: 1.0, 2: 1.9})
    job_id = await tight.submit()
    async with tight.world.database.transaction() as connection:
        await resize_job(
            connection, tight.world.ids, tight.world.project_id, job_id, 1, now_ms=tight.world.clock.now_ms()
        )
    await tight.world.decide()
    assert await tight.gpus(job_id) == (1, 1)


async def test_one_that_is_paused_is_left_alone(tight: Tight) -> None:
    await tight.knows({1: 1.0, 2: 1.9})
    job_id = await tight.submit()
    async with tight.world.database.transaction() as connection:
        paused = {"pause_reason": PauseReason.USER, "state": JobState.PAUSED}
        await connection.execute(update(jobs).where(jobs.c.id == job_id).values(paused))
    await tight.world.decide()
    assert (await tight.gpus(job_id), await tight.words(job_id)) == ((1, 4), [])


async def test_what_fails_of_one_does_not_keep_others_from_beginning(
    tight: Tight, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that the database will not have written: the job begins as it is, and the chore says so."""
    await tight.knows({1: 1.0, 2: 1.9})
    good, bad = await tight.submit(), await tight.submit()
    async with tight.world.database.transaction() as connection:
        await connection.execute(
            text(f"ALTER TABLE jobs ADD CONSTRAINT poison CHECK (id <> '{bad}' OR (resources->>'gpus_min')::int = 1)")
        )
    with caplog.at_level(logging.ERROR):
        await tight.world.decide()
    assert any(bad in one.getMessage() for one in caplog.records)
    assert await tight.gpus(good) == (2, 4)
    assert await tight.gpus(bad) == (1, 4)
    assert await tight.rented(bad) == [1]


async def _sizes(tight: Tight, job_ids: list[str]) -> list[int]:
    return sorted([(await tight.gpus(job_id))[0] for job_id in job_ids])


async def test_many_do_not_keep_a_decision_waiting(tight: Tight, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are rented what they need, and that is what they begin with."""
    monkeypatch.setattr(starting_sizes, "_MOST_JOBS", 2)
    await tight.knows({1: 1.0, 2: 1.9})
    many = [await tight.submit() for _ in range(4)]
    await tight.world.decide()
    assert await _sizes(tight, many) == [1, 1, 2, 2]
    await tight.world.decide()
    assert await _sizes(tight, many) == [1, 1, 2, 2]
    assert sorted([await tight.rented(job_id) for job_id in many]) == [[1], [1], [2], [2]]


@pytest.mark.parametrize(("limit", "value"), [("_MOST_JOBS", 1), ("_MOST_S", 0.0)])
async def test_who_was_left_out_and_still_waits_is_looked_at_before_the_next_decision(
    tight: Tight, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    tight.world.settings.serverless_limit = tight.world.settings.serverful_limit = 0
    await tight.world.restart()
    monkeypatch.setattr(starting_sizes, limit, value)
    await tight.knows({1: 1.0, 2: 1.9})
    many = [await tight.submit() for _ in range(3)]
    for sizes in ([1, 1, 2], [1, 2, 2], [2, 2, 2], [2, 2, 2]):
        await tight.world.decide()
        assert await _sizes(tight, many) == sizes
    assert [len(await tight.words(job_id)) for job_id in many] == [1, 1, 1]


@pytest.mark.parametrize("function", ["first_kind", "start_of"])
async def test_what_cannot_be_reckoned_of_one_is_told_of_it_once(
    tight: Tight, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    await tight.knows({1: 1.0, 2: 1.9})
    tight.world.settings.serverless_limit = tight.world.settings.serverful_limit = 0
    await tight.world.restart()
    bad, good = await tight.submit(), await tight.submit()
    sound = getattr(starting_sizes, function)

    def reckon(board: Board, job: JobView, *known: Any) -> Any:
        if job.job_id == bad:
            raise RuntimeError("not a speed")
        return sound(board, job, *known)

    monkeypatch.setattr(starting_sizes, function, reckon)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await tight.world.decide()
    assert sum(bad in one.getMessage() for one in caplog.records) == 1
    assert ((await tight.gpus(bad))[0], (await tight.gpus(good))[0]) == (1, 2)


async def test_a_hundred_are_looked_at_in_one_decision(tight: Tight, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there is time for them."""
    monkeypatch.setattr(starting_sizes, "_MOST_S", 600.0)
    await tight.knows({1: 1.0, 2: 1.9})
    many = [await tight.submit() for _ in range(102)]
    await tight.world.decide()
    assert await _sizes(tight, many) == [1] * 2 + [2] * 100


async def test_of_code_that_is_restarted_no_number_is_known_to_be_faster(tight: Tight) -> None:
    """What others of its app have shown is of steps that stayed as large."""
    await tight.knows({1: 1.0, 2: 1.9, 4: 2.5})
    job_id = await tight.submit(template={"resize_by": "restart"})
    await tight.world.decide()
    assert await tight.gpus(job_id) == (1, 4)
