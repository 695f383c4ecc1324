"""Jobs on several machines that are spread over switches come together, through the loop itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from allpass.recipe.packing import SCRIPT_NAME
from app.core.defragmentation import Goal, RepairState, SwitchRepair
from app.core.model.health import Chore
from app.core.model.job import Resources
from app.core.model.pool import JOINED
from app.core.topology import entropy
from app.db import tables as t
from app.db.defragmentation.defragmentations import coming_together, open_defragmentations, repairs_of
from app.db.engine import make_engine
from app.db.jobs.reads import find_job
from app.services.defragmentation.ask_defragmentation import plan_defragmentation
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.pause_job import pause_job
from app.services.reading.explain_job import explain_job
from tests.control.defragging import HOUR_MS, Fragmented
from tests.control.dying import DyingDatabase, KilledError
from tests.control.test_gang_spread import NetworkedHosts
from tests.control.test_gangs import MEETING, Gang, one_at_once
from tests.control.world import World
from tests.seeds import resources_json, seed_app


class SpreadGang(Gang):
    """A job on two hosts of a pool, under leaf-1 and leaf-2; it has trained for an hour when a third host, under
    leaf-1, joins."""

    def __init__(self, world: World, folder: Path, others: str = "") -> None:
        """`others`: further hosts under leaf-1, on which it begins, too."""
        super().__init__(world, nodes=2 + len(others))
        self.hosts, self.others = Fragmented(world, folder, Goal.POOLS), others
        self.bits_per_s: dict[str, int] = {}  # by host: how fast it reaches the first machine

    async def spread(self, **changes: Any) -> None:
        world, hosts = self.world, self.hosts
        await hosts.begin()
        own = NetworkedHosts(world.clock, name=JOINED)
        own.on_offer = []
        world.other_clouds = [own]
        await world.restart()
        await hosts.machine("a", labels={"switch": "leaf-1"})
        await hosts.machine("b", labels={"switch": "leaf-2"})
        for name in self.others:
            await hosts.machine(name, labels={"switch": "leaf-1"})
        resources = resources_json(Resources(4, 4, nodes=self.size))
        given = {"saves_ms": 1, "deadline_ms": world.clock.now_ms() + 100 * HOUR_MS}
        self.job_id = await world.submit(resources=resources, **given | changes)
        await self.arrives()
        self.first = (await self.runs())[0].id
        world.clock.advance(ms=HOUR_MS)
        await world.set_job(self.job_id, step=50, checkpoint_step=50)
        await hosts.machine("c", labels={"switch": "leaf-1"})
        await self.all_are_heard()

    async def all_are_heard(self) -> None:
        await self.hosts.heard()
        for node_id in await self.nodes():
            if (await self.world.node(node_id)).state == "ready":
                await self.joins(node_id)

    async def round(self, after_ms: int = 1_000) -> int:
        failed = await self.hosts.round(after_ms)
        await self.all_are_heard()
        return failed

    async def arrives(self) -> None:
        """Its machines boot, are prepared, and run."""
        await self.decides()
        await self.decides()
        names = {node.id: node.host.removeprefix("host_")[0] for node in await self.world.rows(t.nodes)}
        for rank, run in enumerate(await self.runs()):
            speed = self.bits_per_s.get(names[run.node_id])
            await self.say(rank, "prepared", meeting=MEETING if rank == 0 else None, network_bits_per_s=speed)
        for rank in range(self.size):
            await self.say(rank, "running", step=50)

    async def decides(self) -> None:
        await self.world.decide()
        await self.hosts.works()
        await self.all_are_heard()

    async def leaves(self) -> None:
        for rank in (1, 0):
            saved: dict[str, Any] = {"step": 51, "saved_after_stop": True} if rank == 0 else {}
            await self.say(rank, "exited", exit_code=75, **saved)

    async def on(self) -> str:
        """The hosts on which it has runs."""
        nodes = {node.id: node.host for node in await self.world.rows(t.nodes)}
        return "".join(sorted(nodes[run.node_id].removeprefix("host_")[0] for run in await self.runs()))

    async def has(self) -> str:
        """The hosts on which it has machines."""
        its = set(await self.nodes())
        nodes = [node for node in await self.world.rows(t.nodes) if node.id in its]
        return "".join(sorted(node.host.removeprefix("host_")[0] for node in nodes if node.state != "draining"))

    async def repair(self) -> SwitchRepair:
        (repair,) = repairs_of((await self.hosts.shown()).row.found)
        return repair

    async def is_asked(self) -> None:
        """For what comes together, and its machine is rented."""
        await self.hosts.asks()
        await self.round()
        await self.round()
        assert await self.has() == "abc"

    async def until_over(self) -> SwitchRepair:
        for _ in range(20):
            await self.round()
            for move in await self.hosts.moving():
                await self.hosts.completes(move)
            await self.decides()
            if (await self.hosts.shown()).row.ended_ms is not None:
                return await self.repair()
        raise AssertionError(await self.repair())

    async def explained(self) -> dict[str, dict[str, Any]]:
        world = self.world
        async with world.database.transaction() as connection:
            job = await find_job(connection, world.project_id, self.job_id)
            assert job is not None
            said = await explain_job(connection, world.settings, job, now_ms=world.clock.now_ms())
        return {one.text: dict(one.data) for one in said.because}


@pytest.fixture
async def gang(world: World, tmp_path: Path) -> SpreadGang:
    made = SpreadGang(world, tmp_path)
    await made.spread()
    assert await made.on() == "ab"
    return made


async def test_it_comes_together_at_one_step_and_rests(gang: SpreadGang) -> None:
    world = gang.world
    await gang.is_asked()
    await gang.decides()
    assert (await gang.state(), await gang.on(), await gang.has()) == ("checkpointing", "ab", "abc")
    await gang.say(1, "exited", exit_code=75)
    await gang.decides()
    assert await gang.has() == "abc", "what it goes to is its own while one machine after the other is left"
    await gang.say(0, "exited", exit_code=75, step=51, saved_after_stop=True)
    world.clock.advance(ms=9_000)
    await gang.all_are_heard()
    await gang.arrives()
    assert (await gang.state(), await gang.on()) == ("running", "ac")
    repair = await gang.until_over()
    assert (repair.state, repair.there) == (RepairState.DONE, "2 under leaf-1")
    assert (await gang.hosts.shown()).row.end_message == "1 of 1 job came together"
    assert await gang.has() == "ac", "what it has left is given back"
    told = await gang.explained()
    assert "all 2 machines are under switch leaf-1" in told
    (said,) = [text for text in told if "came together" in text]
    assert "they were 1 under leaf-1, 1 under leaf-2 (entropy 0.69), and are 2 under leaf-1 (entropy 0.00)" in said
    assert told[said]["pause_s"] >= 9
    job = await world.job(gang.job_id)
    assert (job.moves, job.faults) == (1, 0)
    messages = await gang.messages()
    assert any(one.startswith("rents another machine while it trains, to come together: its 2 ") for one in messages)
    assert any(one.startswith("comes together: its 2 machines are 1 under leaf-1") for one in messages)
    world.clock.advance(ms=HOUR_MS)
    await gang.all_are_heard()
    await gang.hosts.asks()
    await gang.round()
    await gang.round()
    assert (await gang.hosts.shown()).row.end_message == "there was nothing to vacate"
    await world.check_invariants()


async def test_a_plan_says_it_and_does_nothing(gang: SpreadGang) -> None:
    world = gang.world
    plan = await plan_defragmentation(world.database, world.settings, Goal.POOLS, None, 20, now_ms=world.clock.now_ms())
    (repair,) = plan.repairs
    assert (repair.here, repair.there, repair.places) == (
        "1 under leaf-1, 1 under leaf-2",
        "2 under leaf-1",
        ("host_c/A100",),
    )
    assert repair.spread == pytest.approx(entropy([1, 1]), abs=1e-4) and repair.spread_there == 0
    assert await gang.has() == "ab" and await gang.state() == "running"


async def test_code_that_does_not_stop_at_one_step_stays(world: World, tmp_path: Path) -> None:
    made = SpreadGang(world, tmp_path)
    made.stops_together = False
    await made.spread()
    plan = await plan_defragmentation(world.database, world.settings, Goal.POOLS, None, 20, now_ms=world.clock.now_ms())
    assert plan.repairs == ()
    assert (
        dict(plan.left_alone)["is spread over switches, and does not say that all of its machines stop after one step"]
        == 1
    )


async def test_by_schedule_it_stays_as_long_as_nobody_knows_what_it_would_save(gang: SpreadGang) -> None:
    gang.world.settings.defrag_every_s = 60
    for _ in range(3):
        await gang.round(after_ms=61_000)
    assert await gang.world.rows(t.defragmentations) == []


TRAINING = {"method": "lora", "batch_size": 12, "sequence_length": 512}
# A third of what is trained, in float32, of each of the two other machines: of the gradients, and of their sums.
BYTES = 2 * 2 * 11_272_192 * 4 / 3


@pytest.mark.parametrize(
    ("entrypoint", "far", "known"),
    [
        (SCRIPT_NAME, 1_000_000_000, True),
        (SCRIPT_NAME, 10_000_000_000, True),
        (SCRIPT_NAME, None, False),
        ("train.py", 1_000_000_000, False),
    ],
)
async def test_what_it_saves_is_known_of_the_recipe_by_what_was_measured_between_its_machines(
    world: World, tmp_path: Path, entrypoint: str, far: int | None, known: bool
) -> None:
    """By schedule it comes together where that is twice its pause."""
    async with world.database.transaction() as connection:
        world.app = await seed_app(connection, world.project_id, entrypoint=entrypoint)
    made = SpreadGang(world, tmp_path, others="e")
    made.bits_per_s = {"a": 10_000_000_000, "e": 10_000_000_000} | ({} if far is None else {"b": far})
    template = {"nodes": 3, "model": {"name": "llama-3.2-1b"}, "training": TRAINING}
    await made.spread(template=template, plan="it fits", total_steps=1_050)
    lead = (await made.runs())[0]
    assert (lead.layout is not None) is (entrypoint == SCRIPT_NAME)
    assert lead.layout is None or (lead.layout["gpus"], lead.layout["accumulation"]) == (3, 1)
    world.settings.defrag_every_s = 60
    for _ in range(3):
        await made.round(after_ms=61_000)
    rows = await world.rows(t.defragmentations)
    pays = known and far == 1_000_000_000
    assert len(rows) == pays
    if pays:
        (repair,) = repairs_of(rows[0].found)
        assert repair.gain_ms == pytest.approx(1_000 * BYTES * 8_000 * (1e-9 - 1e-10), rel=1e-3)
        assert await made.has() == "abce"


async def test_a_machine_that_never_comes_leaves_it_where_it_is(gang: SpreadGang) -> None:
    await gang.is_asked()
    (coming,) = set(await gang.nodes()) - {run.node_id for run in await gang.runs()}
    await gang.loses(coming)
    await gang.decides()
    repair = await gang.until_over()
    assert (repair.state, repair.why) == (RepairState.DROPPED, "not all of its next machines came")
    assert (await gang.state(), await gang.on(), await gang.has()) == ("running", "ab", "ab")
    await gang.world.check_invariants()


async def test_a_machine_that_takes_too_long_is_let_go(gang: SpreadGang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang.world, "boot", _nothing)
    await gang.is_asked()
    for _ in range(4):
        gang.world.clock.advance(ms=600_000)
        await gang.all_are_heard()
        await gang.round()
        await gang.decides()
    repair = await gang.repair()
    assert repair.state is RepairState.DROPPED and repair.why.startswith("it took longer than")
    await gang.decides()
    assert (await gang.state(), await gang.on(), await gang.has()) == ("running", "ab", "ab")


async def _nothing(node_id: str) -> None:
    """It does not boot."""


async def test_where_nobody_carries_it_on_decisions_let_go_of_what_was_rented(gang: SpreadGang) -> None:
    """The chore fails, or jobs are moved by stop-and-go from now on."""
    await gang.is_asked()
    gang.world.settings.moves = "stop_and_go"
    for _ in range(3):
        await gang.decides()
    assert (await gang.state(), await gang.on(), await gang.has()) == ("running", "ab", "ab")


@pytest.mark.parametrize("ends", [pause_job, cancel_job])
async def test_paused_or_cancelled_meanwhile_it_goes_nowhere(gang: SpreadGang, ends: Any) -> None:
    world = gang.world
    await gang.is_asked()
    async with world.database.transaction() as connection:
        await ends(connection, world.ids, world.project_id, gang.job_id, now_ms=world.clock.now_ms())
    await gang.decides()
    if await gang.runs():
        await gang.leaves()
    repair = await gang.until_over()
    assert repair.state is RepairState.DROPPED
    for _ in range(3):
        await gang.decides()
    assert (await gang.runs(), await gang.has()) == ([], "")
    await world.check_invariants()


async def test_it_ends_meanwhile_and_nothing_is_left(gang: SpreadGang) -> None:
    await gang.is_asked()
    await gang.say(1, "exited", exit_code=0)
    await gang.say(0, "exited", step=60, exit_code=0)
    repair = await gang.until_over()
    assert (repair.state, repair.why) == (RepairState.DROPPED, "the job is over")
    for _ in range(3):
        await gang.decides()
    assert await gang.has() == ""
    await gang.world.check_invariants()


async def test_a_host_that_vanishes_before_it_begins_drops_the_plan(gang: SpreadGang) -> None:
    await gang.hosts.asks()
    await gang.round()
    async with gang.world.database.transaction() as connection:
        await connection.execute(update(t.hosts).where(t.hosts.c.id == "host_c").values(left_ms=1))
    repair = await gang.until_over()
    assert (repair.state, repair.why) == (RepairState.DROPPED, "what it was to move to is not free any more")
    assert await gang.has() == "ab"


async def test_a_next_machine_that_is_lost_while_it_saves_costs_nothing_more(gang: SpreadGang) -> None:
    """It begins again where it was, and that is said."""
    await gang.is_asked()
    await gang.decides()
    (coming,) = set(await gang.nodes()) - {run.node_id for run in await gang.runs()}
    await gang.loses(coming)
    await gang.leaves()
    await gang.arrives()
    assert await gang.on() == "ab"
    repair = await gang.until_over()
    assert repair.why.startswith("the job began again otherwise")
    await gang.world.check_invariants()


async def test_one_of_its_own_machines_that_is_lost_has_it_begin_on_the_others(gang: SpreadGang) -> None:
    await gang.is_asked()
    nodes = {node.id: node.host for node in await gang.world.rows(t.nodes)}
    (lost,) = [run.node_id for run in await gang.runs() if nodes[run.node_id] == "host_b/A100"]
    await gang.loses(lost)
    gang.world.clock.advance(ms=120_000)
    await gang.all_are_heard()
    await gang.arrives()
    assert await gang.on() == "ac"
    assert (await gang.until_over()).state is RepairState.DONE


async def test_it_does_not_begin_while_another_job_waits_for_what_it_could_move_to(gang: SpreadGang) -> None:
    """For a minute: who has only just come has a place by the next decision."""
    world = gang.world
    await gang.hosts.asks()
    await gang.round()
    other = await world.submit(resources=resources_json(Resources(4, 4)), saves_ms=1)
    await gang.round()
    assert (await gang.repair()).state is RepairState.WAITING and await gang.has() == "ab"
    world.clock.advance(ms=60_000)
    await gang.round()
    repair = await gang.repair()
    assert repair.why.endswith("another job waits for what it could move to")
    for _ in range(2):
        await gang.decides()
    assert (await world.job(other)).state != "queued"


async def test_while_it_comes_nobody_else_has_what_was_rented_for_it(gang: SpreadGang) -> None:
    await gang.is_asked()
    other = await gang.world.submit(resources=resources_json(Resources(4, 4)), saves_ms=1)
    for _ in range(2):
        await gang.decides()
    assert (await gang.world.job(other)).state == "queued"
    await gang.leaves()
    await gang.arrives()
    assert await gang.on() == "ac"
    await gang.until_over()
    for _ in range(2):
        await gang.decides()
    assert (await gang.world.job(other)).state != "queued", "it has what was left"


async def crowded(gang: SpreadGang) -> None:
    """A small job is on the host that would do, and there is room for it beside another one."""
    await gang.hosts.machine("d", labels={"switch": "leaf-3"})
    await gang.hosts.trains("x", "c", 1)
    await gang.hosts.trains("y", "d", 2)


async def test_a_host_is_vacated_for_it_and_nobody_comes_there_before_it(gang: SpreadGang) -> None:
    world = gang.world
    await crowded(gang)
    await gang.hosts.asks()
    await gang.round()
    await gang.round()
    (move,) = await gang.hosts.moving()
    small = await world.submit(resources=resources_json(Resources(3, 3)), saves_ms=1)
    await gang.decides()
    assert (await world.job(small)).state == "queued", "host c has three free GPUs, and is closed"
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, small, now_ms=world.clock.now_ms())
    await gang.hosts.completes(move)
    for _ in range(4):
        await gang.round()
    assert await gang.hosts.states() == ["freed"] and await gang.has() == "abc"
    await gang.decides()
    await gang.leaves()
    await gang.arrives()
    repair = await gang.until_over()
    assert (await gang.on(), repair.state) == ("ac", RepairState.DONE)
    assert (await gang.hosts.shown()).row.end_message == "1 of 1 node vacated, 1 of 1 job came together"
    await world.check_invariants()


async def test_where_the_small_job_cannot_move_it_stays_and_the_host_opens(gang: SpreadGang) -> None:
    world = gang.world
    await crowded(gang)
    await gang.hosts.asks()
    await gang.round()
    await gang.round()
    (move,) = await gang.hosts.moving()
    async with world.database.transaction() as connection:
        await pause_job(connection, world.ids, world.project_id, gang.job_id, now_ms=world.clock.now_ms())
    await gang.round()
    assert (await gang.repair()).state is RepairState.DROPPED
    await gang.hosts.completes(move)
    await gang.leaves()
    await gang.until_over()
    assert await gang.hosts.states() == ["dropped"]
    small = await world.submit(resources=resources_json(Resources(4, 4)), saves_ms=1)
    await gang.decides()
    await gang.decides()
    assert (await world.job(small)).state != "queued"
    await world.check_invariants()


async def test_called_off_before_it_begins_nothing_is_rented(gang: SpreadGang) -> None:
    await gang.hosts.asks()
    await gang.round()
    await gang.hosts.calls_off()
    repair = await gang.until_over()
    assert (repair.why, await gang.has()) == ("it was called off", "ab")


async def test_where_a_limit_forbids_it_it_is_tried_three_times(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SpreadGang(world, tmp_path)
    await made.spread()
    async with world.database.transaction() as connection:  # neither of two others may be rented with the other
        await connection.execute(update(t.hosts).where(t.hosts.c.id == "host_c").values(labels={"switch": "leaf-3"}))
    await made.hosts.machine("d", labels={"switch": "leaf-3"})
    asked = one_at_once(monkeypatch)
    await made.hosts.asks()
    repair = await made.until_over()
    assert (repair.state, repair.tries, len(asked)) == (RepairState.DROPPED, 3, 6)
    assert (await made.has(), await made.state()) == ("ab", "running")


async def test_rows_that_are_not_ours_stop_nobody(gang: SpreadGang) -> None:
    world = gang.world
    await gang.is_asked()
    async with world.database.transaction() as connection:
        found = {"repairs": [{"job_id": 7}, None, "x"]}
        await connection.execute(update(t.defragmentations).values(found=found))
        assert await coming_together(connection, since_ms=0) == []
        (row,) = await open_defragmentations(connection)
        assert repairs_of(row.found) == []
    for _ in range(3):
        await gang.round()
        await gang.decides()
    assert (await gang.state(), await gang.has()) == ("running", "ab")


async def test_a_server_that_dies_at_any_statement_brings_it_together_once(gang: SpreadGang, database_url: str) -> None:
    """Whenever it died, it trains on all of its machines or on none, and has at most one beside them."""
    world, died, lifetime = gang.world, 0, 0
    await gang.hosts.asks()
    alive = world.seen_by_control
    engine = make_engine(database_url, pool_size=4, timeout_s=10.0)
    try:
        while await gang.on() != "ac" or (await gang.hosts.shown()).row.ended_ms is None:
            lifetime += 3
            assert lifetime < 900, "it gets there"
            world.seen_by_control = DyingDatabase(engine, lifetime)
            world.clock.advance(ms=1_000)
            await gang.all_are_heard()
            try:
                await world.restart()
                await world.control.do(Chore.DEFRAG)
                await world.decide()
            except KilledError:
                died += 1
                assert len(await gang.runs()) in (0, 2)
                assert len(await gang.nodes()) <= 3
                await world.check_invariants()
            world.seen_by_control = alive
            await world.restart()
            await gang.hosts.works()
            await gang.all_are_heard()
            if await gang.state() == "checkpointing":
                await gang.leaves()
            if await gang.state() in ("waiting", "starting") and not await gang.runs():
                await gang.decides()
            if await gang.state() == "starting":
                for rank in range(2):
                    await gang.say(rank, "prepared", meeting=MEETING if rank == 0 else None)
                for rank in range(2):
                    await gang.say(rank, "running", step=51)
    finally:
        world.seen_by_control = alive
        await world.restart()
        await engine.dispose()
    assert died > 2
    assert (await world.job(gang.job_id)).moves == 1
    assert (await gang.repair()).state is RepairState.DONE
    await world.check_invariants()
