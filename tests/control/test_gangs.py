"""Jobs on several machines, through the loop itself: rented at once, begun together, ended together."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select, update

from allpass.recipe.packing import SCRIPT_NAME
from allpass.wire.agent import ExitReport, RunReport
from allpass.wire.gangs import Meeting
from app.control.renting import Rentals
from app.core.model.job import Resources
from app.core.model.node import NodeState, Tier
from app.db import tables as t
from app.db.engine import make_engine
from app.db.fences import hold_fence
from app.db.nodes.agents import set_heartbeat
from app.db.runs.desired_state import orders
from app.errors import Fenced
from app.services.gangs.hooks import GangHooks, wanted_of_gang
from app.services.jobs.cancel_job import cancel_job
from app.services.jobs.pause_job import pause_job
from app.services.nodes.lose_node import lose_node
from app.services.runs.apply_run_reports import apply_run_reports
from tests.control.dying import DyingDatabase, KilledError
from tests.control.fake_provider import make_offer
from tests.control.world import World
from tests.seeds import resources_json, seed_app

JOINS = {"host": {"reads": ["listing", "gang"]}}
MEETING = Meeting(address="10.0.0.1", port=4321, code_port=4322, key="a" * 64)


class Gang:
    """A job on so many machines of a company whose machines of one region reach each other."""

    def __init__(self, world: World, nodes: int = 2) -> None:
        self.world, self.size = world, nodes
        self.stops_together = True

    async def submit(self, **changes: Any) -> str:
        world = self.world
        world.cloud.on_offer = [make_offer("cloud", "vm", Tier.CONVENTIONAL, "2", startup_ms=1_000)]
        resources = resources_json(Resources(nodes=self.size))
        self.job_id = await world.submit(resources=resources, saves_ms=1, **changes)
        return self.job_id

    async def rent(self) -> list[str]:
        """Its machines, once they have been rented and have booted."""
        await self.world.decide()
        await self.world.work()
        nodes = await self.nodes()
        for node_id in nodes:
            await self.world.boot(node_id)
            await self.joins(node_id)
        return nodes

    async def joins(self, node_id: str) -> None:
        async with self.world.database.transaction() as connection:
            await set_heartbeat(connection, node_id, JOINS, now_ms=self.world.clock.now_ms())

    async def begin(self) -> None:
        """All are prepared and run."""
        await self.rent()
        await self.world.decide()
        for rank in range(self.size):
            await self.say(rank, "prepared", meeting=MEETING if rank == 0 else None)
        for rank in range(self.size):
            await self.say(rank, "running")

    async def nodes(self) -> list[str]:
        of = t.nodes.c
        async with self.world.database.transaction() as connection:
            gone = (NodeState.TERMINATED, NodeState.FAILED, NodeState.TERMINATING)
            found = select(of.id).where(of.rented_for_job_id == self.job_id, of.state.not_in(gone)).order_by(of.id)
            return list((await connection.execute(found)).scalars())

    async def runs(self) -> list[Any]:
        """Live ones, by rank."""
        async with self.world.database.transaction() as connection:
            found = (
                select(t.runs, t.run_jobs.c.epoch, t.allocations.c.node_id)
                .join(t.run_jobs, t.run_jobs.c.run_id == t.runs.c.id)
                .join(t.allocations, (t.allocations.c.run_id == t.runs.c.id) & t.allocations.c.to_ms.is_(None))
                .where(t.run_jobs.c.job_id == self.job_id, t.runs.c.state != "ended")
                .order_by(t.runs.c.node_rank)
            )
            return list(await connection.execute(found))

    async def say(
        self,
        rank: int,
        phase: str,
        *,
        meeting: Meeting | None = None,
        step: int = 0,
        network_bits_per_s: int | None = None,
        **exit_: Any,
    ) -> bool:
        """What the agent of this machine reports of its run."""
        world = self.world
        run = next(one for one in await self.runs() if (one.node_rank or 0) == rank)
        report = RunReport.model_validate(
            {
                "run_id": run.id,
                "job_id": self.job_id,
                "epoch": run.epoch,
                "phase": phase,
                "step": step,
                "saves": True,
                "stops_together": rank == 0 and self.stops_together,
                "meeting": meeting,
                "network_bits_per_s": network_bits_per_s,
                "exit": ExitReport(**exit_) if phase == "exited" else None,
            }
        )
        now_ms = world.clock.now_ms()
        return await apply_run_reports(world.database, world.ids, run.node_id, [report], now_ms=now_ms, fault_budget=3)

    async def wants(self) -> list[str | None]:
        """What their agents are told otherwise than by the state of the run itself."""
        found = []
        async with self.world.database.transaction() as connection:
            for run in await self.runs():
                (order,) = await orders(connection, run.node_id)
                found.append(await wanted_of_gang(connection, order))
        return found

    async def loses(self, node_id: str) -> None:
        """Its machine is gone, and that was found out."""
        world = self.world
        async with world.database.transaction() as connection:
            await lose_node(
                connection, world.ids, node_id, "silent for 90 s", now_ms=world.clock.now_ms(), fault_budget=3
            )

    async def messages(self) -> list[str]:
        async with self.world.database.transaction() as connection:
            of = t.job_events.c
            return list((await connection.execute(select(of.message).where(of.job_id == self.job_id))).scalars())

    async def state(self) -> str:
        return str((await self.world.job(self.job_id)).state)


def one_at_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of two machines the second may not be rented. Returns which were asked for so far."""
    asked: list[str] = []

    def second_is_too_many(self: Rentals, job: Any, offer: Any) -> str | None:
        asked.append(offer.key)
        return "1 machine is all that may be rented at once" if len(asked) % 2 == 0 else None

    monkeypatch.setattr(Rentals, "_refused", second_is_too_many)
    return asked


@pytest.fixture
async def gang(world: World) -> Gang:
    made = Gang(world)
    await made.submit()
    return made


async def test_both_are_rented_at_once_and_begin_when_both_are_ready(gang: Gang) -> None:
    world = gang.world
    await world.decide()
    first, second = await gang.nodes()
    await world.decide()
    assert await gang.nodes() == [first, second], "nothing more while they come"
    await world.work()
    await world.boot(first)
    await gang.joins(first)
    await world.decide()
    assert (await gang.runs(), await gang.state()) == ([], "queued")
    await world.boot(second)
    await gang.joins(second)
    await world.decide()
    lead, member = await gang.runs()
    assert (lead.member_of, member.member_of, lead.node_rank, member.node_rank) == (None, lead.id, 0, 1)
    assert {lead.node_id, member.node_id} == {first, second}
    job = await world.job(gang.job_id)
    assert (job.state, job.epoch) == ("starting", lead.epoch) and member.epoch < lead.epoch
    await world.check_invariants()


async def test_none_begins_before_all_are_prepared_and_know_where_they_meet(gang: Gang) -> None:
    world = gang.world
    await gang.rent()
    await world.decide()
    assert await gang.wants() == ["standby", "standby"]
    before = [(await world.node(run.node_id)).desired_version for run in await gang.runs()]
    await gang.say(0, "preparing", meeting=MEETING)
    async with world.database.transaction() as connection:
        (order,) = await orders(connection, (await gang.runs())[1].node_id)
        told = await GangHooks().order(connection, world.settings, order, now_ms=0)
    parts = {"parts": False, "part_step": None}  # agents of a release before
    assert told == {"gang": {"nodes": 2, "rank": 1, "meeting": MEETING.model_dump(), **parts}}
    await gang.say(0, "prepared", meeting=MEETING)
    assert await gang.wants() == ["standby", "standby"]
    await gang.say(1, "prepared")
    assert await gang.wants() == [None, None]
    after = [(await world.node(run.node_id)).desired_version for run in await gang.runs()]
    assert all(new > old for old, new in zip(before, after, strict=True)), "their agents hear of it at once"
    await gang.say(1, "running")
    assert await gang.state() == "starting", "the job runs when the first of them does"
    await gang.say(0, "running")
    assert await gang.state() == "running"
    await world.check_invariants()


async def test_what_a_member_writes_does_not_count_but_it_may_read(gang: Gang) -> None:
    await gang.begin()
    _lead, member = await gang.runs()
    async with gang.world.database.transaction() as connection:
        with pytest.raises(Fenced):
            await hold_fence(connection, member.node_id, gang.job_id, member.epoch)
    async with gang.world.database.transaction() as connection:
        writer = await hold_fence(connection, member.node_id, gang.job_id, member.epoch, to_read=True)
    assert writer.run_id == member.id
    await gang.say(1, "running", step=77)
    assert (await gang.world.job(gang.job_id)).step == 0


async def test_it_ends_as_the_first_does_and_all_machines_are_free(gang: Gang) -> None:
    world = gang.world
    await gang.begin()
    await gang.say(1, "exited", exit_code=0)
    assert await gang.state() == "running", "one that is done does not end the others"
    await gang.say(0, "exited", step=9, exit_code=0)
    assert (await gang.state(), await gang.runs()) == ("succeeded", [])
    world.clock.advance(ms=600_000)
    for node_id in await gang.nodes():
        await world.beat(node_id)
    await world.decide()
    await world.work()
    assert await gang.nodes() == []
    await world.check_invariants()


async def test_a_lost_machine_is_no_failure_of_the_code_that_lost_its_connection(gang: Gang) -> None:
    """The first process to be heard of failed for want of the other; nothing is said of it until that is known."""
    world = gang.world
    await gang.begin()
    lost = (await gang.runs())[1].node_id
    await gang.say(0, "exited", exit_code=1, last_lines="RuntimeError: Connection closed by peer")
    assert await gang.state() == "running"
    world.clock.advance(ms=3_600_000)
    await world.beat((await gang.runs())[0].node_id)
    await gang.loses(lost)
    job = await world.job(gang.job_id)
    assert (job.state, job.faults, await gang.runs()) == ("waiting", 1, [])
    messages = await gang.messages()
    assert any("machine 1 of its job" in one for one in messages), messages


@pytest.mark.parametrize("heard_first", [True, False])
async def test_a_machine_that_is_silent_while_the_others_have_lost_it_is_not_waited_for(
    gang: Gang, heard_first: bool
) -> None:
    """A silent machine alone ends nothing; with the failure of those that needed it, it does. Nobody is to blame."""
    world = gang.world
    await gang.begin()
    lead, member = await gang.runs()
    fails = {"exit_code": 1, "last_lines": "Connection closed by peer"}
    if heard_first:
        await gang.say(0, "exited", **fails)
    for _ in range(4):  # by and by: after a long silence of its own, the control plane concludes nothing
        await gang.joins(lead.node_id)
        await world.check_heartbeats()
        world.clock.advance(ms=15_000)
    assert (await world.node(member.node_id)).state == "unreachable"
    if not heard_first:
        assert await gang.state() == "running"
        await gang.say(0, "exited", **fails)
    job = await world.job(gang.job_id)
    assert (job.state, job.faults, await gang.runs()) == ("waiting", 0, [])
    await world.check_invariants()


@pytest.mark.parametrize("first", [0, 1])
async def test_the_one_that_failed_by_itself_is_believed_whoever_is_heard_first(gang: Gang, first: int) -> None:
    await gang.begin()
    ends = {0: "ConnectionResetError: Connection reset by peer", 1: "KeyError: 'text'"}
    await gang.say(first, "exited", exit_code=1, last_lines=ends[first])
    assert await gang.wants() == [None if rank == first else "kill" for rank in (0, 1)]
    await gang.say(1 - first, "exited", exit_code=1, last_lines=ends[1 - first])
    job = await gang.world.job(gang.job_id)
    assert (job.state, job.end_message) == ("failed", "machine 1 of its job: exit code 1: KeyError: 'text'")


async def test_a_process_that_was_killed_from_outside_is_believed_and_one_that_we_killed_is_not(gang: Gang) -> None:
    """The other's connection was lost first, as far as anybody heard."""
    world = gang.world
    await gang.begin()
    await gang.say(1, "exited", exit_code=1, last_lines="ConnectionResetError: Connection closed by peer")
    await gang.say(0, "exited", signal=9)
    job = await world.job(gang.job_id)
    assert (job.state, job.faults) == ("waiting", 1), "as any process that is killed: it is tried again"


async def test_who_is_killed_for_the_failure_of_another_one_is_not_to_blame(gang: Gang) -> None:
    await gang.begin()
    await gang.say(1, "exited", exit_code=1, last_lines="ConnectionResetError: Connection closed by peer")
    await gang.say(0, "exited", signal=9, killed=True)
    job = await gang.world.job(gang.job_id)
    assert job.state == "failed" and job.end_message.startswith("machine 1 of its job: exit code 1: ")


async def test_retries_count_once_for_all_of_them(world: World) -> None:
    gang = Gang(world)
    await gang.submit(retries=1)
    await gang.begin()
    for rank in (1, 0):
        await gang.say(rank, "exited", exit_code=1, last_lines="KeyError: 'text'")
    assert await gang.state() == "waiting"
    assert (await world.events(gang.job_id)).count("retry") == 1


async def test_it_is_begun_again_on_the_machines_that_are_left_and_one_more(gang: Gang) -> None:
    world = gang.world
    await gang.begin()
    kept, lost = [run.node_id for run in await gang.runs()]
    await gang.loses(lost)
    world.clock.advance(ms=120_000)
    await world.beat(kept)
    await gang.joins(kept)
    await world.decide()
    await world.work()
    nodes = await gang.nodes()
    assert kept in nodes and lost not in nodes and len(nodes) == 2
    for node_id in nodes:
        if node_id != kept:
            await world.boot(node_id)
        await gang.joins(node_id)
    await world.decide()
    assert {run.node_id for run in await gang.runs()} == set(nodes)
    await world.check_invariants()


async def test_paused_all_of_them_are_asked_and_leave_together(gang: Gang) -> None:
    world = gang.world
    await gang.begin()
    async with world.database.transaction() as connection:
        await pause_job(connection, world.ids, world.project_id, gang.job_id, now_ms=world.clock.now_ms())
    async with world.database.transaction() as connection:
        (order,) = await orders(connection, (await gang.runs())[1].node_id)
    assert (order.lead_state, order.lead_stop_mode) == ("stopping", "checkpoint")
    await gang.say(1, "exited", exit_code=75)
    assert await gang.state() == "checkpointing"
    await gang.say(0, "exited", step=5, exit_code=75, saved_after_stop=True)
    assert (await gang.state(), await gang.runs()) == ("paused", [])
    assert (await world.job(gang.job_id)).faults == 0


async def test_cancelled_while_it_prepares_nothing_is_left(gang: Gang) -> None:
    world = gang.world
    await gang.rent()
    await world.decide()
    async with world.database.transaction() as connection:
        await cancel_job(connection, world.ids, world.project_id, gang.job_id, now_ms=world.clock.now_ms())
    assert (await gang.state(), await gang.runs()) == ("cancelled", [])
    await world.check_invariants()


async def test_where_one_may_not_be_rented_none_is(gang: Gang) -> None:
    """Of two machines at $2 an hour, $3 would allow one."""
    world = gang.world
    await world.set_job(gang.job_id, max_hourly_micros=3_000_000)
    await world.decide()
    assert await gang.nodes() == []
    await world.set_job(gang.job_id, max_hourly_micros=4_000_000)
    await world.decide()
    assert len(await gang.nodes()) == 2


async def test_where_a_limit_allows_one_of_them_none_is_rented_and_it_is_not_tried_at_every_turn(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits count the machines before: found when they are written, as another one may have been rented meanwhile."""
    world, asked = gang.world, one_at_once(monkeypatch)
    for _ in range(5):
        await world.decide()
    assert (await gang.nodes(), len(asked)) == ([], 2)
    told = (await world.job(gang.job_id)).wait_reason
    assert told is not None and told.startswith("tries again in ")
    assert (await world.events(gang.job_id)).count("action_dropped") == 1
    monkeypatch.undo()
    world.clock.advance(ms=61_000)
    await world.decide()
    assert len(await gang.nodes()) == 2


async def test_one_that_makes_the_placement_fail_does_not_stop_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither jobs on several machines, nor any other; and no policy takes it for a job on one."""
    bad, good = Gang(world), Gang(world)
    await bad.submit()
    await good.submit()
    world.cloud.on_offer.append(make_offer("cloud", "serverless-a100", Tier.SERVERLESS, "2.10", startup_ms=2_000))
    single = await world.submit()

    def tripped(job: Any, *others: Any) -> bool:
        if job.job_id == bad.job_id:
            raise KeyError("gpu_type")
        return False

    monkeypatch.setattr("app.core.gangs._Gathering._begins", lambda self, job, own: tripped(job))
    await world.decide()
    assert (len(await bad.nodes()), len(await good.nodes())) == (0, 2)
    assert [(await world.job(one)).state for one in (bad.job_id, good.job_id, single)] == [
        "queued", "queued", "starting",
    ]  # fmt: skip


async def test_a_machine_that_is_heard_and_never_says_how_its_process_ended_holds_nobody_up_for_ever(
    gang: Gang,
) -> None:
    world = gang.world
    await gang.begin()
    await gang.say(0, "exited", exit_code=1, last_lines="KeyError: 'text'")
    for _ in range(5):
        assert await gang.state() == "running"
        for run in await gang.runs():
            await gang.joins(run.node_id)
        await world.check_heartbeats()
        world.clock.advance(ms=20_000)
    for run in await gang.runs():
        await gang.joins(run.node_id)
    await world.check_heartbeats()
    job = await world.job(gang.job_id)
    assert (job.state, job.end_message, await gang.runs()) == ("failed", "exit code 1: KeyError: 'text'", [])
    await world.check_invariants()


async def test_a_machine_that_is_taken_away_is_no_failure_of_the_processes_that_left_with_it(gang: Gang) -> None:
    """Its agent asks its own process alone; all leave together, and say so by their code."""
    world = gang.world
    await gang.begin()
    member = (await gang.runs())[1]
    async with world.database.transaction() as connection:
        taken = update(t.nodes).where(t.nodes.c.id == member.node_id).values(state=NodeState.DRAINING)
        await connection.execute(taken)
    await gang.say(1, "exited", exit_code=75)
    await gang.say(0, "exited", exit_code=75)
    job = await world.job(gang.job_id)
    assert (job.state, job.faults, await gang.runs()) == ("waiting", 0, [])


@pytest.mark.parametrize("how", [{"exit_code": 75}, {"signal": 15}])
async def test_one_that_left_before_we_hear_why_has_the_others_save_and_leave(gang: Gang, how: dict[str, int]) -> None:
    """By its code, or by a SIGTERM. Its machine, or that of the first, is taken away, and asked them before it said so:
    nobody is killed while it saves, and nothing has failed."""
    world = gang.world
    await gang.begin()
    await gang.say(1, "exited", **how)
    assert (await gang.wants(), await gang.state()) == (["checkpoint", None], "running")
    await gang.say(0, "exited", step=5, exit_code=75, saved_after_stop=True)
    job = await world.job(gang.job_id)
    assert (job.state, job.faults, await gang.runs()) == ("waiting", 0, [])
    await world.check_invariants()


async def test_where_it_is_the_machine_of_the_one_that_left_that_goes_no_code_is_blamed(gang: Gang) -> None:
    """Though the others had nothing to save."""
    world = gang.world
    await gang.begin()
    member = (await gang.runs())[1]
    await gang.say(1, "exited", exit_code=75)
    async with world.database.transaction() as connection:
        taken = update(t.nodes).where(t.nodes.c.id == member.node_id).values(state=NodeState.DRAINING)
        await connection.execute(taken)
    await gang.say(0, "exited", exit_code=75)
    job = await world.job(gang.job_id)
    assert (job.state, job.faults, await gang.runs()) == ("waiting", 0, [])


async def test_a_pause_that_comes_as_one_has_left_is_one(gang: Gang) -> None:
    """Also where the others have nothing to save, and are not heard of in time."""
    world = gang.world
    await gang.begin()
    await gang.say(1, "exited", exit_code=75)
    async with world.database.transaction() as connection:
        await pause_job(connection, world.ids, world.project_id, gang.job_id, now_ms=world.clock.now_ms())
    await gang.say(0, "exited", exit_code=75)
    assert (await gang.state(), await gang.runs()) == ("paused", [])
    assert (await world.job(gang.job_id)).faults == 0


@pytest.mark.parametrize("first", [0, 1])
async def test_code_75_of_all_that_nobody_was_asked_for_is_a_failure(gang: Gang, first: int) -> None:
    """As it is of a job on one machine: else it would be begun again for ever."""
    await gang.begin()
    await gang.say(first, "exited", exit_code=75)
    await gang.say(1 - first, "exited", exit_code=75)
    job = await gang.world.job(gang.job_id)
    assert job.state == "failed"
    assert "exit code 75" in (job.end_message or "")


@pytest.mark.parametrize(
    ("exit_code", "words", "told"),
    [
        (1, "KeyError: 'text'", "exit code 1: KeyError: 'text'"),
        (1, "RuntimeError: Connection closed by peer", "machine 1 of its job: exit code 75"),
    ],
)
async def test_one_that_failed_is_believed_before_one_that_left_and_that_before_one_that_lost_it(
    gang: Gang, exit_code: int, words: str, told: str
) -> None:
    await gang.begin()
    await gang.say(1, "exited", exit_code=75)
    await gang.say(0, "exited", exit_code=exit_code, last_lines=words)
    job = await gang.world.job(gang.job_id)
    assert (job.state, job.end_message, await gang.runs()) == ("failed", told, [])


async def test_who_does_not_leave_when_one_has_left_is_not_waited_for_for_ever(gang: Gang) -> None:
    world = gang.world
    await gang.begin()
    await gang.say(1, "exited", exit_code=75)
    for _ in range(6):
        for run in await gang.runs():
            await gang.joins(run.node_id)
        await world.check_heartbeats()
        world.clock.advance(ms=20_000)
    job = await world.job(gang.job_id)
    assert (job.state, job.end_message, await gang.runs()) == ("failed", "machine 1 of its job: exit code 75", [])
    await world.check_invariants()


async def test_what_was_freed_for_another_job_is_not_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is out of sight before jobs on several machines are placed."""
    seen: list[str] = []
    evictor, gangs = world.control.loop._evictor, world.control.loop._gangs
    keep, place = evictor.keep, gangs.place

    async def first(observation: Any) -> Any:
        seen.append("keep")
        return await keep(observation)

    async def second(observation: Any, asides: Any) -> Any:
        seen.append("place")
        return await place(observation, asides)

    monkeypatch.setattr(evictor, "keep", first)
    monkeypatch.setattr(gangs, "place", second)
    await world.decide()
    assert seen == ["keep", "place"]


async def test_an_old_agent_takes_no_part(gang: Gang) -> None:
    """It would run the code as if it were alone."""
    world = gang.world
    await gang.rent()
    for node_id in await gang.nodes():
        await world.beat(node_id)  # without a word of what it reads
    await world.decide()
    assert await gang.runs() == []


async def test_every_cent_of_all_machines_is_the_jobs(gang: Gang) -> None:
    world = gang.world
    await gang.begin()
    world.clock.advance(ms=3_600_000)
    for node_id in await gang.nodes():
        await gang.joins(node_id)
    await world.meter()
    spent = (await world.job(gang.job_id)).spent_micros
    assert 4_000_000 <= spent <= 4_200_000
    async with world.database.transaction() as connection:
        total = (await connection.execute(select(func.sum(t.ledger.c.amount_micros)))).scalar_one()
    assert total == spent
    await world.check_invariants()


async def test_the_server_may_die_after_any_statement(world: World, database_url: str, sweep: bool) -> None:
    """While it rents and begins one: never half a job, never a machine too many."""
    gang, stride = Gang(world), 1 if sweep else 5
    await gang.submit()
    engine, alive, died = make_engine(database_url, pool_size=4, timeout_s=60), world.database, 0
    try:
        for lifetime in range(1, 2_000, stride):
            world.seen_by_control = DyingDatabase(engine, lifetime)
            try:
                await world.restart()
                await world.decide()
            except KilledError:
                died += 1
                assert (len(await gang.nodes()) in (0, 2)) and len(await gang.runs()) in (0, 2)
                await world.check_invariants()
                continue
            world.seen_by_control = alive
            await world.restart()
            await world.work()
            for node_id in await gang.nodes():
                if (await world.node(node_id)).state == "booting":
                    await world.boot(node_id)
                await gang.joins(node_id)
            if len(await gang.runs()) == 2:
                break
    finally:
        world.seen_by_control = alive
        await world.restart()
        await engine.dispose()
    assert died > 2 and len(await gang.runs()) == 2
    await world.check_invariants()


@pytest.mark.parametrize(("entrypoint", "is_laid_out"), [(SCRIPT_NAME, True), ("train.py", False)])
async def test_the_recipe_is_laid_out_on_the_gpus_of_all_its_machines(
    world: World, entrypoint: str, is_laid_out: bool
) -> None:
    """Each of them has a part of every step; how other code shares one nobody knows. Its leading run alone has it."""
    async with world.database.transaction() as connection:
        world.app = await seed_app(connection, world.project_id, entrypoint=entrypoint)
    training = {"method": "lora", "batch_size": 8, "sequence_length": 512}
    template = {"nodes": 2, "model": {"name": "llama-3.2-1b"}, "training": training}
    gang = Gang(world)
    await gang.submit(template=template, plan="it fits")
    await gang.rent()
    await world.decide()
    first, second = await gang.runs()
    assert second.layout is None
    assert (first.layout is not None) is is_laid_out
    if is_laid_out:
        told = first.layout
        assert (told["gpus"], told["data_parallel"], told["sharding"]) == (2, 2, "ddp")
        assert told["micro_batch"] <= 4
        assert told["micro_batch"] * told["accumulation"] * 2 == 8
    starting = next(row for row in await world.rows(t.job_events) if row.kind == "starting")
    assert ("; laid out on 2 " in starting.message) is is_laid_out
