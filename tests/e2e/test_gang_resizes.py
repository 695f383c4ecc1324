"""A fine-tuning on hosts of a pool goes on with more of them, and with fewer, while it runs, with real processes of
torch.distributed: not a byte differs from one that nobody disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import allpass
from allpass.errors import Conflict
from app.stack.supervisor import Clouds, Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.own_hosts import OwnHostProcess
from tests.e2e.service import Service, environment, until
from tests.e2e.test_finetune import sums, unpacked
from tests.folders import open_to_all
from tests.sweeps import swept
from tests.training.recipes import Course
from tests.training.scripts import files_of

pytestmark = [
    pytest.mark.stack,
    pytest.mark.training,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils"),  # peft asks by an older name
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with open_to_all() as found:
        yield found


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[list[OwnHostProcess]]:
    made = [OwnHostProcess(folder, name) for name in ("one", "two", "three")]
    yield made
    for host in made:
        host.clear()


@pytest.fixture(scope="module")
def service(folder: Path, hosts: list[OwnHostProcess]) -> Iterator[Service]:
    """A stack without a cloud, and a pool `lab` that two of the hosts have joined."""
    stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE), tell=print)
    stack.start()
    try:
        with client_of(stack.layout.client_file) as client:
            client.create_pool("lab")
            found = Service(stack, client)
            for host in hosts[:2]:
                joins(found, host)
            yield found
    finally:
        stack.stop()


def joins(service: Service, host: OwnHostProcess) -> None:
    done = host.join(service.client.url, service.client.create_pool_token("lab", joins=1).token)
    assert done.returncode == 0, done.stderr


def trains_on(service: Service, hosts: list[OwnHostProcess], job: allpass.Job, nodes: int) -> None:
    """Until it has so many machines, and a process on each."""

    def has(info: object) -> bool:
        where = job.info().where
        return job.info().status == "running" and where is not None and where.nodes == nodes

    service.wait_for(job, f"{nodes} machines", has)
    with_one = [host for host in hosts if any(of(pid) == (job.id, str(nodes)) for pid in host.machine_processes())]
    assert len(with_one) == nodes


def of(pid: int) -> tuple[str | None, str]:
    """Whose process it is, and on how many machines."""
    found = environment(pid)
    return found.get("ALLPASS_JOB_ID"), found.get("ALLPASS_NODES", "1")


def rentals(job: allpass.Job) -> int:
    return sum(event.kind == "node_rented" for event in job.events())


def resizes(job: allpass.Job, nodes: int) -> bool:
    """Once its code says that all of them stop after one step."""
    try:
        job.resize(nodes=nodes)
    except Conflict as error:
        assert error.code in ("not_elastic", "conflict"), error
        return False
    return True


@pytest.mark.parametrize("meanwhile", swept(("nothing", "the server dies"), ("the server dies",)))
def test_it_goes_on_with_more_hosts_and_with_fewer(
    service: Service, hosts: list[OwnHostProcess], folder: Path, tmp_path: Path, meanwhile: str
) -> None:
    """It trains on while the third one has not joined yet, and says why. Nothing of what came of it differs."""
    from allpass.recipe.packing import pack
    from tests.training import tiny

    rows = sums(tmp_path / "sums.jsonl")
    model = tiny.shared_llama(folder / f"tiny-llama-{meanwhile[-4:]}")
    job = allpass.finetune(
        model, rows, steps=2500, evaluate_every=500, batch_size=8, micro_batch=2, learning_rate=5e-3,
        precision="fp32", lora_dropout=0.2, template={"checkpoint_interval_s": 5},
        client=service.client, user_name="ada",
    )  # fmt: skip
    service.wait_for(job, "steps", lambda info: info.status == "running" and (info.step or 0) > 5)
    until("its wish for two", lambda: resizes(job, 2))
    trains_on(service, hosts, job, 2)
    rented = rentals(job)
    until("its wish for three", lambda: resizes(job, 3))
    if len(service.client.pool("lab").hosts) < 3:
        until("why not", lambda: "resize_waits" in {event.kind for event in job.events()})
        assert any("it lacks 1 more machine" in one.text for one in job.explain().because)
        joins(service, hosts[2])
    if meanwhile != "nothing":
        until("its third machine", lambda: rentals(job) > rented)
        service.crash_server()
        service.restart_server()
    trains_on(service, hosts, job, 3)
    until("its wish for fewer", lambda: resizes(job, 2))
    trains_on(service, hosts, job, 2)
    until("its wish for one", lambda: resizes(job, 1))
    trains_on(service, hosts, job, 1)
    info = job.wait(timeout=300, poll_s=0.1)
    assert (info.status, info.faults, info.moves) == ("succeeded", 0, 4), service.story(job)
    changed = [event.message for event in job.events() if event.kind == "machines_changed"]
    assert [one.split()[2] for one in changed] == ["2", "3", "2", "1"]
    sizes = [(size.gpus, size.gpus_before, size.why) for size in service.client.sizes(job.id)]
    asked = [(2, 1, "asked"), (3, 2, "asked"), (2, 3, "asked"), (1, 2, "asked")]
    assert sizes == [(1, None, "begun"), *asked], service.story(job)
    assert info.cost == sum(stay.cost for stay in job.timeline().stays)

    assert isinstance(info.parameters, dict)
    bundle = unpacked(pack(info.parameters, rows).bundle.content, tmp_path / "bundle")
    whole = Course(tmp_path / "alone", bundle, info.parameters).run()
    assert {point.step: point.values for point in job.metrics()} == whole.points()
    job.download(tmp_path / "artifacts")
    assert files_of(tmp_path / "artifacts") == files_of(whole.output)
    until("an empty pool", lambda: not any(host.machine_processes() for host in hosts), within_s=120)
