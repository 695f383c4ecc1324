"""Spot jobs on a host of a pool save and leave for a guaranteed job of another project, and finish exactly later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import allpass
from app.stack.supervisor import Clouds, Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.own_hosts import OwnHostProcess
from tests.e2e.service import Service, uninterrupted, until
from tests.folders import open_to_all

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

SPOT = {"priority_class": "spot"}
LONG = {"steps": 400, "step_ms": 40, "seed": 21}
_NEVER_SAVES = "import time\nprint('begins', flush=True)\ntime.sleep(12)\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[Service]:
    """A stack without a cloud; pool `lab` has one host with two GPUs."""
    settings = {"ALLPASS_SPOT_MIN_RUN_S": "1", "ALLPASS_STOP_GRACE_S": "8"}
    with open_to_all() as folder:
        stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE, settings=settings), tell=print)
        stack.start()
        host = OwnHostProcess(folder, "one", gpus=2)
        try:
            with client_of(stack.layout.client_file) as client:
                client.create_pool("lab")
                done = host.join(client.url, client.create_pool_token("lab").token)
                assert done.returncode == 0, done.stderr
                yield Service(stack, client)
        finally:
            host.clear()
            stack.stop()


@pytest.fixture(scope="module")
def others(lab: Service) -> Iterator[allpass.Client]:
    """A client of another project, which may use the pool as well."""
    with allpass.Client(lab.client.url, lab.client.create_project("others").key.key) as client:
        yield client


def submitted(client: allpass.Client, folder: Path, code: str, gpus: int) -> allpass.Job:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(code)
    app = allpass.build("asks", "bob", code=str(folder / "train.py"), client=client)
    job = app.run(soft_deadline="6hr", template={"gpu": {"count": gpus}})
    assert isinstance(job, allpass.Job)
    return job


def running(service: Service, job: allpass.Job) -> None:
    service.wait_for(job, "running", lambda info: info.status == "running" and (info.step or 0) > 5)


def kinds(job: allpass.Job) -> list[str]:
    return [event.kind for event in job.events()]


def test_two_leave_their_gpus_to_one_that_needs_both_and_come_back(
    lab: Service, others: allpass.Client, tmp_path: Path
) -> None:
    """Each has a machine of one GPU, cut from the host for its project; the third gets one of two, cut for another. The
    server dies while it is waited for. Whatever they were interrupted by, every loss and the model are the same."""
    losses, model = uninterrupted(tmp_path / "alone", "plain_loop.py", {**LONG, "step_ms": 0})
    spot = [lab.submit("plain_loop.py", LONG, **SPOT) for _ in range(2)]
    for job in spot:
        running(lab, job)
    third = submitted(others, tmp_path / "asks", "print('begins')\n", 2)
    until("they are asked to leave", lambda: "evicts" in kinds(third))
    lab.crash_server()
    lab.restart_server()
    assert third.wait(timeout=120, poll_s=0.1).status == "succeeded", lab.story(third)
    (why,) = [event.message for event in third.events() if event.kind == "evicts"]
    assert why.startswith("2 spot jobs save and leave for it: 0 free and 2 freed are at least the 2 GPUs")
    assert "a job of another project" in why
    for job in spot:
        assert job.id not in why
        info = lab.wait_for_end(job)
        assert (info.status, info.faults) == ("succeeded", 0), lab.story(job)
        asked = [event.message for event in job.events() if event.kind == "checkpointing"]
        assert asked[0].startswith("a guaranteed job of another project needs its GPUs")
        assert third.id not in " ".join(event.message for event in job.events())
        assert "has left its GPUs to a guaranteed job with all that it had done" in [e.message for e in job.events()]
        assert {point.step: point.values["loss"] for point in job.metrics()} == losses
        job.download(tmp_path / job.id)
        assert (tmp_path / job.id / "model.json").read_bytes() == model


def test_a_script_that_never_saves_has_to_leave_all_the_same_and_begins_again(lab: Service, tmp_path: Path) -> None:
    """It is killed when the grace is over: no fault of the job's, and its owner is told what that has cost."""
    folder = tmp_path / "spot"
    folder.mkdir()
    (folder / "deaf.py").write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _NEVER_SAVES)
    app = allpass.build("deaf", "ada", code=str(folder / "deaf.py"), client=lab.client)
    spot = app.run(soft_deadline="6hr", template={"gpu": {"count": 2}, **SPOT})
    assert isinstance(spot, allpass.Job)
    until("its first line", lambda: "begins" in " ".join(spot.logs()))
    asked = submitted(lab.client, tmp_path / "asks", "print('begins')\n", 1)
    assert asked.wait(timeout=120, poll_s=0.1).status == "succeeded", lab.story(asked)
    info = lab.wait_for_end(spot)
    assert (info.status, info.faults) == ("succeeded", 0), lab.story(spot)
    (told,) = [event for event in spot.events() if event.kind == "evicted"]
    assert told.message.startswith("has left its GPUs to a guaranteed job: ")
    assert told.data["saved"] is False and 3 <= told.data["lost_s"] < 60
    assert list(spot.logs()).count("begins") == 2


def test_what_a_project_has_borrowed_it_gives_back_to_who_is_sure_of_it(
    lab: Service, others: allpass.Client, tmp_path: Path
) -> None:
    """Both GPUs are used by guaranteed jobs of a project without a quota. One of them leaves for the other project's
    job, at an exact step, and ends with the numbers of a run left alone."""
    losses, _ = uninterrupted(tmp_path / "alone", "plain_loop.py", {**LONG, "step_ms": 0})
    lab.client.change_pool("lab", quotas={"others": 1})
    try:
        borrowing = [lab.submit("plain_loop.py", LONG) for _ in range(2)]
        for job in borrowing:
            running(lab, job)
        asks = [submitted(others, tmp_path / f"asks-{n}", "import time\ntime.sleep(2)\n", 1) for n in range(2)]
        for job in asks:
            assert job.wait(timeout=120, poll_s=0.1).status == "succeeded", lab.story(job)
        (why,) = [event.message for job in asks for event in job.events() if event.kind == "evicts"][:1]
        assert why.startswith("1 job saves and leaves for it: 0 free and 1 freed are at least the 1 GPU that")
        assert "its project has 0 of the 1 GPUs of lab that it is sure of" in why
        for job in borrowing:
            info = lab.wait_for_end(job)
            assert (info.status, info.faults) == ("succeeded", 0), lab.story(job)
            assert {point.step: point.values["loss"] for point in job.metrics()} == losses
        told = " ".join(event.message for job in borrowing for event in job.events())
        assert "needs its GPUs, which are beyond its project's quota of pool lab: saves" in told
    finally:
        lab.client.change_pool("lab", quotas={})
