"""A guaranteed job that waits for room has it from spot jobs, through the loop itself."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from allpass.wire.agent import ExitReport, RunReport
from app.core.model.job import JobState, PauseReason, PriorityClass, Resources
from app.core.model.run import RunEnd
from app.db.jobs.reads import find_job
from app.db.jobs.set_asides import START_MS
from app.db.tables import allocations, job_events, jobs, run_jobs, runs
from app.services.jobs.cancel_job import cancel_job
from app.services.reading.explain_job import explain_job
from app.services.runs.apply_run_reports import apply_run_reports
from tests.control.test_lending import Pool
from tests.control.world import World
from tests.seeds import resources_json, seed_job, seed_node, seed_run

MINUTE_MS = 60_000
SPOT: dict[str, Any] = {"priority_class": PriorityClass.SPOT, "saves_ms": 1}
GUARANTEED: dict[str, Any] = {"priority_class": PriorityClass.GUARANTEED, "saves_ms": 1}


class Machine:
    """One of four GPUs in a world where nothing can be rented."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: dict[str, str] = {}

    async def begin(self, gpus: int = 4) -> None:
        self.world.cloud.on_offer = []
        async with self.world.database.transaction() as connection:
            self.node_id = await seed_node(connection, self.world.project_id, gpu_count=gpus, cpus=48)

    async def trains(self, *indices: int, minutes: float = 10, **columns: Any) -> str:
        """A job that has trained there on these GPUs for so long; a spot job unless said otherwise."""
        world = self.world
        job = {"state": JobState.RUNNING, "epoch": 1, "step": 50, "resources": gpus(len(indices))} | SPOT | columns
        async with world.database.transaction() as connection:
            job_id = await seed_job(connection, world.project_id, world.app, **job)
            since: dict[str, Any] = {
                "running_ms": world.clock.now_ms() - round(minutes * MINUTE_MS),
                "gpu_indices": indices,
            }
            self.runs[job_id] = await seed_run(connection, world.project_id, job_id, self.node_id, **since)
        return job_id

    async def decide(self, after_ms: int = 0) -> None:
        self.world.clock.advance(ms=after_ms)
        await self.world.beat(self.node_id)
        await self.world.decide()

    async def leaves(self, job_id: str, *, saved: bool = True, **exit_: Any) -> None:
        """Its process is gone."""
        world = self.world
        report = RunReport(
            run_id=await self.run_of(job_id),
            job_id=job_id,
            epoch=(await world.job(job_id)).epoch,
            phase="exited",
            step=50,
            exit=ExitReport(**({"exit_code": 0, "saved_after_stop": saved} | exit_)),
            saves=True,
        )
        now_ms = world.clock.now_ms()
        await apply_run_reports(world.database, world.ids, self.node_id, [report], now_ms=now_ms, fault_budget=3)

    async def run_of(self, job_id: str) -> str:
        async with self.world.database.transaction() as connection:
            of = run_jobs.c
            newest = select(of.run_id).where(of.job_id == job_id).order_by(of.epoch.desc()).limit(1)
            run_id: str = (await connection.execute(newest)).scalar_one()
            return run_id

    async def states(self, *job_ids: str) -> list[str]:
        return [str((await self.world.job(job_id)).state) for job_id in job_ids]

    async def told(self, job_id: str, kind: str) -> str:
        async with self.world.database.transaction() as connection:
            of = job_events.c
            found = select(of.message).where(of.job_id == job_id, of.kind == kind)
            return "\n".join((await connection.execute(found)).scalars())

    async def held(self) -> int:
        """GPUs that live runs hold: never one twice."""
        async with self.world.database.transaction() as connection:
            rows = await connection.execute(select(allocations.c.gpu_indices).where(allocations.c.to_ms.is_(None)))
            indices = [index for row in rows for index in row.gpu_indices]
        assert len(indices) == len(set(indices))
        return len(indices)


def gpus(number: int) -> dict[str, Any]:
    return resources_json(Resources(number, number))


@pytest.fixture
async def machine(world: World) -> Machine:
    made = Machine(world)
    await made.begin()
    return made


async def test_one_spot_job_saves_and_leaves_and_comes_back_afterwards(machine: Machine) -> None:
    """The one that loses least, and no other however often the loop looks; what it left is for the one it left for."""
    world = machine.world
    large, small = await machine.trains(0, 1), await machine.trains(2)
    stays = await machine.trains(3, **GUARANTEED)
    job_id = await world.submit(resources=gpus(1))
    for _ in range(3):
        await machine.decide()
        assert await machine.states(large, small, stays) == ["running", "checkpointing", "running"]
    assert await machine.states(job_id) == ["queued"]
    assert (await world.job(job_id)).wait_reason == "begins as soon as the GPUs that are kept for it are free"
    sooner = await world.submit(resources=gpus(1), deadline_ms=1, **SPOT)
    await machine.leaves(small)
    await machine.decide()
    assert await machine.states(job_id, small, sooner) == ["starting", "waiting", "queued"]
    assert await machine.held() == 4
    await machine.leaves(job_id, saved=False)
    await world.set_job(sooner, state="cancelled")
    await machine.decide()
    assert await machine.states(job_id, small) == ["succeeded", "starting"]
    await world.check_invariants()


async def test_both_owners_are_told_why_and_what_it_cost(machine: Machine) -> None:
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3)
    job_id = await world.submit(resources=gpus(2))
    await machine.decide()
    why = await machine.told(job_id, "evicts")
    assert why.startswith(
        "1 spot job saves and leaves for it: 0 free and 4 freed are at least the 2 GPUs that it needs"
    )
    assert f"{spot} ends for 1200 GPU-seconds, that is 4 GPUs x (0.50 no save x 600 s unsaved" in why
    asked = await machine.told(spot, "checkpointing")
    assert asked == (
        f"{job_id}, which is guaranteed, needs its GPUs: saves at the next step, leaves and waits for another place"
    )
    await machine.leaves(spot)
    assert await machine.told(spot, "evicted") == "has left its GPUs to a guaranteed job with all that it had done"
    row = await world.job(spot)
    assert (row.evictions, row.eviction_saves, row.faults) == (1, 1, 0)
    (run,) = [run for run in await world.rows(runs) if run.id == machine.runs[spot]]
    assert run.end_reason == RunEnd.PREEMPTED


async def test_both_are_explained_with_the_numbers(machine: Machine) -> None:
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3)
    job_id = await world.submit(resources=gpus(4))
    await machine.decide()
    world.clock.advance(ms=5_000)
    why = "5 s ago: 1 spot job saves and leaves for it: 0 free and 4 freed are at least the 4 GPUs that it needs there"
    assert [one for one in await explained(world, job_id) if one.startswith(why)]
    await machine.leaves(spot)
    assert "0 s ago: has left its GPUs to a guaranteed job with all that it had done" in await explained(world, spot)
    told = await explained(world, spot)
    assert "1 job of the project guaranteed or due earlier waits too, and comes first" in told


async def test_the_printed_rule_of_the_paper_can_be_chosen_and_is_told(machine: Machine) -> None:
    """A job that is known to save loses nothing and leaves by ours; by the printed rule the last checkpoint decides."""
    world = machine.world
    saves = await machine.trains(0, 1, minutes=20, evictions=0, eviction_saves=0)
    just_began = await machine.trains(2, 3, minutes=15, evictions=3)
    job_id = await world.submit(resources=gpus(2))
    world.settings.eviction_rule = "literal"
    await machine.decide()
    assert await machine.states(saves, just_began) == ["running", "checkpointing"]
    (told,) = [one for one in await explained(world, job_id) if "spot job saves and leaves" in one]
    assert "whom to end is chosen by the rule literal" in told
    assert f"{just_began} ends for 1800 GPU-seconds, that is 2 GPUs x 900 s since its last checkpoint" in told


async def test_by_our_rule_the_same_evictions_make_the_other_one_leave(machine: Machine) -> None:
    saves = await machine.trains(0, 1, minutes=20, evictions=0, eviction_saves=0)
    just_began = await machine.trains(2, 3, minutes=15, evictions=3)
    await machine.world.submit(resources=gpus(2))
    await machine.decide()
    assert await machine.states(saves, just_began) == ["checkpointing", "running"]


async def explained(world: World, job_id: str) -> list[str]:
    now_ms = world.clock.now_ms()
    async with world.database.transaction() as connection:
        job = await find_job(connection, world.project_id, job_id)
        assert job is not None
        found = await explain_job(connection, world.settings, job, now_ms=now_ms)
    return [one.text for one in found.because]


async def test_what_a_script_that_never_saves_loses_is_told_in_steps_time_and_dollars(machine: Machine) -> None:
    """Killed when the grace was over: no fault of the job's, which goes on from the beginning."""
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3, saves_ms=None)
    job_id = await world.submit(resources=gpus(4))
    await machine.decide()
    assert "50 steps since it began will be lost" in await machine.told(spot, "checkpointing")
    world.clock.advance(ms=MINUTE_MS)
    await machine.leaves(spot, saved=False, exit_code=None, signal=9)
    assert "50 steps since it began are lost" in await machine.told(spot, "steps_lost")
    told = await machine.told(spot, "evicted")
    assert told == "has left its GPUs to a guaranteed job: 11 min of its work, $0.135666 of its machine, are lost"
    row = await world.job(spot)
    assert (row.state, row.evictions, row.eviction_saves, row.faults) == ("waiting", 1, 0, 0)
    await machine.decide()
    assert await machine.states(job_id) == ["starting"]


async def test_nobody_leaves_where_the_job_would_not_fit_all_the_same(machine: Machine) -> None:
    """Or where it fits as it is, or where all are guaranteed, or where who waits is a spot job itself."""
    world = machine.world
    spot = [await machine.trains(0), await machine.trains(1), await machine.trains(2)]
    await machine.trains(3, **GUARANTEED)
    await world.submit(resources=gpus(4))
    await world.submit(resources=resources_json(Resources(1, 1, cpus_min=64)))
    await world.submit(resources=resources_json(Resources(1, 1, gpu_type="H100")))
    await world.submit(resources=gpus(1), **SPOT)
    await machine.decide()
    assert await machine.states(*spot) == ["running"] * 3
    assert await machine.held() == 4


async def test_idle_gpus_count_and_as_few_leave_as_will_do(machine: Machine) -> None:
    spot = [await machine.trains(0), await machine.trains(1)]
    job_id = await machine.world.submit(resources=gpus(3))
    await machine.decide()
    states = await machine.states(*spot)
    assert sorted(states) == ["checkpointing", "running"]
    await machine.leaves(spot[states.index("checkpointing")])
    await machine.decide()
    assert (await machine.states(job_id), await machine.held()) == (["starting"], 4)


async def test_guaranteed_jobs_come_first_whenever_they_are_due(machine: Machine) -> None:
    """A GPU that is free is not given to a spot job, which would have to leave it."""
    await machine.trains(0, 1, 2, **GUARANTEED)
    world = machine.world
    spot = await world.submit(resources=gpus(1), deadline_ms=1, **SPOT)
    job_id = await world.submit(resources=gpus(1))
    await machine.decide()
    assert await machine.states(job_id, spot) == ["starting", "queued"]


async def test_one_that_has_just_begun_is_spared_for_a_minute(machine: Machine) -> None:
    spot = await machine.trains(0, 1, 2, 3, minutes=0.5)
    await machine.world.submit(resources=gpus(1))
    await machine.decide()
    assert await machine.states(spot) == ["running"]
    loop = machine.world.control.loop
    assert loop._wake_at_ms == machine.world.clock.now_ms() + MINUTE_MS // 2
    await machine.decide(MINUTE_MS // 2)
    assert await machine.states(spot) == ["checkpointing"]


async def test_an_elastic_job_shrinks_before_anybody_is_evicted(world: World) -> None:
    pool = Pool(world)
    await pool.begin()
    machine = Machine(world)
    machine.node_id = pool.node_id
    async with world.database.transaction() as connection:
        await connection.execute(update(allocations).values(gpu_indices=[0, 1, 2]))
        await connection.execute(update(jobs).values(resources=gpus(3)))
    await pool.says(0, 1, 2)
    spot = await machine.trains(3)
    job_id = await pool.asks()
    await machine.decide(60_000)
    assert (await machine.states(spot), (await pool.size())[0]) == (["running"], 2)
    await pool.says(0, 1)
    await machine.decide()
    assert await machine.states(job_id, spot) == ["starting", "running"]


@pytest.mark.parametrize("gone", ["cancelled", "paused"])
async def test_what_was_freed_for_a_job_that_wants_it_no_more_is_anybodys(machine: Machine, gone: str) -> None:
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3)
    job_id = await world.submit(resources=gpus(2))
    await machine.decide()
    if gone == "cancelled":
        async with world.database.transaction() as connection:
            await cancel_job(connection, world.ids, world.project_id, job_id, now_ms=world.clock.now_ms())
    else:
        await world.set_job(job_id, state="paused", pause_reason=PauseReason.USER)
    await machine.leaves(spot)
    await machine.decide()
    assert await machine.states(spot) == ["starting"]


async def test_what_nobody_takes_is_kept_for_a_minute_after_all_have_left(machine: Machine) -> None:
    """However long that took. A job that may not begin yet does not hold GPUs for ever."""
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3)
    other = await world.submit(resources=gpus(1), **SPOT)
    job_id = await world.submit(resources=gpus(4))
    await machine.decide()
    await machine.decide(10 * MINUTE_MS)
    await world.set_job(job_id, not_before_ms=world.clock.now_ms() + 10 * MINUTE_MS)
    await machine.leaves(spot)
    await machine.decide(START_MS - 1)
    assert await machine.states(job_id, other, spot) == ["queued", "queued", "waiting"]
    await machine.decide(1)
    assert await machine.states(job_id, other, spot) == ["queued", "queued", "starting"]


async def test_one_that_takes_too_long_to_leave_is_waited_for_no_more(machine: Machine) -> None:
    """Its upload may last for hours: the job may be begun elsewhere meanwhile."""
    world = machine.world
    await machine.trains(0, 1, 2, 3)
    job_id = await world.submit(resources=gpus(4))
    await machine.decide()
    await machine.decide(16 * MINUTE_MS)
    assert (await world.job(job_id)).wait_reason == "begins as soon as the GPUs that are kept for it are free"
    await machine.decide(2 * MINUTE_MS)
    assert (await world.job(job_id)).wait_reason != "begins as soon as the GPUs that are kept for it are free"
    assert (await world.events(job_id)).count("evicts") == 1


async def test_a_second_one_has_somebody_else_leave_and_neither_takes_what_is_the_others(machine: Machine) -> None:
    world = machine.world
    spot = [await machine.trains(index) for index in range(4)]
    first, second = [await world.submit(resources=gpus(2)) for _ in range(2)]
    await machine.decide()
    assert sorted(await machine.states(*spot)) == ["checkpointing", "checkpointing", "running", "running"]
    for _ in range(2):
        left = [job_id for job_id in spot if await machine.states(job_id) == ["checkpointing"]]
        for job_id in left:
            await machine.leaves(job_id)
        await machine.decide()  # the first one begins
        await machine.decide()  # and now others leave for the second
    left = [job_id for job_id in spot if await machine.states(job_id) == ["checkpointing"]]
    for job_id in left:
        await machine.leaves(job_id)
    await machine.decide()
    assert await machine.states(first, second) == ["starting", "starting"]
    assert await machine.held() == 4


async def test_a_control_process_that_dies_in_between_is_followed_by_one_that_knows(machine: Machine) -> None:
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3)
    other = await world.submit(resources=gpus(1), deadline_ms=1, **SPOT)
    job_id = await world.submit(resources=gpus(4))
    await machine.decide()
    await world.restart()
    await machine.decide()
    await machine.leaves(spot)
    await world.restart()
    await machine.decide()
    assert await machine.states(job_id, spot, other) == ["starting", "waiting", "queued"]


async def test_one_that_is_done_when_it_is_asked_was_not_evicted(machine: Machine) -> None:
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3)
    job_id = await world.submit(resources=gpus(4))
    await machine.decide()
    await machine.leaves(spot, saved=False)
    await machine.decide()
    assert await machine.states(spot, job_id) == ["succeeded", "starting"]
    assert (await world.job(spot)).evictions == 0


async def test_one_that_its_owner_pauses_meanwhile_is_paused(machine: Machine) -> None:
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3)
    job_id = await world.submit(resources=gpus(4))
    await machine.decide()
    await world.set_job(spot, pause_reason=PauseReason.USER)
    await machine.leaves(spot)
    await machine.decide()
    assert await machine.states(spot, job_id) == ["paused", "starting"]
    assert "evicted" not in await world.events(spot)


@pytest.mark.parametrize(
    "change",
    [
        {"pause_reason": PauseReason.USER},
        {"state": "checkpointing"},
        {"priority_class": "guaranteed"},
        {"priority_class": "silver"},
    ],
    ids=str,
)
async def test_who_is_on_the_way_out_already_or_of_another_class_is_not_asked(
    machine: Machine, change: dict[str, Any]
) -> None:
    world = machine.world
    spot = await machine.trains(0, 1, 2, 3)
    await world.set_job(spot, **change)
    await world.submit(resources=gpus(1))
    await machine.decide()
    assert await world.events(spot) == []


async def test_what_moved_on_between_the_decision_and_its_writing_stops_all_of_it(machine: Machine) -> None:
    """Two are to leave for one job: where one of them cannot, the other one would leave in vain."""
    world = machine.world
    spot = [await machine.trains(0, 1), await machine.trains(2, 3)]
    job_id = await world.submit(resources=gpus(4))
    async with world.database.transaction() as connection:
        await connection.execute(
            text(
                "CREATE FUNCTION paused() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " RAISE EXCEPTION 'it cannot be written'; END $$"
            )
        )
        name = f"CREATE TRIGGER paused BEFORE UPDATE ON runs FOR EACH ROW WHEN (OLD.id = '{machine.runs[spot[1]]}')"
        await connection.execute(text(f"{name} EXECUTE FUNCTION paused()"))
    await machine.decide()
    assert await machine.states(*spot, job_id) == ["running", "running", "queued"]
    assert (await world.job(job_id)).set_aside_until_ms is None


_ODD: list[dict[str, Any]] = [
    {"set_aside_gpus": None},
    {"set_aside_gpus": -3},
    {"set_aside_gpus": 2_000_000_000},
    {"set_aside_place": None},
    {"set_aside_place": "node_gone"},
    {"set_aside_place": "host_gone/A100"},
    {"set_aside_until_ms": 2**62},
]


@pytest.mark.parametrize("odd", _ODD, ids=str)
async def test_rows_that_make_no_sense_stop_nobody_else(machine: Machine, odd: dict[str, Any]) -> None:
    """Of another release, or of somebody who wrote them by hand."""
    world = machine.world
    spot = await machine.trains(0, 1, 2)
    sane = {
        "set_aside_place": machine.node_id,
        "set_aside_gpus": 1,
        "set_aside_until_ms": world.clock.now_ms() + 90_000,
    }
    await world.submit(resources=gpus(1), **(sane | odd))
    await machine.decide()
    job_id = await world.submit(resources=gpus(3))
    await machine.decide()
    assert await machine.states(spot, job_id) in (["running", "queued"], ["checkpointing", "queued"])
    await machine.decide(91_000 + MINUTE_MS)
    assert (await world.job(job_id)).state == "queued"
    assert await world.job(spot)


async def test_ten_at_once_are_served_one_after_the_other(machine: Machine) -> None:
    """With as many spot jobs as there are GPUs: in the end guaranteed jobs have all of them, and no GPU two."""
    world = machine.world
    spot = [await machine.trains(index) for index in range(4)]
    asked = [await world.submit(resources=gpus(1)) for _ in range(10)]
    for _ in range(12):
        await machine.decide()
        for job_id in spot:
            if await machine.states(job_id) == ["checkpointing"]:
                await machine.leaves(job_id)
        assert await machine.held() <= 4
    assert (await machine.states(*asked)).count("starting") == 4
    assert await machine.states(*spot) == ["waiting"] * 4
    async with world.database.transaction() as connection:
        asides = select(func.count()).where(jobs.c.set_aside_until_ms.is_not(None))
        assert (await connection.execute(asides)).scalar_one() == 4
    await world.check_invariants()
