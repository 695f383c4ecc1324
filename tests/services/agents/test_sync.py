"""One round of the protocol: what an agent says becomes state, and it hears what should be."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import update

from app.core.lifecycle import Outcome
from app.core.model.job import JobEnd, JobState
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunEnd, RunState, StopMode
from app.db import notify
from app.db.tables import (
    app_versions,
    job_events,
    jobs,
    metric_points,
    node_events,
    node_heartbeats,
    nodes,
    pools,
    provider_operations,
    runs,
)
from app.db.transitions import bump_desired
from app.services.jobs.cancel_job import cancel_job
from app.services.moves.ask_to_save import ask_to_save
from app.services.nodes.release_node import release_node
from app.services.runs.end_run import end_run
from tests.services.agents.conftest import Place, Stage, entry

EXIT_0 = {"exit_code": 0}
CANCELLED = Outcome(RunEnd.CANCELLED, JobState.CANCELLED, JobEnd.CANCELLED, False, "cancelled")


async def stop(stage: Stage, place: Place, mode: StopMode) -> None:
    """Ask the run to stop, as the control loop does."""
    async with stage.database.transaction() as connection:
        stopping = {"state": RunState.STOPPING, "stop_mode": mode, "stop_asked_ms": stage.clock.now_ms()}
        await connection.execute(update(runs).where(runs.c.id == place.run_id).values(stopping))
        if mode is StopMode.CHECKPOINT:
            job = update(jobs).where(jobs.c.id == place.job_id)
            await connection.execute(job.values(state=JobState.CHECKPOINTING))
        await bump_desired(connection, place.node_id)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic token-1", "Bearer nobody", "Bearer \xff"])
async def test_strangers_are_not_let_in(stage: Stage, header: str | None) -> None:
    """A missing, misspelt or unknown token is 401, whatever the body."""
    await stage.place()
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    body = {"agent_version": "1", "seen": 0, "wait_ms": 0, "runs": []}
    answer = await stage.client.post("/v1/agent/sync", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize("state", [NodeState.TERMINATING, NodeState.TERMINATED, NodeState.FAILED])
async def test_an_agent_of_a_node_on_its_way_out_is_not_let_in(stage: Stage, state: NodeState) -> None:
    """Even while its token is still on record."""
    place = await stage.place(node_state=state)
    assert (await stage.sync(place)).status_code == 401


async def test_what_an_agent_of_a_newer_release_says_more_is_ignored(stage: Stage) -> None:
    """After the way back to this release: unknown fields at every place break neither the call nor what is known."""
    place = await stage.place()
    newer = {"newer": {"colour": [1, None]}}
    report = place.report("exited", exit={"exit_code": 0, "training": {"micro_batch": 2, **newer}, **newer}, **newer)
    answer = await stage.sync(place, report, host={"cpus": 8, **newer}, **newer)
    assert answer.status_code == 200, answer.text
    assert (await stage.row(jobs, place.job_id)).state == "succeeded"
    body = {**place.writer(), "step": 1, "files": [{**entry("a", b"1"), **newer}], "metrics": {}, **newer}
    assert (await stage.post(place, "/checkpoints", body)).json()["error"][
        "code"
    ] == "fenced"  # understood, and refused


async def test_an_agent_that_has_seen_more_than_is_known_is_outrun(stage: Stage) -> None:
    """The database was restored from an older dump: the orders that stand are told under a number above what the agent
    has seen, at once, and from then on as usual."""
    place = await stage.place()
    first = (await stage.sync(place)).json()
    told = (await stage.sync(place, seen=first["version"] + 900, wait_ms=60_000)).json()
    assert told["version"] == first["version"] + 901
    assert [run["run_id"] for run in told["runs"]] == [place.run_id]
    assert (await stage.sync(place, seen=told["version"])).json()["runs"] is None
    async with stage.database.transaction() as connection:
        await bump_desired(connection, place.node_id)
    assert (await stage.sync(place, seen=told["version"])).json()["version"] == told["version"] + 1


@pytest.mark.parametrize("seen", [2**53 + 1, 2**63, -1])
async def test_a_version_that_nobody_can_have_seen_is_refused(stage: Stage, seen: int) -> None:
    """It would leave no room for the numbers to come."""
    answer = await stage.sync(await stage.place(), seen=seen)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "seen")


@pytest.mark.parametrize("state", [NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN])
async def test_the_first_call_makes_a_node_ready(stage: Stage, state: NodeState) -> None:
    """Whatever we knew of the machine: its agent calls, so it is up; it holds a run, so it is not idle."""
    place = await stage.place(node_state=state)
    stage.clock.advance(s=3)
    assert (await stage.sync(place, host={"cpus": 8})).status_code == 200
    node = await stage.row(nodes, place.node_id)
    assert (node.state, node.ready_ms, node.idle_since_ms, node.row_version) == ("ready", stage.clock.ms, None, 2)
    (heartbeat,) = await stage.rows(node_heartbeats)
    assert (heartbeat.at_ms, heartbeat.report["host"]) == (stage.clock.ms, {"cpus": 8})


async def test_a_node_without_a_run_is_idle_from_its_first_call(stage: Stage) -> None:
    """So that it can be released when nobody needs it."""
    place = await stage.place(node_state=NodeState.BOOTING)
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, CANCELLED, now_ms=stage.clock.ms)
        await connection.execute(update(nodes).values(idle_since_ms=None))
    stage.clock.advance(s=3)
    await stage.sync(place)
    assert (await stage.row(nodes, place.node_id)).idle_since_ms == stage.clock.ms


async def test_an_unreachable_node_that_calls_again_is_ready_and_keeps_its_run(stage: Stage) -> None:
    """A machine that we cannot reach is not a dead one."""
    place = await stage.running()
    async with stage.database.transaction() as connection:
        silent = {"state": NodeState.UNREACHABLE, "unreachable_since_ms": stage.clock.ms, "ready_ms": 5}
        await connection.execute(update(nodes).values(silent))
    reply = await stage.sync(place)
    node = await stage.row(nodes, place.node_id)
    assert (node.state, node.unreachable_since_ms, node.ready_ms) == ("ready", None, 5)
    assert [run["want"] for run in reply.json()["runs"]] == ["run"]


async def test_a_heartbeat_is_not_written_twice_a_second_unless_it_says_something_new(stage: Stage) -> None:
    """Ten thousand agents are cheap; and time on record never goes back."""
    place = await stage.place()
    await stage.sync(place)
    first_ms = stage.clock.ms
    stage.clock.advance(ms=999)
    await stage.sync(place)
    assert (await stage.rows(node_heartbeats))[0].at_ms == first_ms
    await stage.sync(place, host={"gpus": 1})
    assert (await stage.rows(node_heartbeats))[0].at_ms == first_ms + 999
    stage.clock.ms = first_ms - 5000
    await stage.sync(place, host={"gpus": 2})
    assert (await stage.rows(node_heartbeats))[0].at_ms == first_ms + 999


async def test_what_the_database_cannot_store_does_not_stop_an_agent(stage: Stage) -> None:
    """NUL in a host's facts becomes U+FFFD; facts without end are refused by name."""
    place = await stage.place()
    assert (await stage.sync(place, host={"a\x00": ["b\x00"]})).status_code == 200
    assert (await stage.rows(node_heartbeats))[0].report["host"] == {"a\ufffd": ["b\ufffd"]}
    answer = await stage.sync(place, host={"a": "x" * 20_000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "host")


async def test_the_reply_tells_all_that_is_needed_to_execute_a_run(stage: Stage) -> None:
    """Code, parameters, GPUs, grace: an agent asks nobody else."""
    place = await stage.place(parameters=["--lr", "0.1"], total_steps=40, template={"model": {"name": "m"}})
    reply = (await stage.sync(place)).json()
    (run,) = reply["runs"]
    assert {**place.writer(), "want": "run", "grace_ms": 60_000}.items() <= run.items()
    spec = run["spec"]
    assert (spec["entrypoint"], spec["parameters"], spec["total_steps"]) == ("train.py", ["--lr", "0.1"], 40)
    assert (spec["gpu_indices"], spec["resume"], spec["bundle_size_bytes"]) == ([0], None, 10)


@pytest.mark.parametrize(
    ("entrypoint", "stated", "told", "found"),
    [
        ("finetune.py", {}, {"model": "m"}, {"model": "m", "micro_batch": 8, "checkpointing": True}),
        ("finetune.py", {"micro_batch": 2}, {"micro_batch": 2}, {"micro_batch": 2, "checkpointing": True}),
        ("finetune.py", {"micro_batch": 4, "checkpointing": False}, {"task": "dpo"}, {"task": "dpo"}),
        ("train.py", {}, {"model": "m"}, {"model": "m"}),
        ("finetune.py", {}, ["--lr", "1"], ["--lr", "1"]),
    ],
)
async def test_a_fine_tuning_is_told_how_its_steps_are_cut(
    stage: Stage, entrypoint: str, stated: Any, told: Any, found: Any
) -> None:
    """Among its parameters, which trainers of all releases read; what its owner chose stays, as do others' jobs."""
    place = await stage.place(parameters=told, template={"training": stated})
    layout = {"gpu_type": "A100", "micro_batch": 8, "accumulation": 2, "checkpointing": True}
    async with stage.database.transaction() as connection:
        await connection.execute(update(app_versions).values(entrypoint=entrypoint))
        await connection.execute(update(runs).values(layout=layout))
    spec = (await stage.sync(place)).json()["runs"][0]["spec"]
    assert (spec["parameters"], spec["layout"]) == (found, layout)


async def test_an_agent_that_knows_no_commands_never_runs_another_script(stage: Stage) -> None:
    """The command and its variables are in the template; an older agent looks for an entrypoint, and finds none."""
    template = {"command": ["torchrun", "train.py"], "env": {"A": "1"}, "image": "nvcr.io/x"}
    place = await stage.place(template=template)
    spec = (await stage.sync(place)).json()["runs"][0]["spec"]
    assert (spec["template"], spec["entrypoint"], spec["base_image"]) == (template, "", "nvcr.io/x")


async def test_reports_take_a_run_from_assigned_to_running(stage: Stage) -> None:
    """preparing, then running: run and job follow, once, with their times."""
    place = await stage.place()
    stage.clock.advance(s=1)
    await stage.sync(place, place.report("preparing"))
    run = await stage.row(runs, place.run_id)
    assert (run.state, run.starting_ms, run.running_ms) == ("starting", stage.clock.ms, None)
    stage.clock.advance(s=1)
    for _ in range(2):
        await stage.sync(place, place.report("running", step=2))
    run, job = await stage.row(runs, place.run_id), await stage.row(jobs, place.job_id)
    assert (run.state, run.running_ms, run.row_version) == ("running", stage.clock.ms, 3)
    assert (job.state, job.first_running_ms, job.step) == ("running", stage.clock.ms, 2)
    kinds = [event.kind for event in await stage.rows(job_events)]
    assert kinds == ["run_starting", "run_running", "running"]


async def test_progress_makes_no_planned_action_stale(stage: Stage) -> None:
    """The step is raised without a new row version, and never lowered."""
    place = await stage.running()
    version = (await stage.row(jobs, place.job_id)).row_version
    for step in (5, 9, 7):
        await stage.sync(place, place.report("running", step=step))
    job = await stage.row(jobs, place.job_id)
    assert (job.step, job.row_version) == (9, version)


async def test_a_run_that_exits_with_0_finishes_its_job(stage: Stage) -> None:
    """The reply to the exit report does not list the run any more; saying it again changes nothing."""
    place = await stage.running()
    stage.clock.advance(s=30)
    reply = await stage.sync(place, place.report("exited", step=40, exit=EXIT_0))
    assert reply.json()["runs"] == []
    events = len(await stage.rows(job_events))
    again = await stage.sync(place, place.report("exited", step=40, exit=EXIT_0))
    job, node = await stage.row(jobs, place.job_id), await stage.row(nodes, place.node_id)
    assert (again.status_code, again.json()["runs"], len(await stage.rows(job_events))) == (200, [], events)
    assert (job.state, job.step, job.epoch, job.ended_ms) == ("succeeded", 40, 2, stage.clock.ms)
    assert (node.state, node.idle_since_ms) == ("ready", stage.clock.ms)


async def test_a_process_that_was_over_before_anyone_saw_it_run_still_ran(stage: Stage) -> None:
    """A short job has a start time, and its log of events misses no state."""
    place = await stage.place()
    await stage.sync(place, place.report("exited", exit=EXIT_0))
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.first_running_ms) == ("succeeded", stage.clock.ms)
    kinds = [event.kind for event in await stage.rows(job_events)]
    assert kinds == ["run_running", "running", "process_exited", "run_finished", "succeeded"]


async def test_a_failed_job_says_the_last_line_of_its_own_traceback(stage: Stage) -> None:
    """That line first, the rest beside it, and characters that no database stores replaced."""
    place = await stage.running()
    lines = "Traceback (most recent call last):\n  ...\nValueError: bad \x00 batch\n\n"
    await stage.sync(place, place.report("exited", exit={"exit_code": 1, "last_lines": lines}))
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.end_reason) == ("failed", "user_code_failed")
    assert job.end_message == "exit code 1: ValueError: bad \ufffd batch"
    (told,) = [event for event in await stage.rows(job_events) if event.kind == "process_exited"]
    assert told.data["last_lines"].startswith("Traceback")


async def test_an_environment_that_cannot_be_built_fails_the_job_and_never_ran(stage: Stage) -> None:
    """The user's requirement is at fault, not the code and not the machine."""
    place = await stage.place()
    await stage.sync(place, place.report("exited", exit={"environment_error": "no such package: torhc"}))
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.end_reason, job.first_running_ms) == ("failed", "environment_failed", None)
    assert job.end_message == "no such package: torhc"


@pytest.mark.parametrize("exit_", [{"signal": 9}, {}])
async def test_a_killed_process_costs_a_fault_and_goes_on(stage: Stage, exit_: dict[str, int]) -> None:
    """Up to the budget; then the job fails with that reason."""
    place = await stage.running()
    await stage.sync(place, place.report("exited", exit=exit_))
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.faults) == ("waiting", 1)
    worn = await stage.running(faults=3)
    await stage.sync(worn, worn.report("exited", exit=exit_))
    job = await stage.row(jobs, worn.job_id)
    assert (job.state, job.end_reason) == ("failed", "process_killed")


@pytest.mark.parametrize(
    ("report", "param"),
    [
        ({"phase": "exited"}, "runs[0].exit"),
        ({"phase": "running", "exit": EXIT_0}, "runs[0].exit"),
        ({"phase": "exited", "exit": {"exit_code": 1, "signal": 9}}, "runs[0].exit"),
    ],
)
async def test_an_exit_that_contradicts_itself_is_refused(stage: Stage, report: dict[str, object], param: str) -> None:
    """With nothing written."""
    place = await stage.running()
    answer = await stage.sync(place, {**place.writer(), **report})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
    assert (await stage.row(runs, place.run_id)).state == "running"


async def test_a_demoted_run_saves_leaves_and_its_job_waits(stage: Stage) -> None:
    """Asked for a checkpoint, it leaves with 0 after a save: the job goes on elsewhere, with no fault."""
    place = await stage.running(tier=Tier.SERVERLESS)
    await stop(stage, place, StopMode.CHECKPOINT)
    assert [run["want"] for run in (await stage.sync(place)).json()["runs"]] == ["checkpoint"]
    await stage.save(place, 12, ("model", b"weights"))
    exit_ = {"exit_code": 0, "saved_after_stop": True}
    reply = await stage.sync(place, place.report("exited", step=12, exit=exit_))
    assert (reply.status_code, reply.json()["runs"]) == (200, [])
    job, node = await stage.row(jobs, place.job_id), await stage.row(nodes, place.node_id)
    assert (job.state, job.moves, job.faults, job.checkpoint_step) == ("waiting", 1, 0, 12)
    assert (node.state, (await stage.rows(provider_operations))[0].kind) == ("terminating", "terminate")
    assert (await stage.sync(place)).status_code == 401


async def test_an_agent_is_told_the_grace_of_its_pool_where_a_job_leaves_for_another_one(stage: Stage) -> None:
    """And the usual one before, and where it leaves for anything else."""
    place = await stage.running(tier=Tier.OWN)
    async with stage.database.transaction() as connection:
        pool = {"name": "lab", "launcher": "joined", "price_micros": 0, "created_ms": 0, "grace_ms": 300_000}
        await connection.execute(pools.insert().values(**pool))
        await connection.execute(nodes.update().values(provider="joined", region="lab"))
    await stop(stage, place, StopMode.CHECKPOINT)
    (run,) = (await stage.sync(place)).json()["runs"]
    assert (run["want"], run["grace_ms"]) == ("checkpoint", 60_000)
    async with stage.database.transaction() as connection:
        await connection.execute(runs.update().values(evicted_for_job_id="job_of_another"))
    (run,) = (await stage.sync(place)).json()["runs"]
    assert (run["want"], run["grace_ms"]) == ("checkpoint", 300_000)


@pytest.mark.parametrize("exit_", [{"exit_code": 0}, {"exit_code": 1}, {"signal": 15}])
async def test_a_run_that_saved_because_its_machine_is_taken_away_is_not_over(
    stage: Stage, exit_: dict[str, int]
) -> None:
    """Nobody here asked it to stop, its machine did: an early exit with 0 is no success, and no fault."""
    place = await stage.running()
    await stage.save(place, 12, ("model", b"weights"))
    await stage.sync(place, place.report("exited", step=12, exit={**exit_, "saved_after_stop": True}))
    job, run = await stage.row(jobs, place.job_id), await stage.row(runs, place.run_id)
    assert (job.state, job.faults, job.moves, run.end_reason) == ("waiting", 0, 1, "preempted")


async def test_a_machine_that_is_being_taken_away_gets_no_new_run_and_ends_with_its_last(stage: Stage) -> None:
    """Its agent says so; its run may still save and leave, then the lease is ended."""
    place = await stage.running()
    leaving = {"draining": True}
    for _ in range(2):
        reply = await stage.sync(place, place.report("stopping"), host=leaving)
        assert [run["run_id"] for run in reply.json()["runs"]] == [place.run_id]
        assert (await stage.row(nodes, place.node_id)).state == "draining"
    exit_ = {"exit_code": 0, "saved_after_stop": True}
    assert (await stage.sync(place, place.report("exited", exit=exit_), host=leaving)).status_code == 200
    assert (await stage.row(nodes, place.node_id)).state == "terminating"
    assert (await stage.sync(place, host=leaving)).status_code == 401


async def test_a_machine_at_fault_gets_no_new_run_and_what_runs_there_saves_and_leaves(stage: Stage) -> None:
    """Its agent cannot end a process, say: its events tell why, and its lease ends with its last run."""
    place = await stage.running()
    host = {"draining": True, "fault": "1 processes of an ended run cannot be killed: 4711\x00"}
    for _ in range(2):
        reply = await stage.sync(place, place.report("running"), host=host)
        assert [run["want"] for run in reply.json()["runs"]] == ["checkpoint"]
    assert (await stage.row(nodes, place.node_id)).state == "draining"
    told = [event for event in await stage.rows(node_events) if event.kind == "node_at_fault"]
    assert ["cannot be killed: 4711" in event.message for event in told] == [True]
    exit_ = {"exit_code": 0, "saved_after_stop": True}
    assert (await stage.sync(place, place.report("exited", exit=exit_), host=host)).status_code == 200
    assert (await stage.row(nodes, place.node_id)).state == "terminating"


async def test_what_is_to_be_known_of_a_machine_is_an_event_of_its_node_once(stage: Stage) -> None:
    """Whatever else an agent says there is no event: it cannot fill the log of its node."""
    place = await stage.running()
    known = {"kind": "node_runs_code_as_root", "message": "user code runs as root here: x" + "y" * 5000}
    for told in ([known, known], [known, {"kind": "node_terminated", "message": "m"}, {"kind": known["kind"]}, 7], "z"):
        assert (await stage.sync(place, place.report("running"), host={"notices": told})).status_code == 200
    assert (await stage.sync(place, place.report("running"), host={"fault": 7})).status_code == 200
    kinds = [event.kind for event in await stage.rows(node_events)]
    assert kinds.count("node_runs_code_as_root") == 1
    assert not {"node_terminated", "node_at_fault"} & set(kinds)
    (event,) = [event for event in await stage.rows(node_events) if event.kind == known["kind"]]
    assert len(event.message) == 1000
    assert (await stage.row(nodes, place.node_id)).state == "ready"


async def test_a_run_told_to_kill_is_cancelled_not_faulty(stage: Stage) -> None:
    """The signal that we asked for is not the job's fault."""
    place = await stage.running()
    await stop(stage, place, StopMode.KILL)
    assert [run["want"] for run in (await stage.sync(place)).json()["runs"]] == ["kill"]
    await stage.sync(place, place.report("exited", exit={"signal": 9}))
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.faults) == ("cancelled", 0)


async def test_reports_about_runs_of_others_are_ignored(stage: Stage) -> None:
    """A node cannot end, start or advance what runs elsewhere, nor an epoch that is not its run's."""
    mine, other = await stage.running(), await stage.place()
    reply = await stage.sync(mine, other.report("exited", exit=EXIT_0), {**mine.report("running"), "epoch": 7})
    assert [run["run_id"] for run in reply.json()["runs"]] == [mine.run_id]
    assert (await stage.row(runs, other.run_id)).state == "assigned"
    assert (await stage.row(runs, mine.run_id)).state == "running"


async def test_a_run_that_was_ended_meanwhile_is_not_listed(stage: Stage) -> None:
    """Level-triggered: what is not in the reply is to be killed and forgotten."""
    place = await stage.running()
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, CANCELLED, now_ms=stage.clock.ms)
    assert (await stage.sync(place, place.report("running", step=3))).json()["runs"] == []
    assert (await stage.row(jobs, place.job_id)).step == 0


async def test_a_poll_waits_until_something_changes(stage: Stage) -> None:
    """It is answered by the change, long before its time is up."""
    place = await stage.running()
    seen = (await stage.sync(place)).json()["version"]
    poll = asyncio.create_task(stage.sync(place, place.report("running"), seen=seen, wait_ms=60_000))
    await _until_watched(stage, place)
    began = time.monotonic()
    await stop(stage, place, StopMode.CHECKPOINT)
    reply = (await poll).json()
    assert (reply["version"], reply["runs"][0]["want"]) == (seen + 1, "checkpoint")
    assert time.monotonic() - began < 50


async def test_a_poll_without_news_ends_with_the_same_version(stage: Stage) -> None:
    """After its time, and without the runs, which the agent knows."""
    place = await stage.running()
    seen = (await stage.sync(place)).json()["version"]
    reply = (await stage.sync(place, seen=seen, wait_ms=60)).json()
    assert (reply["version"], reply["runs"]) == (seen, None)


async def test_a_change_that_its_own_report_made_is_answered_at_once(stage: Stage) -> None:
    """An agent that says something new does not wait for its answer."""
    place = await stage.place()
    seen = (await stage.sync(place)).json()["version"]
    began = time.monotonic()
    await stage.sync(place, place.report("running"), seen=seen, wait_ms=60_000)
    assert time.monotonic() - began < 50


async def test_a_waiting_agent_hears_at_once_that_its_node_is_ended(stage: Stage) -> None:
    """The machine leaves by itself, even if the provider is slow to end it."""
    place = await stage.place()
    async with stage.database.transaction() as connection:
        await end_run(connection, stage.ids, place.run_id, CANCELLED, now_ms=stage.clock.ms)
    seen = (await stage.sync(place)).json()["version"]
    poll = asyncio.create_task(stage.sync(place, seen=seen, wait_ms=60_000))
    await _until_watched(stage, place)
    async with stage.database.transaction() as connection:
        await release_node(connection, stage.ids, place.node_id, "idle", now_ms=stage.clock.ms)
    assert (await poll).status_code == 401


async def test_a_waiting_agent_holds_no_connection_and_asks_nothing(stage: Stage) -> None:
    """More polls than the pool has connections wait at once, and none of them sends a statement meanwhile."""
    place = await stage.running()
    seen = (await stage.sync(place)).json()["version"]
    polls = [asyncio.create_task(stage.sync(place, seen=seen, wait_ms=60_000)) for _ in range(30)]
    await _until_watched(stage, place, 30)
    statements: list[str] = []
    engine = stage.database._engine.sync_engine
    sqlalchemy_event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    await asyncio.sleep(0.3)
    assert statements == []
    assert (await stage.row(runs, place.run_id)).state == "running"  # a connection is free
    await stop(stage, place, StopMode.KILL)
    assert {reply.json()["version"] for reply in await asyncio.gather(*polls)} == {seen + 1}


async def test_of_many_equal_exits_at_once_one_counts(stage: Stage) -> None:
    """An agent that repeats itself over several connections ends its run once."""
    place = await stage.running()
    exit_ = place.report("exited", exit={"signal": 9})
    replies = await asyncio.gather(*(stage.sync(place, exit_) for _ in range(8)))
    job = await stage.row(jobs, place.job_id)
    assert {reply.status_code for reply in replies} == {200}
    assert (job.faults, job.epoch, job.state) == (1, 2, "waiting")
    kinds = [event.kind for event in await stage.rows(job_events)]
    assert kinds.count("run_failed") == kinds.count("process_exited") == 1


async def _until_watched(stage: Stage, place: Place, count: int = 1) -> None:
    """Return once `count` polls of this node have looked at the database and wait for news."""
    watchers = stage.context.listener._watchers
    pool = stage.database._engine.pool
    deadline, quiet = time.monotonic() + 60, 0
    while quiet < 3:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
        waiting = len(watchers.get(("allpass_node", place.node_id), ())) == count
        quiet = quiet + 1 if waiting and pool.checkedout() == 0 else 0


async def test_a_cancelled_job_that_still_saves_is_taken_off_its_agents_list_and_fenced(stage: Stage) -> None:
    """From `checkpoint` to nothing at all: the agent kills what is not listed, and what it had saved comes too late."""
    place = await stage.running()
    async with stage.database.transaction() as connection:
        assert await ask_to_save(connection, place.job_id, "asked", now_ms=stage.clock.ms)
    asked = (await stage.sync(place)).json()
    assert [run["want"] for run in asked["runs"]] == ["checkpoint"]
    async with stage.database.transaction() as connection:
        await cancel_job(connection, stage.ids, place.project_id, place.job_id, now_ms=stage.clock.ms)
    cancelled = (await stage.sync(place, seen=asked["version"], wait_ms=5_000)).json()
    assert (cancelled["runs"], cancelled["version"] > asked["version"]) == ([], True)
    late = await stage.post(place, "/checkpoints", {**place.writer(), "step": 9, "files": [entry("a", b"a")]})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "fenced")
    left = place.report("exited", step=9, exit={"exit_code": 75, "saved_after_stop": True})
    assert (await stage.sync(place, left)).status_code == 200
    job = await stage.row(jobs, place.job_id)
    assert (job.state, job.end_reason, job.checkpoint_id) == ("cancelled", "cancelled", None)


async def test_the_more_agents_wait_the_less_often_each_reports_progress(stage: Stage) -> None:
    """A second apart for a few; for a thousand, ten seconds apart."""
    place = await stage.running()
    alone = (await stage.sync(place)).json()
    with contextlib.ExitStack() as others:
        for number in range(1000):
            others.enter_context(stage.context.listener.watch(notify.NODE, f"node_{number}"))
        in_a_crowd = (await stage.sync(place, seen=alone["version"])).json()
    assert (alone["report_every_ms"], in_a_crowd["report_every_ms"]) == (1_000, 10_000)
    assert (await stage.sync(place)).json()["report_every_ms"] == 1_000


async def test_a_crowd_of_agents_takes_turns(stage: Stage) -> None:
    """Many times more calls than connections: every one of them is answered."""
    place = await stage.running()
    replies = await asyncio.gather(*(stage.sync(place, place.report("running", step=n)) for n in range(200)))
    assert {reply.status_code for reply in replies} == {200}
    assert (await stage.row(jobs, place.job_id)).step == 199


@pytest.mark.parametrize("off_ms", [-5 * 3_600_000, 5 * 3_600_000])
async def test_points_of_a_machine_whose_clock_is_off_have_our_time(stage: Stage, off_ms: int) -> None:
    """Hours fast or slow, as it says when it calls: what it measured ten seconds ago was ten seconds ago. A clock that
    is right, or of which nothing is told, changes nothing."""
    place = await stage.running()
    for step, host in enumerate(
        ({"clock_ms": stage.clock.ms + off_ms}, {"clock_ms": stage.clock.ms + 40}, {}), start=1
    ):
        assert (await stage.sync(place, place.report("running"), host=host)).status_code == 200
        told_ms = stage.clock.ms - 10_000 + (off_ms if step == 1 else 0)
        point = {"step": step, "at_ms": told_ms, "values": {"loss": 1.0}}
        answer = await stage.post(place, "/metrics", {**place.writer(), "points": [point]})
        assert answer.status_code == 204, answer.text
        (kept,) = await stage.rows(metric_points, job_id=place.job_id, step=step)
        assert kept.at_ms == stage.clock.ms - 10_000
        stage.clock.ms += 2_000
