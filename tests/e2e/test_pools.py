"""A team's own machines beside rented ones: filled first, left in time, and never a step lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import allpass
from app.stack.supervisor import Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.own_hosts import OwnHostProcess
from tests.e2e.service import EXAMPLES, Service, uninterrupted, until
from tests.e2e.test_moves import MOVES, SCRIPT
from tests.folders import open_to_all

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

LONG = {"steps": 1500, "step_ms": 40, "seed": 21}  # its steps take a while until it has moved, and no time after that
SHORT = {"steps": 250, "step_ms": 40, "seed": 21}  # it stays where it is
Losses = dict[int, float]
GPU = {"gpu": {"type": "A100"}}


@pytest.fixture(scope="module")
def hybrid() -> Iterator[Service]:
    """A stack with a local cloud, whose jobs may use a pool as well."""
    with open_to_all() as folder:
        stack = Stack(StackOptions(data_dir=folder / "data", port=0, cloud_speed=0.02, settings=MOVES), tell=print)
        stack.start()
        try:
            with client_of(stack.layout.client_file) as client:
                yield Service(stack, client)
        finally:
            stack.stop()


@pytest.fixture
def lab(hybrid: Service) -> Iterator[list[OwnHostProcess]]:
    """Pool `lab` with two hosts of one GPU each."""
    client = hybrid.client
    client.create_pool("lab")
    token = client.create_pool_token("lab", joins=2).token
    with open_to_all() as folder:
        hosts = [OwnHostProcess(folder, name) for name in ("one", "two")]
        for host in hosts:
            done = host.join(client.url, token)
            assert done.returncode == 0, done.stderr
        try:
            yield hosts
        finally:
            for host in hosts:
                host.clear()
            hybrid.execute("UPDATE hosts SET heard_ms = 0")  # they have not been heard of for long
            for shown in client.pool("lab").hosts:
                client.forget_host("lab", shown.id)
            client.remove_pool("lab")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Losses, bytes]]:
    """Losses and model of runs that nothing disturbed, by their steps."""
    folder = tmp_path_factory.mktemp("alone")
    return {
        one["steps"]: uninterrupted(folder / str(one["steps"]), "plain_loop.py", {**one, "step_ms": 0})
        for one in (LONG, SHORT)
    }


@pytest.fixture(scope="module")
def app(hybrid: Service, tmp_path_factory: pytest.TempPathFactory) -> allpass.App:
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "plain_loop.py").write_bytes((EXAMPLES / "plain_loop.py").read_bytes())
    return allpass.build("pools", "ada", code=folder, client=hybrid.client)


def where(job: allpass.Job) -> str | None:
    place = job.info().where
    return None if place is None else place.tier


def on_tier(service: Service, job: allpass.Job, tier: str) -> None:
    service.wait_for(job, f"running on {tier}", lambda info: info.status == "running" and where(job) == tier)


def assert_exact(service: Service, job: allpass.Job, alone: Any, folder: Path) -> None:
    """One job; each step's loss and the model are those of the undisturbed run."""
    info = service.wait_for_end(job)
    assert info.status == "succeeded", service.story(job)
    losses, model = alone[info.parameters["steps"]]
    assert {point.step: point.values["loss"] for point in job.metrics()} == losses
    job.download(folder / job.id)
    assert (folder / job.id / "model.json").read_bytes() == model


def test_a_pool_is_filled_first_and_whoever_found_it_full_comes_home(
    hybrid: Service, app: allpass.App, lab: list[OwnHostProcess], alone: Any, tmp_path: Path
) -> None:
    """Two jobs fill it; the third starts on a rented machine at once, and moves when a node of the pool is free."""
    first, second = (app.run(template=GPU, parameters=one, soft_deadline="6hr") for one in (LONG, SHORT))
    for job in (first, second):
        on_tier(hybrid, job, "own")
    third = app.run(template=GPU, parameters=LONG, soft_deadline="6hr")
    hybrid.wait_for(third, "running elsewhere", lambda info: info.status == "running" and where(third) != "own")
    first.cancel()
    assert_exact(hybrid, third, alone, tmp_path)
    assert_exact(hybrid, second, alone, tmp_path)
    stays = third.timeline().stays
    assert [stay.tier for stay in stays][-1] == "own"
    assert "move_measured" in [event.kind for event in third.events()], "it moved while it ran"
    assert sum(stay.cost for stay in second.timeline().stays) == 0, "own machines are free by default"
    until("all of it is given back", lambda: not any(host.used for host in hybrid.client.pool("lab").hosts))


def test_a_host_that_is_unplugged_costs_what_was_not_saved(
    hybrid: Service, app: allpass.App, lab: list[OwnHostProcess], alone: Any, tmp_path: Path
) -> None:
    """Its job goes on from its last checkpoint; the other's is not touched; the host is given nothing more."""
    jobs = [app.run(template=GPU, parameters={**SHORT, "save_every_s": 1}, soft_deadline="6hr") for _ in range(2)]
    for job in jobs:
        on_tier(hybrid, job, "own")
        hybrid.wait_for(job, "a checkpoint", lambda info: (info.step or 0) > 60)
    used = {host.name: host.used for host in hybrid.client.pool("lab").hosts}
    assert used == {"one": [0], "two": [0]}
    lab[0].unplug()
    for job in jobs:
        assert_exact(hybrid, job, alone, tmp_path)
    assert sorted(job.info().faults for job in jobs) == [0, 1]
    until("one host alone is left", lambda: [host.state for host in hybrid.client.pool("lab").hosts] != ["ready"] * 2)


def test_a_pool_is_drained_for_maintenance_and_used_again(
    hybrid: Service, app: allpass.App, lab: list[OwnHostProcess], alone: Any, tmp_path: Path
) -> None:
    """What runs there moves away at an exact step; the hosts stay members; then jobs come again."""
    job = app.run(template=GPU, parameters=LONG, soft_deadline="6hr")
    on_tier(hybrid, job, "own")
    hybrid.client.drain_pool("lab", within_s=60)
    until("its end there", lambda: len(job.timeline().stays) > 1)
    until("nothing runs there", lambda: not any(host.used for host in hybrid.client.pool("lab").hosts))
    assert [host.state for host in hybrid.client.pool("lab").hosts] == ["ready", "ready"]
    hybrid.client.undrain_pool("lab")
    assert_exact(hybrid, job, alone, tmp_path)
    assert (job.info().faults, "move_measured" in [event.kind for event in job.events()]) == (0, True)
    again = app.run(template=GPU, parameters={**LONG, "steps": 5}, soft_deadline="6hr")
    on_own = hybrid.wait_for_end(again)
    assert (on_own.status, [stay.tier for stay in again.timeline().stays]) == ("succeeded", ["own"])


def test_a_host_leaves_when_what_runs_there_has_moved(
    hybrid: Service, app: allpass.App, lab: list[OwnHostProcess], alone: Any, tmp_path: Path
) -> None:
    """Nothing of it stays behind, neither here nor there."""
    job = app.run(template=GPU, parameters=LONG, soft_deadline="6hr")
    on_tier(hybrid, job, "own")
    (at,) = [host.name for host in hybrid.client.pool("lab").hosts if host.used]
    host = next(one for one in lab if one.name == at)
    done = host.leave()
    assert done.returncode == 0, done.stderr + host.log()
    assert "left: nothing of it is on this host any more" in done.stdout
    assert not host.root.exists()
    assert [one.name for one in hybrid.client.pool("lab").hosts] == [one.name for one in lab if one is not host]
    assert_exact(hybrid, job, alone, tmp_path)
    assert job.info().faults == 0


def test_what_runs_on_a_host_outlives_its_program(
    hybrid: Service, app: allpass.App, lab: list[OwnHostProcess], alone: Any, tmp_path: Path
) -> None:
    """It is restarted, as for an update: no job notices."""
    job = app.run(template=GPU, parameters=SHORT, soft_deadline="6hr")
    on_tier(hybrid, job, "own")
    for host in lab:
        host.stop()
        host.start()
    assert_exact(hybrid, job, alone, tmp_path)
    assert ([stay.tier for stay in job.timeline().stays], job.info().faults) == (["own"], 0)
    until("its GPU is free again", lambda: not any(host.used for host in hybrid.client.pool("lab").hosts))
