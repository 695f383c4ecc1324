"""A job on two hosts under two switches comes together under one, with real torch.distributed processes: it trains
while a host is vacated for it by moving a small job, and it leaves and goes on at one exact step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import allpass
from app.stack.supervisor import Clouds, Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.own_hosts import OwnHostProcess
from tests.e2e.service import EXAMPLES, Service, until
from tests.e2e.test_defragmentation import QUICK, ended, host_of
from tests.e2e.test_gangs import losses, losses_of
from tests.e2e.test_moves import SCRIPT
from tests.folders import open_to_all

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

LONG = {"steps": 900, "step_ms": 50}
SMALL = {"steps": 2_000, "step_ms": 40, "seed": 5}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with open_to_all() as found:
        yield found


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[Service]:
    """A stack without a cloud, and pool `lab`, that no host has joined yet."""
    with ExitStack() as ending:
        stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE, settings=QUICK), tell=print)
        stack.start()
        ending.callback(stack.stop)
        client = ending.enter_context(client_of(stack.layout.client_file))
        client.create_pool("lab")
        yield Service(stack, client)


@pytest.fixture(scope="module")
def app(lab: Service, tmp_path_factory: pytest.TempPathFactory) -> allpass.App:
    code = tmp_path_factory.mktemp("code")
    (code / "train.py").write_text(SCRIPT.replace("plain_loop.py", "two_machines.py"))
    (code / "two_machines.py").write_bytes((EXAMPLES / "two_machines.py").read_bytes())
    return allpass.build("coming-together", "ada", code=code, client=lab.client)


def test_it_comes_together_under_one_switch_once_a_host_there_is_vacated(
    lab: Service, app: allpass.App, folder: Path, tmp_path: Path
) -> None:
    """No loss differs from that of two processes that nobody disturbed; `explain` says from where to where."""
    alone = losses_of(tmp_path, LONG["steps"])
    hosts: list[OwnHostProcess] = []
    with ExitStack() as ending:

        def joins(name: str, switch: str, gpus: int = 2) -> None:
            host = OwnHostProcess(folder, name, gpus=gpus)
            hosts.append(host)
            ending.callback(host.clear)
            token = lab.client.create_pool_token("lab").token
            done = host.join(lab.client.url, token, "--label", f"switch={switch}")
            assert done.returncode == 0, done.stderr

        joins("one", "leaf-1")
        joins("two", "leaf-2")
        template = {"nodes": 2, "gpu": {"count": 2}, "checkpoint_interval_s": 1}
        job = app.run(template=template, parameters=LONG, soft_deadline="6hr")
        lab.wait_for(job, "steps", lambda info: info.status == "running" and (info.step or 0) > 20)
        small = []
        for name, switch, gpus in (("three", "leaf-1", 1), ("four", "leaf-3", 2)):
            joins(name, switch, gpus + 1)
            small.append(lab.submit("plain_loop.py", SMALL, gpu={"count": gpus}, checkpoint_interval_s=1))
            lab.wait_for(small[-1], "steps", lambda info: info.status == "running" and (info.step or 0) > 5)
        assert [named(lab, one) for one in small] == ["three", "four"]
        plans = []

        def planned() -> bool:
            plans.append(lab.client.defragment(pool="lab", dry_run=True))
            return [one.job_id for one in plans[-1].repairs] == [job.id]

        try:
            until("a plan", planned, 40)
        except AssertionError as error:
            raise AssertionError(f"{error}: {plans[-1]}") from error
        asked = lab.client.defragment(pool="lab")
        done = until("its end", lambda: ended(lab, str(asked.id)), within_s=150)
        assert (done.state, done.message) == ("done", "1 of 1 node vacated, 1 of 1 job came together"), done
        assert done.repairs[0].there == "2 under leaf-1"
        info = lab.wait_for_end(job)
        assert (info.status, info.faults, info.moves) == ("succeeded", 0, 1), lab.story(job)
        assert losses(job) == alone
        told = [event.message for event in job.events() if event.kind == "defragmented"]
        assert "they were 1 under leaf-1, 1 under leaf-2 (entropy 0.69), and are 2 under leaf-1" in told[0]
        assert [named(lab, one) for one in small] == ["four", "four"]
        for one in small:
            one.cancel()
        until("empty hosts", lambda: not any(host.machine_processes() for host in hosts), within_s=120)


def named(lab: Service, job: allpass.Job) -> str:
    """The host that a job on one machine is on, by its name."""
    host_id = host_of(lab, job).partition("/")[0]
    return str(lab.rows(f"SELECT name FROM hosts WHERE id = '{host_id}'")[0][0])
