"""A planned move, made before the old place is broken: each of its steps, and what may come between."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.db import tables as t
from app.db.fences import hold_fence
from app.db.jobs.reads import find_job
from app.db.nodes.agents import set_heartbeat
from app.errors import Fenced
from app.services.jobs.resume_job import resume_job
from app.services.reading.explain_job import explain_job
from tests.control.chaos import Chaos
from tests.control.moving import REACHES, Moving, promoting, saving
from tests.control.world import World


@pytest.fixture
async def moving(world: World, tmp_path: Path) -> Moving:
    moving = Moving(world, tmp_path)
    await moving.begin()
    return moving


async def _finish(moving: Moving) -> None:
    """Whatever run has the job now ends it, the source of the move has sent all, and all is tidied up."""
    world = moving.world
    if (await moving.run(moving.source)).state == "stopping":
        assert await moving.says(moving.source, "exited", exit_code=75, saved_after_stop=True)
    await world.decide()
    await world.work()
    assert world.cloud.alive() == []
    assert await world.ledger_sum() == world.cloud.bill().micros > 0
    await world.check_invariants()


async def test_a_job_moves_while_it_trains_and_goes_on_at_exactly_its_last_step(moving: Moving) -> None:
    """From the decision to the release of the source: the job is running all the time, and pays both machines."""
    world = moving.world
    assert await moving.states() == ("running", "preparing", "running", "standby")
    await moving.saves(moving.source, 380)
    assert not await moving.says(moving.target, "preparing")
    assert await moving.prepared()
    assert await moving.states() == ("running", "saving", "stopping", "standby")
    assert (await moving.run(moving.source)).stop_mode == "checkpoint"
    assert not await moving.prepared()  # said again

    world.clock.advance(s=2)
    await moving.saves(moving.source, 412, final=True)
    assert await moving.states() == ("running", "promoting", "stopping", "promoting")
    job = await world.job(moving.job_id)
    assert (job.epoch, job.moves, job.faults) == ((await moving.place(moving.target))[1], 1, 0)
    assert await moving.says(moving.source, "exited", exit_code=75, saved_after_stop=True)
    assert (await moving.run(moving.source)).end_reason == "demoted"
    assert await moving.says(moving.target, "running", 412)
    assert await moving.states() == ("running", "done", "ended", "running")
    job = await world.job(moving.job_id)
    assert (job.step, (await moving.move()).step) == (412, 412)
    assert (
        job.serverless_used_ms
        == (await moving.run(moving.source)).ended_ms - (await moving.run(moving.source)).running_ms
    )

    world.clock.advance(s=60)
    assert await moving.says(moving.target, "exited", 500, exit_code=0)
    assert (await world.job(moving.job_id)).state == "succeeded"
    await _finish(moving)
    payers = {row.run_id for row in await world.rows(t.ledger) if row.job_id == moving.job_id and row.payer == "run"}
    assert payers == {moving.source, moving.target}


async def test_the_pause_is_measured_from_step_to_step_and_told(moving: Moving) -> None:
    """The last step measured on the source, the first on the target; whoever reads the events sees it."""
    await saving(moving)
    await moving.measures(moving.source, 411, 5_000)
    await moving.measures(moving.source, 412, 6_000)
    await moving.saves(moving.source, 412, final=True)
    assert await moving.says(moving.target, "running", 412)
    assert (await moving.move()).pause_ms is None
    await moving.measures(moving.target, 413, 6_840)
    await moving.measures(moving.target, 414, 7_840)
    assert (await moving.move()).pause_ms == 840
    (told,) = [row for row in await moving.world.rows(t.job_events) if row.kind == "move_measured"]
    assert told.message == "moved at step 412, 0.8 s pause"


async def test_a_pause_between_two_machines_does_not_depend_on_their_clocks(moving: Moving) -> None:
    """One of them is three hours fast, the other two hours slow: the pause is what it was, to a second for each."""
    fast_ms, slow_ms = 3 * 3_600_000, -2 * 3_600_000

    async def measures(run_id: str, step: int, at_ms: int, off_ms: int) -> None:
        node_id, _ = await moving.place(run_id)
        now_ms = moving.world.clock.now_ms()
        async with moving.world.database.transaction() as connection:
            report = {"agent_version": "1", "host": {"clock_ms": now_ms + off_ms}}
            await set_heartbeat(connection, node_id, report, now_ms=now_ms)
        await moving.measures(run_id, step, at_ms + off_ms)

    await saving(moving)
    now_ms = moving.world.clock.now_ms()
    await measures(moving.source, 412, now_ms, fast_ms)
    await moving.saves(moving.source, 412, final=True)
    assert await moving.says(moving.target, "running", 412)
    await measures(moving.target, 413, now_ms + 8_400, slow_ms)
    pause_ms = (await moving.move()).pause_ms
    assert pause_ms is not None and abs(pause_ms - 8_400) <= 2_000


async def test_a_source_that_is_fenced_can_write_nothing_and_a_target_nothing_before(moving: Moving) -> None:
    """One epoch holder: the target is refused until the hand-over, the source from then on."""
    with pytest.raises(Fenced):
        await moving.saves(moving.target, 400)
    with pytest.raises(Fenced):
        await moving.measures(moving.target, 400, 1)
    await saving(moving)
    late, _ = await moving.opens(moving.source, 413)
    await moving.saves(moving.source, 412, final=True)
    for write in (
        moving.commits(moving.source, late, final=True),
        moving.saves(moving.source, 414),
        moving.measures(moving.source, 414, 1),
    ):
        with pytest.raises(Fenced):
            await write
    await moving.saves(moving.target, 420)
    assert (await moving.world.job(moving.job_id)).checkpoint_step == 420


async def test_the_final_commit_may_be_asked_again_when_its_answer_was_lost(moving: Moving) -> None:
    """The same commit of the fenced source is answered as the first one was, and promotes nobody twice."""
    await saving(moving)
    opened, _ = await moving.opens(moving.source, 412)
    await moving.commits(moving.source, opened, final=True)
    epoch = (await moving.world.job(moving.job_id)).epoch
    await moving.commits(moving.source, opened, final=True)
    assert (await moving.world.job(moving.job_id)).epoch == epoch
    assert (await moving.world.job(moving.job_id)).moves == 1


async def test_a_periodic_checkpoint_on_its_way_does_not_end_the_source(moving: Moving) -> None:
    """One that was written before the request to stop is kept, and the final one is waited for."""
    opened, _ = await moving.opens(moving.source, 400)
    await saving(moving)
    await moving.commits(moving.source, opened)
    assert await moving.states() == ("running", "saving", "stopping", "standby")


async def test_a_standby_run_may_read_what_it_will_need(moving: Moving) -> None:
    """Code and checkpoints can be fetched before the hand-over, by the target's node only."""
    world = moving.world
    node_id, epoch = await moving.place(moving.target)
    async with world.database.transaction() as connection:
        writer = await hold_fence(connection, node_id, moving.job_id, epoch, to_read=True)
        assert writer.run_id == moving.target
        with pytest.raises(Fenced):
            await hold_fence(connection, node_id, moving.job_id, epoch)


@pytest.mark.parametrize("how", [{"environment_error": "no space left"}, {"signal": 15}])
async def test_a_target_that_fails_is_called_off_and_the_job_trains_on(moving: Moving, how: dict[str, object]) -> None:
    """No fault, no pause; the node falls free, and the job is not moved again for a while, longer each time."""
    world = moving.world
    before = await world.job(moving.job_id)
    assert await moving.says(moving.target, "exited", **how)
    assert await moving.states() == ("running", "abandoned", "running", "ended")
    job = await world.job(moving.job_id)
    assert (job.epoch, job.faults, job.moves) == (before.epoch, 0, 0)
    first = (await moving.move()).not_before_ms - world.clock.now_ms()
    assert first == 30_000
    assert (await world.node(moving.target_node)).idle_since_ms == world.clock.now_ms()
    assert await moving.enact(await moving.migrate()) == ()
    moving.target = (await moving.move()).target_run_id
    assert await moving.says(moving.target, "exited", **how)
    assert (await moving.move()).not_before_ms - world.clock.now_ms() == 2 * first
    await world.check_invariants()


async def test_a_target_that_fails_after_the_source_was_asked_leaves_stop_and_go(moving: Moving) -> None:
    """The source saves and leaves, as it was told; then the job waits for a place, and no fault is counted."""
    world = moving.world
    await saving(moving)
    assert await moving.says(moving.target, "exited", signal=15)
    assert (await moving.states())[:3] == ("checkpointing", "abandoned", "stopping")
    await moving.saves(moving.source, 412, final=True)
    assert await moving.says(moving.source, "exited", exit_code=75, saved_after_stop=True)
    job = await world.job(moving.job_id)
    assert (job.state, job.faults, job.checkpoint_step) == ("waiting", 0, 412)
    await world.check_invariants()
    await world.decide()
    again = await world.node_of(moving.job_id)
    assert (await world.job(moving.job_id)).epoch > (await moving.place(moving.target))[1]
    await world.work()
    if again != moving.target_node:
        await world.boot(again)
    await world.report(again, "running")
    assert (await world.job(moving.job_id)).state == "running"


async def test_a_source_that_dies_hands_over_to_a_prepared_target(moving: Moving) -> None:
    """From its newest checkpoint, at once; the death costs a fault, and the move none."""
    world = moving.world
    await moving.saves(moving.source, 380)
    await saving(moving)
    assert await moving.says(moving.source, "exited", signal=9)
    assert await moving.states() == ("running", "promoting", "ended", "promoting")
    assert (await moving.move()).step == 380
    assert await moving.says(moving.target, "running", 380)
    assert await moving.states() == ("running", "done", "ended", "running")
    assert (await world.job(moving.job_id)).step == 380
    await world.check_invariants()


async def test_a_source_that_dies_before_its_target_is_prepared_waits_for_a_place(moving: Moving) -> None:
    """As any other job whose machine died: one fault; the target is called off, and its node is free."""
    world = moving.world
    assert await moving.says(moving.source, "exited", signal=9)
    job = await world.job(moving.job_id)
    assert (job.state, job.faults) == ("waiting", 1)
    assert (await moving.states())[1:] == ("abandoned", "ended", "ended")
    assert (await moving.move()).not_before_ms == 0
    await world.check_invariants()


async def test_a_job_that_finishes_first_lets_go_of_its_target(moving: Moving) -> None:
    """Asked to save or not: exit code 0 without a new checkpoint is done."""
    await saving(moving)
    assert await moving.says(moving.source, "exited", 500, exit_code=0)
    assert await moving.states() == ("succeeded", "abandoned", "ended", "ended")
    assert (await moving.run(moving.source)).end_reason == "finished"
    await _finish(moving)


async def test_a_source_that_never_leaves_is_closed_after_its_grace(moving: Moving) -> None:
    """It is fenced already, and the job trains on the target: nothing waits for it, but its machine is paid."""
    world = moving.world
    await promoting(moving)
    assert await moving.says(moving.target, "running", 412)
    assert await moving.states() == ("running", "promoting", "stopping", "running")
    await world.check_invariants()
    for seconds, state in ((world.settings.stop_grace_s - 1, "stopping"), (2, "ended")):
        world.clock.advance(s=seconds)
        await world.beat(moving.source_node)
        await world.beat(moving.target_node)
        await world.check_heartbeats()
        assert (await moving.run(moving.source)).state == state
    assert (await moving.move()).state == "done"
    assert (await moving.run(moving.source)).end_reason == "demoted"
    assert not await moving.says(moving.source, "exited", signal=9)
    assert await moving.says(moving.target, "exited", 500, exit_code=0)
    await _finish(moving)


async def test_a_job_that_has_moved_is_paused_while_its_source_cleans_up(moving: Moving) -> None:
    """The target saves and leaves as any other run; the source's end changes nothing for the job."""
    await promoting(moving)
    assert await moving.says(moving.target, "running", 412)
    await moving.pause()
    assert await moving.states() == ("checkpointing", "promoting", "stopping", "stopping")
    assert await moving.says(moving.source, "exited", exit_code=75, saved_after_stop=True)
    assert await moving.states() == ("checkpointing", "done", "ended", "stopping")
    await moving.saves(moving.target, 420, final=True)
    assert await moving.says(moving.target, "exited", exit_code=75, saved_after_stop=True)
    job = await moving.world.job(moving.job_id)
    assert (job.state, job.checkpoint_step) == ("paused", 420)
    await _finish(moving)


@pytest.mark.parametrize("exit_code", [0, 3])
async def test_a_target_that_ends_before_its_source_leaves_it_the_time_to_send(moving: Moving, exit_code: int) -> None:
    """What the first machine has left is the job's too, however the job ends and however long that takes."""
    world = moving.world
    await promoting(moving)
    assert await moving.says(moving.target, "exited", 500, exit_code=exit_code)
    ended = "succeeded" if exit_code == 0 else "failed"
    assert await moving.states() == (ended, "promoting", "stopping", "ended")
    await world.check_invariants()
    await world.decide()
    assert (await world.node(moving.source_node)).state == "ready"
    await moving.leaves(moving.source, {"out/step_20/model": b"of the first machine"}, final=True)
    assert await moving.says(moving.source, "exited", exit_code=75, saved_after_stop=True)
    assert await moving.states() == (ended, "done", "ended", "ended")
    assert [row.path for row in await world.rows(t.artifacts)] == ["out/step_20/model"]
    assert (await moving.run(moving.source)).end_reason == "demoted"
    await _finish(moving)


async def test_a_job_goes_on_while_the_machine_that_it_left_before_still_sends(moving: Moving) -> None:
    """Paused on its second machine and resumed: it is placed, moved and ended as if the first one were not there."""
    world = moving.world
    await promoting(moving)
    assert await moving.says(moving.target, "running", 412)
    await moving.pause()
    await moving.saves(moving.target, 420, final=True)
    assert await moving.says(moving.target, "exited", exit_code=75, saved_after_stop=True)
    assert await moving.states() == ("paused", "promoting", "stopping", "ended")
    await world.check_invariants()
    async with world.database.transaction() as connection:
        await resume_job(connection, world.project_id, moving.job_id, now_ms=world.clock.now_ms())
    await world.decide()
    assert (await world.job(moving.job_id)).state == "starting"
    assert await world.node_of(moving.job_id) != moving.source_node
    assert not await moving.says(moving.source, "stopping", 412)
    assert (await world.job(moving.job_id)).state == "starting"
    assert await moving.says(moving.source, "exited", exit_code=75, saved_after_stop=True)
    job = await world.job(moving.job_id)
    assert (job.state, job.faults, job.checkpoint_step) == ("starting", 0, 420)
    await world.check_invariants()
    await Chaos(moving).settle()


async def test_a_source_whose_job_is_over_is_lost_without_a_fault(moving: Moving) -> None:
    """Its machine dies while it sends: nothing of the job changes."""
    await promoting(moving)
    assert await moving.says(moving.target, "exited", 500, exit_code=0)
    await moving.loses(moving.source_node)
    assert await moving.states() == ("succeeded", "done", "ended", "ended")
    assert (await moving.world.job(moving.job_id)).faults == 0
    await _finish(moving)


@pytest.mark.parametrize("target_ends", [False, True])
async def test_a_source_that_sends_is_waited_for_as_long_as_something_comes(
    moving: Moving, *, target_ends: bool
) -> None:
    """By what it says and by what it has registered; then as long as a transfer may be silent."""
    world, settings = moving.world, moving.world.settings
    await promoting(moving)
    assert await moving.says(moving.target, "running", 412)
    if target_ends:
        assert await moving.says(moving.target, "exited", 500, exit_code=0)

    async def after(seconds: float) -> str:
        world.clock.advance(s=seconds)
        await world.beat(moving.source_node)
        await world.beat(moving.target_node)
        await world.check_heartbeats()
        return str((await moving.run(moving.source)).state)

    world.clock.advance(s=5)
    await moving.sends(moving.source, 10, 100)
    assert await after(settings.stop_grace_s + 10) == "stopping"
    await moving.leaves(moving.source, {"out/model": b"weights"}, final=False)
    assert await after(settings.transfer_patience_s - 10) == "stopping"
    await moving.sends(moving.source, 60, 100)
    assert await after(settings.transfer_patience_s - 10) == "stopping"
    assert await after(20) == "ended"
    assert (await moving.move()).state == "done"


@pytest.mark.parametrize("reach", ["preparing", "saving", "promoting"])
async def test_a_cancelled_job_leaves_both_machines(moving: Moving, reach: str) -> None:
    """At once, at every state of the move."""
    await REACHES[reach](moving)
    await moving.cancel()
    assert await moving.states() == ("cancelled", "abandoned", "ended", "ended")
    await _finish(moving)


@pytest.mark.parametrize(
    ("reach", "state"), [("preparing", "checkpointing"), ("saving", "checkpointing"), ("promoting", "paused")]
)
async def test_a_job_is_paused_at_every_state_of_a_move(moving: Moving, reach: str, state: str) -> None:
    """Running code saves first; between the two machines there is nothing to save."""
    world = moving.world
    await REACHES[reach](moving)
    await moving.pause()
    assert await moving.states() == (state, "promoting" if reach == "promoting" else "abandoned", "stopping", "ended")
    await world.check_invariants()
    if state == "checkpointing":
        await moving.saves(moving.source, 412, final=True)
        await moving.says(moving.source, "exited", exit_code=75, saved_after_stop=True)
    job = await world.job(moving.job_id)
    assert (job.state, job.checkpoint_step, job.faults) == ("paused", 412, 0)
    await _finish(moving)


@pytest.mark.parametrize("reach", ["preparing", "saving", "promoting"])
async def test_a_cost_limit_holds_while_both_machines_are_paid(moving: Moving, reach: str) -> None:
    """Double running counts like any other: the job saves and is paused."""
    world = moving.world
    await REACHES[reach](moving)
    await world.set_job(moving.job_id, max_cost_micros=1)
    await world.meter()
    await world.meter()
    if reach != "promoting":
        await moving.says(moving.source, "exited", exit_code=75, saved_after_stop=True)
    job = await world.job(moving.job_id)
    assert (job.state, job.pause_reason) == ("paused", "cost_cap")
    await _finish(moving)


@pytest.mark.parametrize("reach", ["preparing", "saving", "promoting"])
async def test_a_time_limit_ends_a_job_in_the_middle_of_a_move(moving: Moving, reach: str) -> None:
    """It saves where code runs, and is cancelled."""
    world = moving.world
    await REACHES[reach](moving)
    await world.set_job(moving.job_id, max_duration_ms=1_000)
    await world.meter()
    if reach != "promoting":
        await moving.says(moving.source, "exited", exit_code=75, saved_after_stop=True)
    job = await world.job(moving.job_id)
    assert (job.state, job.end_reason) == ("cancelled", "max_duration")
    await _finish(moving)


async def test_a_target_that_takes_too_long_is_given_up(moving: Moving) -> None:
    """The job never noticed; what had prepared in time is left alone."""
    world = moving.world
    world.clock.advance(s=world.settings.move_timeout_s - 1)
    await world.beat(moving.source_node)
    await world.beat(moving.target_node)
    await world.check_heartbeats()
    assert (await moving.move()).state == "preparing"
    world.clock.advance(s=2)
    await world.beat(moving.source_node)
    await world.beat(moving.target_node)
    await world.check_heartbeats()
    assert await moving.states() == ("running", "abandoned", "running", "ended")
    assert (await moving.move()).end_message == "the next machine was not prepared within 900 s"


async def test_a_job_moves_once_at_a_time_and_only_from_running_code(moving: Moving) -> None:
    """A second move, and one of a job that leaves, is dropped."""
    (dropped,) = await moving.enact(await moving.migrate())
    assert "moves already" in dropped.why
    await moving.pause()
    (dropped,) = await moving.enact(await moving.migrate())
    assert "does not train, or is to leave" in dropped.why


async def test_the_explanation_tells_a_move_that_is_under_way(moving: Moving) -> None:
    """Where to, why, how far it is, and what comes next."""
    world = moving.world

    async def told() -> tuple[str, str]:
        async with world.database.transaction() as connection:
            job = await find_job(connection, world.project_id, moving.job_id)
            assert job is not None
            said = await explain_job(connection, world.settings, job, now_ms=world.clock.now_ms())
        return ("\n".join(line.text for line in said.because), "\n".join(line.text for line in said.next))

    because, upcoming = await told()
    assert "moves: it costs less there" in because
    assert "cloud A100 at $0.72/h (marketplace) prepares" in upcoming
    await saving(moving)
    assert "was asked for its final checkpoint" in (await told())[1]
    await moving.saves(moving.source, 412, final=True)
    assert "goes on at step 412 there" in (await told())[1]


@pytest.mark.parametrize(
    ("reach", "victim", "faults", "moves"),
    [
        ("preparing", "source", 1, 0),
        ("preparing", "target", 0, 0),
        ("saving", "source", 1, 1),
        ("saving", "target", 0, 0),
        ("promoting", "source", 0, 1),
        ("promoting", "target", 1, 1),
        ("leaving", "source", 0, 1),
        ("leaving", "target", 1, 1),
    ],
)
async def test_a_machine_that_dies_at_any_state_of_a_move(
    moving: Moving, reach: str, victim: str, faults: int, moves: int
) -> None:
    """The job ends once, from its newest checkpoint; only the death of the machine that has the job is a fault."""
    world = moving.world
    await moving.saves(moving.source, 380)
    await REACHES[reach](moving)
    await moving.loses(moving.source_node if victim == "source" else moving.target_node)
    await world.check_invariants()
    job = await world.job(moving.job_id)
    assert (job.faults, job.state in ("running", "waiting", "checkpointing")) == (faults, True)
    assert job.checkpoint_step == (412 if reach in ("promoting", "leaving") else 380)
    await Chaos(moving).settle()
    job = await world.job(moving.job_id)
    assert (job.state, job.faults) == ("succeeded", faults)
    done = [move for move in await world.rows(t.moves) if move.promoted_ms is not None]
    assert len(done) == moves
