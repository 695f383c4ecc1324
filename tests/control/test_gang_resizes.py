"""A job on several machines goes on with more or fewer of them, through the loop itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allpass.recipe.packing import SCRIPT_NAME
from app.core.model.money import Money
from app.db import tables as t
from app.db.defragmentation.defragmentations import coming_together
from app.db.engine import make_engine
from app.db.jobs.reads import find_job
from app.db.money.usage import Grouping, sum_usage
from app.db.reading.sizes import MACHINES_CHANGED
from app.errors import AllpassError, Conflict, InvalidInput, NotFound
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.pause_job import pause_job
from app.services.jobs.resume_job import resume_job
from app.services.reading.explain_job import explain_job
from app.services.reading.list_sizes import list_sizes
from app.services.sizes.admit_nodes import AdmittedNodes
from app.services.sizes.resize_nodes import resize_nodes
from tests.control.dying import DyingDatabase, KilledError
from tests.control.test_coming_together import SpreadGang
from tests.control.test_gangs import MEETING, Gang, one_at_once
from tests.control.world import World
from tests.seeds import new_id, seed_app, seed_run

RECIPE = {"model": "acme/tiny", "batch_size": 8, "micro_batch": 1}


class Resizer(Gang):
    """A fine-tuning on so many machines, which has trained for a while."""

    async def trains(self, entrypoint: str = SCRIPT_NAME, **changes: Any) -> None:
        world = self.world
        async with world.database.transaction() as connection:
            world.app = await seed_app(connection, world.project_id, entrypoint=entrypoint)
        given = {"parameters": RECIPE, "template": {"nodes": self.size}}
        await self.submit(**given | changes)
        await self.begin()
        await world.set_job(self.job_id, step=7, checkpoint_step=7)
        self.here = await self.nodes()

    async def resize(self, nodes: int, **admitted: Any) -> None:
        world = self.world
        asked = AdmittedNodes(nodes, **admitted)
        async with world.database.transaction() as connection:
            await resize_nodes(connection, world.project_id, self.job_id, asked, now_ms=world.clock.now_ms())

    async def refused(self, nodes: int, kind: type[AllpassError] = Conflict, **admitted: Any) -> AllpassError:
        """With nothing changed."""
        before = await self.rows()
        with pytest.raises(kind) as raised:
            await self.resize(nodes, **admitted)
        assert await self.rows() == before
        return raised.value

    async def rows(self) -> list[Any]:
        return [await self.world.rows(table) for table in (t.jobs, t.runs, t.nodes, t.job_events)]

    async def beside(self) -> list[str]:
        """Machines that it has, and did not begin on."""
        on = {run.node_id for run in await self.runs()} or set(self.here)
        nodes = {node.id: node.state for node in await self.world.rows(t.nodes)}
        return [one for one in await self.nodes() if one not in on and nodes[one] not in ("draining", "terminating")]

    async def boot_them(self) -> None:
        await self.world.work()
        for node_id in await self.nodes():
            if (await self.world.node(node_id)).state == "booting":
                await self.world.boot(node_id)
                await self.joins(node_id)

    async def leaves(self) -> None:
        """All processes, after one step."""
        for run in reversed(await self.runs()):
            rank = run.node_rank or 0
            saved: dict[str, Any] = {"step": 9, "saved_after_stop": True} if rank == 0 else {}
            await self.say(rank, "exited", exit_code=75, **saved)

    async def arrives(self) -> None:
        """On the machines that it was given."""
        ranks = [run.node_rank or 0 for run in await self.runs()]
        for rank in ranks:
            await self.say(rank, "prepared", meeting=MEETING if rank == 0 else None)
        for rank in ranks:
            await self.say(rank, "running", step=9)

    async def begun_on(self) -> list[str]:
        return [run.node_id for run in await self.runs()]

    async def asks(self) -> tuple[int, int | None]:
        resources = (await self.world.job(self.job_id)).resources
        return resources.get("nodes", 1), resources.get("nodes_wanted")

    async def events(self, *kinds: str) -> list[str]:
        rows = [row for row in await self.world.rows(t.job_events) if row.job_id == self.job_id and row.kind in kinds]
        return [row.message for row in sorted(rows, key=lambda row: row.position)]

    async def explained(self) -> list[str]:
        world = self.world
        async with world.database.transaction() as connection:
            job = await find_job(connection, world.project_id, self.job_id)
            assert job is not None
            said = await explain_job(connection, world.settings, job, now_ms=world.clock.now_ms())
        return [one.text for one in said.because]

    async def later(self, ms: int) -> None:
        self.world.clock.advance(ms=ms)
        for node_id in await self.nodes():
            if (await self.world.node(node_id)).state == "ready":
                await self.joins(node_id)


@pytest.fixture
async def gang(world: World) -> Resizer:
    made = Resizer(world)
    await made.trains()
    return made


async def test_it_grows_at_one_step_and_keeps_its_machines(gang: Resizer) -> None:
    world = gang.world
    await gang.resize(4)
    assert await gang.asks() == (2, 4) and await gang.state() == "running"
    assert any("on 4 machines, not 2: those that it lacks are rented" in text for text in await gang.explained())
    await world.decide()
    new = await gang.beside()
    assert len(new) == 2 and await gang.state() == "running"
    await world.decide()
    assert await gang.beside() == new, "nothing more while they come"
    await gang.boot_them()
    await world.decide()
    assert await gang.state() == "checkpointing"
    await world.decide()
    assert await gang.beside() == new, "they are its own while it saves"
    await gang.leaves()
    await world.decide()
    assert sorted(await gang.begun_on()) == sorted([*gang.here, *new])
    job = await world.job(gang.job_id)
    assert (job.state, job.moves, job.faults) == ("starting", 1, 0)
    assert await gang.asks() == (4, None)
    assert await gang.events("resize_asked", MACHINES_CHANGED) == [
        "its owner wants it on 4 machines, not 2", "begins on 4 machines, after 2, as its owner wants",
    ]  # fmt: skip
    await gang.arrives()
    await gang.later(60_000)
    await world.decide()
    assert await gang.state() == "running" and len(await gang.nodes()) == 4
    await world.check_invariants()


async def test_it_shrinks_and_what_it_leaves_is_ended(gang: Resizer) -> None:
    world = gang.world
    await gang.resize(4)
    await world.decide()
    await gang.boot_them()
    await world.decide()
    await gang.leaves()
    await world.decide()
    await gang.arrives()
    await gang.resize(3)
    assert await gang.state() == "checkpointing"
    assert "goes on with 3 of them" in " ".join(await gang.explained())
    had = await gang.nodes()
    await gang.leaves()
    await world.decide()
    on = await gang.begun_on()
    assert len(on) == 3 and set(on) < set(had) and await gang.nodes() == had, "no machine was rented for it"
    assert await gang.asks() == (3, None)
    await gang.arrives()
    await gang.later(600_000)
    await world.decide()
    await world.work()
    assert sorted(await gang.nodes()) == sorted(on)
    assert (await world.job(gang.job_id)).moves == 2
    await world.check_invariants()


async def test_from_several_to_one_it_is_a_job_like_any_other(gang: Resizer) -> None:
    world = gang.world
    await gang.resize(1)
    await gang.leaves()
    await world.decide()
    (run,) = await gang.runs()
    assert (run.node_rank, run.member_of, run.node_id in gang.here) == (None, None, True)
    assert await gang.asks() == (1, None)
    assert await gang.events(MACHINES_CHANGED) == ["begins on 1 machine, after 2, as its owner wants"]
    await gang.later(600_000)
    await world.decide()
    await world.work()
    assert await gang.nodes() == [run.node_id]
    await world.check_invariants()


async def test_where_all_its_machines_are_lost_while_it_leaves_for_one_it_begins_wherever_there_is_one(
    gang: Resizer,
) -> None:
    world = gang.world
    await gang.resize(1)
    for node_id in gang.here:
        await gang.loses(node_id)
    await gang.later(120_000)
    await world.work()
    await world.decide()
    await gang.boot_them()
    await gang.later(60_000)
    await world.decide()
    (run,) = await gang.runs()
    assert run.node_rank is None and run.node_id not in gang.here
    assert await gang.asks() == (1, None)
    await world.check_invariants()


async def test_it_trains_on_where_one_does_not_come_and_tries_again(gang: Resizer) -> None:
    """Nothing that was rented is kept for longer; why is told once, and explained."""
    world = gang.world
    await gang.resize(4)
    await world.decide()
    await gang.boot_them()
    offers, world.cloud.on_offer = world.cloud.on_offer, []
    await gang.loses((await gang.beside())[0])
    for _ in range(3):
        await world.decide()
        await world.work()
    assert (await gang.beside(), await gang.state(), await gang.asks()) == ([], "running", (2, 4))
    (told,) = await gang.events("resize_waits")
    assert told == (
        "cannot go on with more machines yet: not all of its next machines came. It trains on, and tries again"
    )
    assert any("it cannot have them yet: not all of its next machines came" in text for text in await gang.explained())
    world.cloud.on_offer = offers
    await world.decide()
    assert await gang.beside() == [], "it rests"
    await gang.later(1_200_000)
    await world.decide()
    assert len(await gang.beside()) == 2
    assert (await world.job(gang.job_id)).wait_reason is None
    await world.check_invariants()


async def test_where_none_are_to_be_had_it_says_how_many_it_lacks(gang: Resizer) -> None:
    world = gang.world
    world.cloud.on_offer = []
    await gang.resize(3)
    for _ in range(3):
        await world.decide()
    (told,) = await gang.events("resize_waits")
    assert "it lacks 1 more machine with 1 x A100 at cloud" in told and await gang.state() == "running"
    await world.restart()
    await world.decide()
    assert len(await gang.events("resize_waits")) == 1, "a server that begins anew does not say it again"


async def test_where_a_limit_allows_one_of_them_none_is_rented(gang: Resizer, monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = gang.world, one_at_once(monkeypatch)
    await gang.resize(4)
    for _ in range(5):
        await world.decide()
    assert (await gang.beside(), len(asked), await gang.state()) == ([], 2, "running")
    (told,) = await gang.events("resize_waits")
    assert "1 machine is all that may be rented at once" in told


async def test_a_wish_for_more_is_taken_back(gang: Resizer) -> None:
    world = gang.world
    await gang.resize(4)
    await world.decide()
    assert len(await gang.beside()) == 2
    await gang.resize(2)
    assert await gang.asks() == (2, None)
    await world.decide()
    await world.work()
    assert (await gang.beside(), await gang.state()) == ([], "running")
    assert (await gang.events("resize_asked"))[-1] == "its owner wants it on 2 machines, not 4"
    assert not any("its owner wants it" in text for text in await gang.explained())
    await world.check_invariants()


async def test_a_larger_wish_takes_the_place_of_a_smaller_one(gang: Resizer) -> None:
    world = gang.world
    await gang.resize(3)
    await world.decide()
    first = await gang.beside()
    await gang.resize(4)
    await world.decide()
    assert len(await gang.beside()) == 2 and set(first) < set(await gang.beside())
    await gang.resize(1)
    await gang.leaves()
    await world.decide()
    assert len(await gang.begun_on()) == 1
    await world.check_invariants()


async def test_paused_meanwhile_it_asks_for_as_many_when_it_is_resumed(gang: Resizer) -> None:
    world = gang.world
    await gang.resize(3)
    await world.decide()
    await gang.boot_them()
    async with world.database.transaction() as connection:
        await pause_job(connection, world.ids, world.project_id, gang.job_id, now_ms=world.clock.now_ms())
    await world.decide()
    await world.work()
    assert await gang.beside() == []
    assert "leaves its machines just now" in str(await gang.refused(2))
    await gang.leaves()
    assert await gang.state() == "paused" and await gang.asks() == (2, 3)
    async with world.database.transaction() as connection:
        await resume_job(connection, world.project_id, gang.job_id, now_ms=world.clock.now_ms())
    assert await gang.asks() == (3, None)
    await world.decide()
    await gang.boot_them()
    await world.decide()
    assert len(await gang.begun_on()) == 3
    await world.check_invariants()


async def test_cancelled_meanwhile_nothing_is_left(gang: Resizer) -> None:
    world = gang.world
    await gang.resize(3)
    await world.decide()
    await gang.boot_them()
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, gang.job_id, now_ms=world.clock.now_ms())
    for run in reversed(await gang.runs()):
        await gang.say(run.node_rank, "exited", exit_code=0, killed=True)
    await world.decide()
    await world.work()
    assert await gang.nodes() == []
    assert "has cancelled" in str(await gang.refused(3))


async def test_a_new_machine_that_is_lost_once_it_has_left(gang: Resizer) -> None:
    """It begins where it was, at once, and tries again."""
    world = gang.world
    await gang.resize(3)
    await world.decide()
    await gang.boot_them()
    await world.decide()
    await gang.loses((await gang.beside())[0])
    await gang.leaves()
    await world.decide()
    assert sorted(await gang.begun_on()) == sorted(gang.here)
    assert await gang.asks() == (2, 3)
    await gang.arrives()
    await gang.later(1_200_000)
    await world.decide()
    assert len(await gang.beside()) == 1
    await world.check_invariants()


async def test_an_old_machine_that_is_lost_while_the_new_ones_come(gang: Resizer) -> None:
    """No fault of the resize: it goes on from its checkpoint, on as many as it had."""
    world = gang.world
    await gang.resize(3)
    await world.decide()
    await gang.boot_them()
    new = await gang.beside()
    await gang.loses(gang.here[1])
    assert await gang.state() == "waiting"
    await gang.later(120_000)
    await world.decide()
    assert sorted(await gang.begun_on()) == sorted([gang.here[0], *new])
    assert await gang.asks() == (2, 3)
    await world.check_invariants()


@pytest.mark.parametrize("nodes", [1, 3])
async def test_a_job_that_waits_asks_for_as_many_from_then_on(world: World, nodes: int) -> None:
    gang = Resizer(world)
    await gang.submit()
    await world.decide()
    await gang.resize(nodes)
    assert await gang.asks() == (nodes, None)
    for _ in range(2):
        await world.decide()
        await gang.boot_them()
    await world.decide()
    assert len(await gang.begun_on()) == nodes
    await world.check_invariants()


async def test_a_job_of_one_machine_that_waits_asks_for_several(world: World) -> None:
    gang = Resizer(world, nodes=1)
    await gang.submit()
    await gang.resize(2)
    for _ in range(2):
        await world.decide()
        await gang.boot_them()
    await world.decide()
    assert [run.node_rank for run in await gang.runs()] == [0, 1]
    await world.check_invariants()


@pytest.fixture
async def single(world: World) -> Resizer:
    made = Resizer(world, nodes=1)
    await made.trains()
    return made


async def test_from_one_to_several_its_own_machine_stays_one_of_them(single: Resizer) -> None:
    world = single.world
    await single.resize(3)
    await world.decide()
    new = await single.beside()
    assert len(new) == 2 and await single.state() == "running"
    await single.boot_them()
    await world.decide()
    assert await single.state() == "checkpointing"
    await world.decide()
    assert await single.beside() == new, "they are its own while it saves"
    await single.leaves()
    await world.decide()
    assert sorted(await single.begun_on()) == sorted([*single.here, *new])
    assert await single.asks() == (3, None)
    job = await world.job(single.job_id)
    assert (job.state, job.moves, job.faults) == ("starting", 1, 0)
    await single.arrives()
    await single.later(600_000)
    await world.decide()
    await world.work()
    assert len(await single.nodes()) == 3
    await world.check_invariants()


async def test_where_one_that_it_was_to_have_is_lost_it_goes_on_on_its_own(single: Resizer) -> None:
    world = single.world
    await single.resize(2)
    await world.decide()
    await single.boot_them()
    await world.decide()
    await single.loses((await single.beside())[0])
    await single.leaves()
    await world.decide()
    (run,) = await single.runs()
    assert ([run.node_id], run.node_rank, await single.asks()) == (single.here, None, (1, 2))
    await single.arrives()
    world.cloud.on_offer = []
    await single.later(1_200_000)
    await world.decide()
    assert await single.state() == "running"
    assert "it lacks 1 more machine" in (await single.events("resize_waits"))[-1]
    await world.check_invariants()


async def test_beside_another_job_it_stays_on_one(single: Resizer) -> None:
    """Which a policy may then take off that machine, as ever."""
    world = single.world
    (node_id,) = single.here
    other = await world.submit(state="running", epoch=1)
    async with world.database.transaction() as connection:
        await connection.execute(t.nodes.update().where(t.nodes.c.id == node_id).values(gpu_count=2))
        await seed_run(connection, world.project_id, other, node_id, epoch=1, state="running", gpu_indices=[1])
    await single.resize(2)
    await world.decide()
    assert await single.nodes() == [node_id]
    (told,) = await single.events("resize_waits")
    assert "it shares its machine with another job" in told


async def test_who_may_not(world: World) -> None:
    gang = Resizer(world)
    await gang.trains("train.py")
    error = await gang.refused(3)
    assert error.error_code == "not_elastic" and "pause the job, resize it and resume it" in str(error)
    gang.job_id = new_id("job")
    await gang.refused(2, NotFound)


async def test_code_that_has_not_said_that_it_stops_together(world: World) -> None:
    gang = Resizer(world)
    gang.stops_together = False
    await gang.trains()
    assert (await gang.refused(3)).error_code == "not_elastic"


async def test_one_that_would_lose_its_steps(gang: Resizer) -> None:
    now_ms = gang.world.clock.now_ms()
    await gang.world.set_job(gang.job_id, refused_ms=now_ms, refused_why="a pipe is no file", step=30)
    error = await gang.refused(1)
    assert error.error_code == "steps_would_be_lost" and "23 steps" in str(error)


async def test_more_than_it_may_cost(gang: Resizer) -> None:
    await gang.world.set_job(gang.job_id, max_hourly_micros=Money.usd("5").micros)
    error = await gang.refused(3)
    assert (error.param, "$6.00/h" in str(error)) == ("max_hourly_usd", True)
    await gang.resize(1)


async def test_machines_that_would_have_nothing_to_do(gang: Resizer) -> None:
    error = await gang.refused(9, InvalidInput)
    assert error.param == "nodes" and "9 GPUs of 9 machines have no work with 8 rows in a step; it can be on 8" in str(
        error
    )
    await gang.world.set_job(gang.job_id, parameters={"model": "acme/tiny", "batch_size": 8})
    lead = (await gang.runs())[0]
    async with gang.world.database.transaction() as connection:
        await connection.execute(t.runs.update().where(t.runs.c.id == lead.id).values(facts={"micro_batch": 4}))
    assert "2 parts in a step, of 4 rows" in str(await gang.refused(3, InvalidInput)), "as its steps were cut so far"


async def test_what_does_not_fit_is_said_once_it_may_be_resized_at_all(gang: Resizer) -> None:
    no = InvalidInput("nodes: it cannot be on 3 machines: needs 90 GB", param="nodes")
    assert "90 GB" in str(await gang.refused(3, InvalidInput, refused=no))
    await gang.resize(2, refused=no)


async def test_a_training_that_is_split_over_its_machines_has_no_fewer(gang: Resizer) -> None:
    template = {"nodes": 2, "training": {"method": "full", "sharded": True}}
    await gang.world.set_job(gang.job_id, template=template, parameters={**RECIPE, "method": "full", "sharded": True})
    error = await gang.refused(1)
    assert error.error_code == "not_elastic" and "split over 2 machines" in str(error)
    await gang.resize(3)


@pytest.mark.parametrize(
    ("template", "why"),
    [({"elastic": True}, "elastic"), ({"priority_class": "spot"}, "spot"), ({"kind": "interactive"}, "serverless")],
)
async def test_what_a_job_on_several_machines_cannot_be(world: World, template: dict[str, Any], why: str) -> None:
    gang = Resizer(world, nodes=1)
    await gang.submit(template=template)
    error = await gang.refused(2, InvalidInput)
    assert error.param == "nodes" and why in str(error)


async def test_while_it_is_started_or_leaves_it_is_tried_again_later(gang: Resizer) -> None:
    await gang.resize(1)
    assert "leaves its machines just now" in str(await gang.refused(2))
    await gang.leaves()
    await gang.world.decide()
    assert "is being started" in str(await gang.refused(2))


async def on_hosts(world: World, folder: Path) -> SpreadGang:
    """On a host under leaf-1 and one under leaf-2 of a pool; a third one, under leaf-1, is free."""
    async with world.database.transaction() as connection:
        world.app = await seed_app(connection, world.project_id, entrypoint=SCRIPT_NAME)
    made = SpreadGang(world, folder)
    await made.spread(template={"nodes": 2, "gpu": {"count": 4}}, parameters={**RECIPE, "batch_size": 16})
    return made


async def test_of_a_pool_it_has_the_host_that_is_closest(world: World, tmp_path: Path) -> None:
    made = await on_hosts(world, tmp_path)
    await made.hosts.machine("9", labels={"switch": "leaf-3"})
    await made.all_are_heard()
    async with world.database.transaction() as connection:
        asked = AdmittedNodes(3)
        await resize_nodes(connection, world.project_id, made.job_id, asked, now_ms=world.clock.now_ms())
    await made.decides()
    assert await made.has() == "abc"


async def test_while_it_comes_together_it_is_not_resized(world: World, tmp_path: Path) -> None:
    made = await on_hosts(world, tmp_path)
    await made.is_asked()
    async with world.database.transaction() as connection:
        with pytest.raises(Conflict, match="on its way"):
            asked = AdmittedNodes(3)
            await resize_nodes(connection, world.project_id, made.job_id, asked, now_ms=world.clock.now_ms())


async def test_one_that_is_to_be_resized_does_not_come_together(world: World, tmp_path: Path) -> None:
    """Two plans for one job would each rent machines for it."""
    made = await on_hosts(world, tmp_path)
    async with world.database.transaction() as connection:
        asked = AdmittedNodes(4)
        await resize_nodes(connection, world.project_id, made.job_id, asked, now_ms=world.clock.now_ms())
    await made.hosts.asks()
    for _ in range(3):
        await made.round()
    assert await made.has() == "ab" and await made.on() == "ab"
    async with world.database.transaction() as connection:
        assert await coming_together(connection, since_ms=0) == []


async def test_how_many_it_had_and_what_each_cost(gang: Resizer) -> None:
    """All of its machines together, as of one run."""
    world = gang.world
    await gang.later(3_600_000)
    await gang.resize(3)
    await world.decide()
    await gang.boot_them()
    await world.decide()
    await gang.leaves()
    await world.decide()
    await gang.arrives()
    await gang.later(3_600_000)
    await world.meter()
    async with world.database.transaction() as connection:
        sizes = await list_sizes(connection, gang.job_id, None, limit=10)
        spent = await sum_usage(
            connection, world.project_id, Grouping.SIZE, job_id=gang.job_id, from_ms=None, to_ms=None, limit=9
        )
    told = [(one.held.gpus, one.held.before, one.why.value, one.held.price_per_hour) for one in sizes]
    assert told == [(2, None, "begun", Money.usd("4")), (3, 2, "asked", Money.usd("6"))]
    assert sizes[1].text == "begins on 3 machines, after 2, as its owner wants"
    assert {"2", "3"} <= {row.key for row in spent.rows}, spent
    by_size = {row.key: row.gpu_ms for row in spent.rows}
    assert by_size["2"] >= 2 * 3_600_000 and by_size["3"] >= 3 * 3_600_000


@pytest.mark.parametrize(("has", "nodes"), [(2, 3), (2, 1), (1, 3)])
async def test_a_server_that_dies_at_any_statement_resizes_once(
    world: World, database_url: str, has: int, nodes: int
) -> None:
    """Whenever it died, all that it lacks is rented or nothing, there is one set of runs, and in the end one move."""
    gang, died, lifetime = Resizer(world, nodes=has), 0, 0
    await gang.trains()
    alive = world.seen_by_control
    await gang.resize(nodes)
    engine = make_engine(database_url, pool_size=4, timeout_s=10.0)
    try:
        while await gang.asks() != (nodes, None):
            lifetime += 3
            assert lifetime < 400, "it gets there"
            world.seen_by_control = DyingDatabase(engine, lifetime)
            try:
                await world.restart()
                await world.decide()
            except KilledError:
                died += 1
                assert len(await gang.nodes()) in (has, max(has, nodes)) and len(await gang.runs()) in (0, has, nodes)
                await world.check_invariants()
            world.seen_by_control = alive
            await world.restart()
            await gang.boot_them()
            if await gang.state() == "checkpointing":
                await gang.leaves()
    finally:
        world.seen_by_control = alive
        await world.restart()
        await engine.dispose()
    assert died > 2
    assert len(await gang.begun_on()) == nodes
    assert (await world.job(gang.job_id)).moves == 1
    await world.check_invariants()
