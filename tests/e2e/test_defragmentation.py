"""Three half-used hosts become two, by moves that lose no step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import allpass
from allpass.wire.defragmentations import DefragRelease
from app.stack.supervisor import Clouds, Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.own_hosts import OwnHostProcess
from tests.e2e.service import Service, uninterrupted, until
from tests.folders import open_to_all

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
# What a move is expected to take: a job stays where it is for ten times that.
QUICK = {"ALLPASS_MOVE_SAVE_S": "0.2", "ALLPASS_MOVE_LOAD_S": "0.2", "ALLPASS_MOVE_PREPARE_S": "0.2"}
QUICK |= {"ALLPASS_HEARTBEAT_CHECK_S": "1"}  # rounds follow one another
LONG = {"steps": 600, "step_ms": 40, "seed": 5}


@pytest.fixture(scope="module")
def lab() -> Iterator[Service]:
    """A stack without a cloud; pool `lab` has three hosts with four GPUs each."""
    with open_to_all() as folder, ExitStack() as ending:
        stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE, settings=QUICK), tell=print)
        stack.start()
        ending.callback(stack.stop)
        client = ending.enter_context(client_of(stack.layout.client_file))
        client.create_pool("lab")
        for name in ("one", "two", "three"):
            host = OwnHostProcess(folder, name, gpus=4)
            ending.callback(host.clear)
            done = host.join(client.url, client.create_pool_token("lab").token)
            assert done.returncode == 0, done.stderr
        yield Service(stack, client)


def test_three_half_used_hosts_become_two_without_a_lost_step(lab: Service, tmp_path: Path) -> None:
    """Six jobs of two GPUs fill three hosts; one on each ends. Afterwards a whole host is free, and there is nothing
    more to do. Numbers and results are those of a run left alone."""
    losses, model = uninterrupted(tmp_path / "alone", "plain_loop.py", {**LONG, "step_ms": 0})
    jobs = [lab.submit("plain_loop.py", LONG, gpu={"count": 2}, checkpoint_interval_s=1) for _ in range(6)]
    for job in jobs:
        lab.wait_for(job, "a step", lambda info: info.status == "running" and (info.step or 0) > 5)
    left: dict[str, allpass.Job] = {}
    for job in jobs:
        if left.setdefault(host_of(lab, job), job) is not job:
            job.cancel()
    assert len(left) == 3
    # Of all four GPUs of one: those of jobs that were cancelled are its own again.
    until("a plan that frees one", lambda: [one.gpus for one in plan(lab)] == [4], 30)

    asked = lab.client.defragment(pool="lab")
    assert asked.id is not None
    done = until("its end", lambda: ended(lab, str(asked.id)), within_s=120)
    assert (done.state, done.message) == ("done", "1 of 1 node vacated"), done
    assert len({host_of(lab, job) for job in left.values()}) == 2
    for _ in range(2):
        assert plan(lab) == []
    for job in left.values():
        assert job.wait(timeout=120, poll_s=0.1).status == "succeeded", lab.story(job)
        assert {point.step: point.values["loss"] for point in job.metrics()} == losses
        job.download(tmp_path / job.id)
        assert (tmp_path / job.id / "model.json").read_bytes() == model
    moved = [job for job in left.values() if len({stay.node_id for stay in job.timeline().stays}) > 1]
    assert len(moved) == 1
    told = [event.message for event in moved[0].events() if event.kind == "defragmented"]
    assert len(told) == 1
    assert "is vacated: all 4 GPUs are free" in told[0]


def plan(lab: Service) -> list[DefragRelease]:
    return list(lab.client.defragment(pool="lab", dry_run=True).releases)


def host_of(lab: Service, job: allpass.Job) -> str:
    node_id = job.timeline().stays[-1].node_id
    return str(lab.rows(f"SELECT host FROM nodes WHERE id = '{node_id}'")[0][0])


def ended(lab: Service, defragmentation_id: str) -> object | None:
    found = lab.client.get_defragmentation(defragmentation_id)
    return found if found.ended_at is not None else None
