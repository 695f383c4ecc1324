"""A job is given more or fewer GPUs while it runs: what it holds, what its agent is told, and what is paid for."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, update

from app.core.billing import Payer
from app.core.model.job import JobState, PauseReason, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunState
from app.core.size_history import Size
from app.db.decisions.snapshots import read_snapshot
from app.db.jobs.reads import places_of
from app.db.learning.calibrations import runs_to_learn
from app.db.money.ledger import read_meters
from app.db.money.usage import Grouping, sum_usage
from app.db.reading.job_records import run_heads
from app.db.reading.placements import stays_of
from app.db.tables import allocations, job_events, jobs, nodes, runs
from app.errors import AllpassError, Conflict, InvalidInput, NotFound
from app.services.reading.list_sizes import list_sizes
from app.services.sizes.resize_job import resize_job
from tests.seeds import resources_json, seed_job, seed_run
from tests.services.agents.conftest import Place, Stage


async def on(stage: Stage, gpus: int = 1, held: tuple[int, ...] = (), of: int = 4, *, says: bool = True) -> Place:
    """A job that runs on so many of a machine's GPUs; `says`: its training has said which it uses."""
    place = await stage.running()
    indices = held or tuple(range(gpus))
    async with stage.database.transaction() as connection:
        columns = {"gpu_count": of, "price_micros_per_hour": 1_000_000 * of}
        await connection.execute(update(nodes).where(nodes.c.id == place.node_id).values(columns))
        await connection.execute(
            update(allocations).where(allocations.c.run_id == place.run_id).values(gpu_indices=list(indices))
        )
        asked = resources_json(Resources(gpus_min=gpus, gpus_max=gpus))
        await connection.execute(update(jobs).where(jobs.c.id == place.job_id).values(resources=asked))
    if says:
        await says_it_uses(stage, place, *indices[:gpus])
    return place


async def says_it_uses(
    stage: Stage, place: Place, *used: int, leaving: tuple[int, ...] = (), refused: tuple[int, ...] = ()
) -> None:
    gpus = {"used": list(used), "leaving": list(leaving), "refused": list(refused)}
    await stage.sync(place, place.report("running", step=1, gpus=gpus))


async def resize(stage: Stage, place: Place, gpus: int) -> None:
    async with stage.database.transaction() as connection:
        await resize_job(connection, stage.ids, place.project_id, place.job_id, gpus, now_ms=stage.clock.ms)


async def refused(stage: Stage, place: Place, gpus: int) -> AllpassError:
    """With nothing changed."""
    before = await all_of(stage, place)
    with pytest.raises(AllpassError) as raised:
        await resize(stage, place, gpus)
    assert await all_of(stage, place) == before
    return raised.value


async def all_of(stage: Stage, place: Place) -> list[Any]:
    async with stage.database.transaction() as connection:
        rows = []
        for table, column, value in (
            (jobs, jobs.c.id, place.job_id), (runs, runs.c.id, place.run_id), (nodes, nodes.c.id, place.node_id),
            (allocations, allocations.c.run_id, place.run_id), (job_events, job_events.c.job_id, place.job_id),
        ):  # fmt: skip
            rows += (await connection.execute(select(table).where(column == value))).all()
    return rows


async def held(stage: Stage, place: Place) -> list[int]:
    """What the run holds now."""
    async with stage.database.transaction() as connection:
        of = allocations.c
        found = await connection.execute(select(of.gpu_indices).where(of.run_id == place.run_id, of.to_ms.is_(None)))
    return list(found.scalar_one())


async def told(stage: Stage, place: Place) -> tuple[list[int], list[int]]:
    """What the agent is to have held, and to use."""
    run = (await stage.sync(place)).json()["runs"][0]
    return run["spec"]["gpu_indices"], run["spec"]["use_gpus"]


async def free(stage: Stage, place: Place) -> tuple[int, ...]:
    """As the next decision sees the machine."""
    async with stage.database.transaction() as connection:
        snapshot = await read_snapshot(connection, stage.clock.ms, (), 60_000)
    return next(node.free_gpus for node in snapshot.nodes if node.node_id == place.node_id)


async def events(stage: Stage, place: Place) -> list[tuple[str, str]]:
    async with stage.database.transaction() as connection:
        of = job_events.c
        found = await connection.execute(
            select(of.kind, of.message).where(of.job_id == place.job_id).order_by(of.position)
        )
    return [(row.kind, row.message) for row in found if row.kind.startswith(("resize", "gpus"))]


async def asks_for_a_range(stage: Stage, place: Place, least: int, most: int) -> None:
    async with stage.database.transaction() as connection:
        plain = resources_json(Resources(gpus_min=least, gpus_max=most))
        columns = {"resources": {**plain, "gpus_least": least}, "elastic": True}
        await connection.execute(update(jobs).where(jobs.c.id == place.job_id).values(columns))


async def test_of_a_range_it_uses_all_that_it_was_begun_with(stage: Stage) -> None:
    """Up to the most that it asks for; one that asks for a number uses so many, whatever its machine has."""
    place = await on(stage, 1, held=(0, 1, 2, 3))
    assert await told(stage, place) == ([0, 1, 2, 3], [0])
    await asks_for_a_range(stage, place, 1, 3)
    assert await told(stage, place) == ([0, 1, 2, 3], [0, 1, 2])
    await asks_for_a_range(stage, place, 2, 8)
    assert await told(stage, place) == ([0, 1, 2, 3], [0, 1, 2, 3])


async def test_another_number_is_the_most_of_a_range(stage: Stage) -> None:
    """It begins on fewer where that is what there is, and a range it stays: also after a number below its least."""
    place = await on(stage, 2, held=(0, 1, 2, 3))
    await asks_for_a_range(stage, place, 2, 4)
    await says_it_uses(stage, place, 0, 1, 2, 3)
    found = []
    for gpus in (3, 1, 4):
        await resize(stage, place, gpus)
        await says_it_uses(stage, place, *range(gpus))
        row = (await stage.row(jobs, place.job_id)).resources
        found.append((row["gpus_min"], row["gpus_max"], row["gpus_least"], await held(stage, place)))
    assert found == [(2, 3, 2, [0, 1, 2]), (1, 1, 2, [0]), (2, 4, 2, [0, 1, 2, 3])]
    before = await all_of(stage, place)
    await resize(stage, place, 4)
    assert await all_of(stage, place) == before


async def test_more_are_its_own_at_once(stage: Stage) -> None:
    """Nobody else is given them while its training begins on them; its agent is told in the same moment."""
    place = await on(stage, 2)
    await resize(stage, place, 4)
    assert await held(stage, place) == [0, 1, 2, 3]
    assert await told(stage, place) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert await free(stage, place) == ()
    await says_it_uses(stage, place, 0, 1, 2, 3)
    assert await events(stage, place) == [
        ("resize_asked", "its owner wants it on 4 GPUs, not 2"),
        ("gpus_changed", "trains on 4 GPUs (0, 1, 2, 3), after 2"),
    ]
    asked = (await stage.row(jobs, place.job_id)).resources
    assert (asked["gpus_min"], asked["gpus_max"]) == (4, 4)


async def test_what_it_gives_up_is_free_when_it_has_left_it(stage: Stage) -> None:
    """Not when it is asked to, nor while a process is about to leave."""
    place = await on(stage, 4)
    await resize(stage, place, 3)
    assert await told(stage, place) == ([0, 1, 2, 3], [0, 1, 2])
    assert await free(stage, place) == ()
    await says_it_uses(stage, place, 0, 1, 2, leaving=(3,))
    assert await free(stage, place) == ()
    stage.clock.advance(s=5)
    await says_it_uses(stage, place, 0, 1, 2)
    assert await free(stage, place) == (3,)
    assert await told(stage, place) == ([0, 1, 2], [0, 1, 2])
    assert (await events(stage, place))[-1] == ("gpus_changed", "trains on 3 GPUs (0, 1, 2), after 4")


async def test_a_run_pays_for_what_it_held(stage: Stage) -> None:
    """Each stretch by the number of it, to the micro-dollar; what nobody has is idle."""
    place = await on(stage, 4)
    began_ms = stage.clock.ms
    async with stage.database.transaction() as connection:
        meter = {"billed_from_ms": began_ms, "ready_ms": began_ms, "metered_until_ms": began_ms}
        await connection.execute(update(nodes).where(nodes.c.id == place.node_id).values(meter))
    stage.clock.advance(s=3600)
    await resize(stage, place, 1)
    await says_it_uses(stage, place, 0)
    stage.clock.advance(s=3600)
    await says_it_uses(stage, place, 0)  # a heartbeat: so long it is known to have run
    async with stage.database.transaction() as connection:
        await read_meters(connection, [place.node_id], now_ms=stage.clock.ms)
        row = (await connection.execute(select(jobs.c.spent_micros).where(jobs.c.id == place.job_id))).one()
        usage = await sum_usage(connection, place.project_id, Grouping.JOB, from_ms=None, to_ms=None, limit=10)
    assert row.spent_micros == 4_000_000 + 1_000_000
    hours = {one.payer: one.gpu_ms / 3_600_000 for one in usage.rows}
    assert hours == {Payer.RUN: 4 + 1, Payer.IDLE: 3}


async def test_each_size_is_paid_by_itself(stage: Stage) -> None:
    """By number of GPUs, to the micro-dollar: with what stood idle they are all that its machine cost, and without it
    what the job has spent. A price that does not split evenly loses nothing."""
    place = await on(stage, 4)
    async with stage.database.transaction() as connection:
        price = {"price_micros_per_hour": 3_333_331}
        price |= dict.fromkeys(("billed_from_ms", "ready_ms", "metered_until_ms"), stage.clock.ms)
        await connection.execute(update(nodes).where(nodes.c.id == place.node_id).values(price))
    for gpus, seconds in ((3, 1_001), (1, 1_777), (3, 7), (4, 13)):
        stage.clock.advance(s=seconds)
        await resize(stage, place, gpus)
        await says_it_uses(stage, place, *range(gpus))
    stage.clock.advance(s=101)
    await says_it_uses(stage, place, 0, 1, 2, 3)
    async with stage.database.transaction() as connection:
        await read_meters(connection, [place.node_id], now_ms=stage.clock.ms)
        spent = (await connection.execute(select(jobs.c.spent_micros).where(jobs.c.id == place.job_id))).scalar_one()
        asked = {"job_id": place.job_id, "from_ms": None, "to_ms": None, "limit": 10}
        usage = await sum_usage(connection, place.project_id, Grouping.SIZE, **asked)
        whole = await sum_usage(connection, place.project_id, Grouping.TIER, from_ms=None, to_ms=None, limit=10)
    held = {one.key: (one.gpu_ms // 1000, one.cost_micros) for one in usage.rows if one.payer is Payer.RUN}
    assert {size: seconds for size, (seconds, _) in held.items()} == {
        "1": 7,
        "3": 3 * (1_777 + 13),
        "4": 4 * (1_001 + 101),
    }
    assert [one.key for one in usage.rows] == ["1", "3", "4", None]
    assert sum(cost for _, cost in held.values()) == spent > 0
    assert usage.cost_micros == whole.cost_micros == spent + usage.idle_micros
    for size, (seconds, cost) in held.items():
        assert abs(cost - 3_333_331 * seconds / 4 / 3600) <= 5, size


async def test_it_is_one_stay_with_what_it_had_last(stage: Stage) -> None:
    """Of two sizes and a third, in the timeline, in the log, and in what its end teaches."""
    place = await on(stage, 4)
    for gpus in (3, 2):
        stage.clock.advance(s=60)
        await resize(stage, place, gpus)
        await says_it_uses(stage, place, *range(gpus))
    async with stage.database.transaction() as connection:
        (stay,) = (await stays_of(connection, [place.job_id]))[place.job_id]
        heads = await run_heads(connection, place.job_id)
        where = (await places_of(connection, [place.job_id]))[place.job_id]
        await connection.execute(
            update(runs).where(runs.c.id == place.run_id).values(state=RunState.ENDED, facts={"micro_batch": 1})
        )
        (ended,) = await runs_to_learn(connection, 10)
    assert (stay.gpu_count, stay.to_ms, stay.price_per_hour) == (2, None, Money.usd("2.00"))
    assert {epoch: (head.number, head.gpu_count) for epoch, head in heads.items()} == {1: (1, 4)}
    assert (where.gpu_count, ended.gpus) == (2, 2)


@pytest.mark.parametrize(("first", "then"), [(2, 4), (2, 1), (3, 2)])
async def test_before_the_last_change_is_done_no_other_one_is_asked_for(stage: Stage, first: int, then: int) -> None:
    """A wish that is taken back before it was read would never be confirmed, and its GPUs be held for ever."""
    place = await on(stage, 4)
    await resize(stage, place, first)
    assert "about to change its GPUs already" in (await refused(stage, place, then)).message
    await says_it_uses(stage, place, *range(first), leaving=(3,))
    assert "about to change its GPUs already" in (await refused(stage, place, then)).message
    await says_it_uses(stage, place, *range(first))
    await resize(stage, place, then)
    assert (await told(stage, place))[1] == list(range(then))


async def test_the_same_number_changes_nothing(stage: Stage) -> None:
    place = await on(stage, 2)
    before = await all_of(stage, place)
    await resize(stage, place, 2)
    assert await all_of(stage, place) == before


async def test_what_nobody_asked_to_change_stays_as_it_was_rented(stage: Stage) -> None:
    """A machine of four for a job of one: it may grow there, and until then the others are held for it."""
    place = await on(stage, 1, held=(0, 1, 2, 3))
    assert await held(stage, place) == [0, 1, 2, 3]
    assert await told(stage, place) == ([0, 1, 2, 3], [0])
    await resize(stage, place, 3)
    assert await told(stage, place) == ([0, 1, 2, 3], [0, 1, 2])
    await says_it_uses(stage, place, 0, 1, 2)
    assert await held(stage, place) == [0, 1, 2]


async def test_a_gpu_that_no_process_can_begin_on_is_given_back(stage: Stage) -> None:
    """It is told, once; the job asks for as many as before, and has what it can use here."""
    place = await on(stage, 2)
    await resize(stage, place, 4)
    for _ in range(2):
        await says_it_uses(stage, place, 0, 1, 2, refused=(3,))
    assert await told(stage, place) == ([0, 1, 2], [0, 1, 2])
    assert await free(stage, place) == (3,)
    said = [message for kind, message in await events(stage, place) if kind == "gpus_refused"]
    assert said == ["no process of it could begin on 1 GPU (3): it goes on without"]
    assert (await stage.row(jobs, place.job_id)).resources["gpus_min"] == 4
    await resize(stage, place, 4)  # once more
    assert await told(stage, place) == ([0, 1, 2, 3], [0, 1, 2, 3])


async def test_where_others_have_the_rest_there_is_no_room(stage: Stage) -> None:
    place = await on(stage, 2)
    async with stage.database.transaction() as connection:
        row = await connection.execute(select(jobs.c.app_id, jobs.c.app_version_id).where(jobs.c.id == place.job_id))
        app = row.one()
        other = await seed_job(connection, place.project_id, (app[0], app[1]), state=JobState.RUNNING, epoch=1)
        await seed_run(connection, place.project_id, other, place.node_id, gpu_indices=(3,))
    error = await refused(stage, place, 4)
    assert (error.error_code, error.param) == ("no_room", "gpus")
    assert "its machine has 4 x A100, and other jobs have 1 of them. It can have 3" in error.message
    await resize(stage, place, 3)
    assert await held(stage, place) == [0, 1, 2]


async def test_code_that_does_not_say_that_it_can_keeps_what_it_has(stage: Stage) -> None:
    """A script that knows nothing of us, or an agent of an older release."""
    place = await on(stage, 2, says=False)
    error = await refused(stage, place, 3)
    assert error.error_code == "not_elastic"
    assert "pause the job, resize it and resume it" in error.message


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.WAITING, JobState.PAUSED])
async def test_a_job_that_does_not_run_begins_with_so_many(stage: Stage, state: JobState) -> None:
    place = await stage.place()
    async with stage.database.transaction() as connection:
        job_id = await seed_job(connection, place.project_id, await app_of(stage, place), state=state)
        await resize_job(connection, stage.ids, place.project_id, job_id, 2, now_ms=stage.clock.ms)
    assert (await stage.row(jobs, job_id)).resources["gpus_min"] == 2


async def app_of(stage: Stage, place: Place) -> tuple[str, str]:
    row = await stage.row(jobs, place.job_id)
    return row.app_id, row.app_version_id


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
async def test_a_job_that_is_over_asks_for_none(stage: Stage, state: JobState) -> None:
    place = await stage.place(state=state, epoch=2)
    assert isinstance(await refused(stage, place, 2), Conflict)


async def test_another_projects_job_is_not_there(stage: Stage) -> None:
    place, other = await on(stage, 2), await stage.place()
    stranger = Place(other.project_id, place.job_id, place.node_id, place.run_id, place.token)
    assert isinstance(await refused(stage, stranger, 3), NotFound)


async def test_so_many_as_no_training_changes_to_are_refused_in_words(stage: Stage) -> None:
    place = await on(stage, 2, of=16)
    error = await refused(stage, place, 9)
    assert isinstance(error, InvalidInput)
    assert (error.param, error.message) == ("gpus", "gpus: 9 are too many: a training that runs has at most 8")


async def test_a_limit_per_hour_holds_for_more_of_them(stage: Stage) -> None:
    """Fewer are never refused for it."""
    place = await on(stage, 2)
    async with stage.database.transaction() as connection:
        limit = {"max_hourly_micros": Money.usd("2.50").micros}
        await connection.execute(update(jobs).where(jobs.c.id == place.job_id).values(limit))
    error = await refused(stage, place, 3)
    assert (error.param, "3 GPUs of its machine cost $3.00/h" in error.message) == ("max_hourly_usd", True)
    await resize(stage, place, 1)


@pytest.mark.parametrize(
    ("table", "columns", "words"),
    [
        (nodes, {"state": NodeState.DRAINING}, "its machine is draining"),
        (runs, {"state": RunState.STARTING, "gpus_told": None}, "it is being started"),
    ],
    ids=["draining", "starting"],
)
async def test_while_something_else_happens_it_is_refused(
    stage: Stage, table: Any, columns: dict[str, Any], words: str
) -> None:
    place = await on(stage, 2)
    async with stage.database.transaction() as connection:
        key = place.node_id if table is nodes else place.run_id
        await connection.execute(update(table).where(table.c.id == key).values(columns))
    assert words in (await refused(stage, place, 3)).message


async def test_one_that_is_leaving_begins_with_so_many_next_time(stage: Stage) -> None:
    """Its owner has paused it: what it holds now is not worth changing."""
    place = await on(stage, 2)
    async with stage.database.transaction() as connection:
        paused = {"state": JobState.CHECKPOINTING, "pause_reason": PauseReason.USER}
        await connection.execute(update(jobs).where(jobs.c.id == place.job_id).values(paused))
        await connection.execute(update(runs).where(runs.c.id == place.run_id).values(state=RunState.STOPPING))
    await resize(stage, place, 4)
    assert await held(stage, place) == [0, 1]
    assert (await stage.row(jobs, place.job_id)).resources["gpus_min"] == 4


async def test_what_a_run_that_is_over_says_frees_nothing(stage: Stage) -> None:
    """Its GPUs were freed with its end, and may be another's by now."""
    place = await on(stage, 2)
    await resize(stage, place, 1)
    async with stage.database.transaction() as connection:
        of = allocations.c
        await connection.execute(update(allocations).where(of.run_id == place.run_id).values(to_ms=stage.clock.ms))
        await connection.execute(update(runs).where(runs.c.id == place.run_id).values(state=RunState.ENDED))
    before = await all_of(stage, place)
    await says_it_uses(stage, place, 0)
    after = await all_of(stage, place)
    assert [row for row in after if row not in before] == [] or len(after) == len(before)
    assert await free(stage, place) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    "gpus",
    [
        {"used": [64], "leaving": [], "refused": []}, {"used": [0] * 65, "leaving": [], "refused": []}, {"used": [0]},
        {"used": ["0"], "leaving": [], "refused": []}, {"used": None, "leaving": [], "refused": []}, [], "0", 7, True,
        {"used": [-1], "leaving": [], "refused": []}, {"used": [0.5], "leaving": [], "refused": []},
    ],
)  # fmt: skip
async def test_what_makes_no_sense_changes_nothing(stage: Stage, gpus: Any) -> None:
    """And the rest of the report counts."""
    place = await on(stage, 2)
    await resize(stage, place, 1)
    await stage.sync(place, place.report("running", step=9, gpus=gpus))
    assert await held(stage, place) == [0, 1]
    assert (await stage.row(jobs, place.job_id)).step == 9


async def test_rows_that_another_release_wrote_are_read_as_nothing(stage: Stage) -> None:
    """A column that is no list, resources without a number: orders go out as for what is held."""
    place = await on(stage, 2)
    async with stage.database.transaction() as connection:
        await connection.execute(
            update(runs).where(runs.c.id == place.run_id).values(gpus_told={"used": 7}, wanted_gpus=99)
        )
    assert await told(stage, place) == ([0, 1], [0, 1])
    await says_it_uses(stage, place, 0, 1)


async def test_resizes_that_meet_leave_one_of_them(stage: Stage) -> None:
    """Ten at once, among reports of the training: each GPU is held once, and one is taken before the others."""
    import asyncio

    place = await on(stage, 2)
    wishes = [1, 3, 2, 4, 1, 4, 2, 3, 1, 2]
    answers = await asyncio.gather(
        *(resize(stage, place, gpus) for gpus in wishes),
        *(says_it_uses(stage, place, 0, 1) for _ in range(3)),
        return_exceptions=True,
    )
    assert {type(one) for one in answers} <= {type(None), Conflict}
    assert answers.count(None) >= 1 + 3
    indices = await held(stage, place)
    asked = (await stage.row(jobs, place.job_id)).resources["gpus_min"]
    assert len(set(indices)) == len(indices) >= asked
    assert (await told(stage, place))[1] == indices[:asked]


async def test_serverless_machines_have_room_as_others_do(stage: Stage) -> None:
    place = await on(stage, 1, held=(0, 1))
    async with stage.database.transaction() as connection:
        await connection.execute(update(nodes).where(nodes.c.id == place.node_id).values(tier=Tier.SERVERLESS))
    await resize(stage, place, 2)
    assert (await told(stage, place))[1] == [0, 1]


async def sizes_of(stage: Stage, place: Place, after: tuple[int, str] | None = None, limit: int = 100) -> list[Size]:
    async with stage.database.transaction() as connection:
        return await list_sizes(connection, place.job_id, after, limit=limit)


async def test_its_sizes_are_told_with_their_reasons(stage: Stage) -> None:
    """From when to when, whoever wanted them; a page at a time says the same as all at once."""
    place = await on(stage, 4)
    begun_ms = (await sizes_of(stage, place))[0].held.from_ms
    stage.clock.advance(s=60)
    await resize(stage, place, 3)
    asked = [(one.held.gpus, one.held.to_ms) for one in await sizes_of(stage, place)]
    assert asked == [(4, None)], "it holds all four until its training has left one"
    stage.clock.advance(s=5)
    left_ms = stage.clock.ms
    await says_it_uses(stage, place, 0, 1, 2)
    stage.clock.advance(s=30)
    await resize(stage, place, 4)
    stage.clock.advance(s=1)
    await says_it_uses(stage, place, 0, 1, 2, refused=(3,))
    found = await sizes_of(stage, place)
    assert [(one.held.gpus, one.held.before, one.why.value) for one in found] == [
        (4, None, "begun"),
        (3, 4, "asked"),
        (4, 3, "asked"),
        (3, 4, "refused"),
    ]
    assert [one.held.from_ms for one in found][:2] == [begun_ms, left_ms]
    assert [one.held.to_ms for one in found] == [one.held.from_ms for one in found[1:]] + [None]
    assert found[1].text == "its owner wants it on 3 GPUs, not 4"
    paged = []
    while page := await sizes_of(stage, place, (paged[-1].held.from_ms, paged[-1].held.size_id) if paged else None, 1):
        paged += page
    assert paged == found
