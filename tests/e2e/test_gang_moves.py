"""A job on two rented machines goes to two hosts of a pool, once these are free, with real torch.distributed processes:
it trains while they are prepared, and it leaves and goes on at one exact step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import allpass
from app.stack.supervisor import Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.own_hosts import OwnHostProcess
from tests.e2e.service import EXAMPLES, Service, until
from tests.e2e.test_gangs import losses, losses_of
from tests.e2e.test_moves import MOVES as OF_ONE
from tests.e2e.test_moves import RULES, SCRIPT
from tests.folders import open_to_all
from tests.sweeps import swept

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

# Its steps take a while until it has moved, and no time after that.
LONG = {"steps": 1500, "step_ms": 50}
MOVES = {**OF_ONE, "ALLPASS_POLICY_RULES": json.dumps({**RULES, "chase_pause_share": 0.5})}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with open_to_all() as found:
        yield found


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """A stack with the local cloud, and a pool `lab` that no host has joined yet."""
    stack = Stack(StackOptions(data_dir=folder / "data", port=0, cloud_speed=0.02, settings=MOVES), tell=print)
    stack.start()
    try:
        with client_of(stack.layout.client_file) as client:
            client.create_pool("lab")
            yield Service(stack, client)
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def app(service: Service, tmp_path_factory: pytest.TempPathFactory) -> allpass.App:
    code = tmp_path_factory.mktemp("code")
    (code / "train.py").write_text(SCRIPT.replace("plain_loop.py", "two_machines.py"))
    (code / "two_machines.py").write_bytes((EXAMPLES / "two_machines.py").read_bytes())
    return allpass.build("gang-moves", "ada", code=code, client=service.client)


@pytest.mark.parametrize("meanwhile", swept(("nothing", "the server dies"), ("the server dies",)))
def test_it_moves_to_hosts_of_a_pool_once_both_are_free(
    service: Service, app: allpass.App, folder: Path, tmp_path: Path, meanwhile: str
) -> None:
    """No loss differs from that of two processes that nobody disturbed, and what it has left is no longer paid for."""
    alone = losses_of(tmp_path, LONG["steps"])
    job = app.run(template={"nodes": 2}, parameters=LONG, soft_deadline="6hr")
    service.wait_for(job, "steps", lambda info: info.status == "running" and (info.step or 0) > 20)
    hosts = [OwnHostProcess(folder, f"{meanwhile[-4:]}-{number}") for number in (1, 2)]
    try:
        token = service.client.create_pool_token("lab", joins=2).token
        for host in hosts:
            done = host.join(service.client.url, token)
            assert done.returncode == 0, done.stderr
        until("the move", lambda: "run_stopping" in {event.kind for event in job.events()})
        if meanwhile != "nothing":
            service.crash_server()
            service.restart_server()
        info = service.wait_for_end(job)
        assert (info.status, info.faults) == ("succeeded", 0), service.story(job)
        # While there was no server a machine may have been silent for too long: then it goes back, and moves again.
        assert info.moves == 1 if meanwhile == "nothing" else 1 <= info.moves <= 3, service.story(job)
        assert losses(job) == alone
        stays = job.timeline().stays
        assert {stay.tier for stay in stays} == {"conventional", "own"}, service.story(job)
        assert info.cost == sum(stay.cost for stay in stays)
        rented = [event.message for event in job.events() if "while it trains" in event.message]
        assert "its 2 machines cost $0.00/h at pool lab" in rented[0]
        service.settled()
    finally:
        for host in hosts:
            host.leave()
            host.clear()
