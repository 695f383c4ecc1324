"""Jobs on several machines of a pool, with real torch.distributed processes: begun together, moved, and begun again
after one of the machines is lost, at exact steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import allpass
from app.stack.supervisor import Clouds, Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.own_hosts import OwnHostProcess
from tests.e2e.service import EXAMPLES, Service, environment, processes, until
from tests.e2e.test_finetune import sums, unpacked
from tests.folders import open_to_all
from tests.training.recipes import Course
from tests.training.scripts import files_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

SCRIPT = "two_machines.py"
LONG = {"steps": 120, "step_ms": 50}


class Lab:
    """A stack without a cloud, and three hosts with a GPU each in the pool `lab`."""

    def __init__(self, service: Service, hosts: dict[str, OwnHostProcess]) -> None:
        self.service = service
        self.hosts = hosts

    def submit(self, **parameters: Any) -> allpass.Job:
        return self.service.submit(SCRIPT, {**LONG, **parameters}, nodes=2)

    def host_with(self, job: allpass.Job, rank: int) -> OwnHostProcess:
        """The host on which this process of the job is."""

        def look() -> OwnHostProcess | None:
            for host in self.hosts.values():
                for pid in host.machine_processes():
                    found = environment(pid)
                    if found.get("ALLPASS_JOB_ID") == job.id and found.get("ALLPASS_NODE_RANK") == str(rank):
                        return host
            return None

        return until(f"process {rank} of {job.id}", look)

    def process(self, job: allpass.Job, rank: int) -> int:
        (pid,) = (
            pid
            for pid in self.host_with(job, rank).machine_processes()
            if environment(pid).get("ALLPASS_NODE_RANK") == str(rank) and pid in processes()
        )
        return pid

    def running(self, job: allpass.Job, step: int = 5) -> None:
        self.service.wait_for(job, "steps", lambda info: info.status == "running" and (info.step or 0) > step)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    settings = {"ALLPASS_UNREACHABLE_AFTER_S": "6", "ALLPASS_SPOT_MIN_RUN_S": "2"}
    with open_to_all() as folder:
        stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE, settings=settings), tell=print)
        stack.start()
        hosts = {name: OwnHostProcess(folder, name) for name in ("one", "two", "three")}
        try:
            with client_of(stack.layout.client_file) as client:
                client.create_pool("lab")
                token = client.create_pool_token("lab", joins=3).token
                for host in hosts.values():
                    done = host.join(client.url, token)
                    assert done.returncode == 0, done.stderr
                yield Lab(Service(stack, client), hosts)
        finally:
            for host in hosts.values():
                host.clear()
            stack.stop()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of two processes that nobody interrupts."""
    return losses_of(tmp_path_factory.mktemp("alone"), LONG["steps"])


def losses_of(folder: Path, steps: int, script: str = SCRIPT, *, world: int = 2) -> dict[int, float]:
    import json
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (folder / "parameters.json").write_text(json.dumps({"steps": steps}))
    started = []
    for rank in range(world):
        (folder / str(rank)).mkdir()
        environ = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "lo", "ALLPASS_PARAMETERS_FILE": str(folder / "parameters.json"),
            "ALLPASS_METRICS_FILE": str(folder / str(rank) / "metrics.jsonl"),
            "ALLPASS_OUTPUT_DIR": str(folder / str(rank)), "ALLPASS_CHECKPOINT_DIR": str(folder / str(rank)),
            "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent / "sdk"), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        command = [sys.executable, str(EXAMPLES / script)]
        with (folder / str(rank) / "output").open("w") as output:
            started.append(
                subprocess.Popen(command, env=environ, cwd=folder / str(rank), stdout=output, stderr=subprocess.STDOUT)
            )
    ends = [process.wait(120) for process in started]
    assert ends == [0] * world, [(folder / str(rank) / "output").read_text() for rank in range(world)]
    lines = [json.loads(line) for line in (folder / "0" / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def losses(job: allpass.Job) -> dict[int, float]:
    return {point.step: point.values["loss"] for point in job.metrics()}


def test_both_machines_begin_together_and_end_together(lab: Lab, alone: dict[int, float]) -> None:
    job = lab.submit(step_ms=0)
    info = lab.service.wait_for_end(job)
    assert info.status == "succeeded", lab.service.story(job)
    assert losses(job) == alone
    until("an empty pool", lambda: not any(host.machine_processes() for host in lab.hosts.values()), within_s=120)


def test_spot_jobs_leave_two_hosts_for_it_and_come_back(lab: Lab, alone: dict[int, float]) -> None:
    """Every host has one. Two save and leave, the third is left alone; all go on where they were."""
    template = {"priority_class": "spot"}
    endless = {"steps": 400_000, "step_ms": 20}
    spot = [lab.service.submit("plain_loop.py", endless, **template) for _ in lab.hosts]
    try:
        _spot_jobs_leave(lab, spot, alone)
    finally:
        for one in spot:
            one.cancel()
    until("an empty pool", lambda: not any(host.machine_processes() for host in lab.hosts.values()), within_s=120)


def _spot_jobs_leave(lab: Lab, spot: list[allpass.Job], alone: dict[int, float]) -> None:
    for one in spot:
        lab.service.wait_for(one, "steps", lambda info: info.status == "running" and (info.step or 0) > 150)
    job = lab.submit(step_ms=0)
    assert lab.service.wait_for_end(job).status == "succeeded", lab.service.story(job)
    assert losses(job) == alone
    (why,) = [event.message for event in job.events() if event.kind == "evicts"]
    assert why.startswith("2 spot jobs save and leave for it: 0 hosts have room in lab, and 2 more are left for it")
    evicted = [one for one in spot if "evicted" in {event.kind for event in one.events()}]
    assert len(evicted) == 2
    for one in evicted:
        lab.service.wait_for(one, "its steps again", lambda info: info.status == "running" and (info.step or 0) > 160)


def test_a_machine_is_lost_and_all_go_on_from_the_last_checkpoint(lab: Lab, alone: dict[int, float]) -> None:
    """The others are told at once; a third host takes the lost one's place, and no loss differs."""
    job = lab.submit(step_ms=60)
    lab.running(job)
    lost = lab.host_with(job, 1)
    lost.unplug()
    try:
        info = lab.service.wait_for_end(job)
    finally:
        lost.start()  # the other tests have three hosts, too
    assert info.status == "succeeded", lab.service.story(job)
    assert losses(job) == alone
    told = [event.message for event in job.events()]
    assert any(message.startswith("machine 1 of its job is silent") for message in told), told


def test_a_process_of_one_machine_that_is_killed_costs_a_beginning_from_the_last_checkpoint(
    lab: Lab, alone: dict[int, float]
) -> None:
    job = lab.submit(step_ms=60)
    lab.running(job)
    os.kill(lab.process(job, 1), signal.SIGKILL)
    info = lab.service.wait_for_end(job)
    assert info.status == "succeeded", lab.service.story(job)
    assert losses(job) == alone


def test_four_machines_of_which_one_loses_its_process(lab: Lab, tmp_path: Path) -> None:
    """As two do: all of them begin again from the last checkpoint, and no loss differs."""
    fourth = OwnHostProcess(lab.hosts["one"].root.parent, "four")
    done = fourth.join(lab.service.client.url, lab.service.client.create_pool_token("lab", joins=1).token)
    assert done.returncode == 0, done.stderr
    lab.hosts["four"] = fourth
    try:
        job = lab.service.submit(SCRIPT, LONG | {"step_ms": 60}, nodes=4)
        lab.running(job)
        os.kill(lab.process(job, 2), signal.SIGKILL)
        info = lab.service.wait_for_end(job)
        assert info.status == "succeeded", lab.service.story(job)
        assert losses(job) == losses_of(tmp_path, LONG["steps"], world=4)
    finally:
        del lab.hosts["four"]
        until("an empty pool", lambda: not fourth.machine_processes(), within_s=120)
        fourth.leave()
        fourth.clear()


def test_paused_and_resumed_it_goes_on_at_the_exact_step(lab: Lab, alone: dict[int, float]) -> None:
    """All processes stop at the same step, whichever was asked first; the server dies meanwhile."""
    job = lab.submit()
    lab.running(job)
    job.pause()
    info = lab.service.wait_for(job, "pause", lambda info: info.status == "paused")
    lab.service.crash_server()
    lab.service.restart_server()
    job.resume()
    done = lab.service.wait_for_end(job)
    assert (done.status, done.faults) == ("succeeded", 0), lab.service.story(job)
    assert losses(job) == alone
    told = "\n".join(job.logs())
    assert f"after step {info.step}" in told, f"{lab.service.story(job)}\n{told}"


def test_a_drained_host_is_left_by_the_whole_job(lab: Lab, alone: dict[int, float]) -> None:
    job = lab.submit()
    lab.running(job)
    leaving = lab.host_with(job, 1)
    lab.service.client.drain_pool("lab", host=leaving.name, within_s=60)
    done = lab.service.wait_for_end(job)
    assert (done.status, done.faults) == ("succeeded", 0), lab.service.story(job)
    assert losses(job) == alone
    until("an empty host", lambda: not leaving.machine_processes())


def test_parts_of_both_machines_are_one_checkpoint(lab: Lab, tmp_path: Path) -> None:
    """Paused and resumed, and once more after the process of one is killed: bit for bit, from the files of both."""
    template = {"nodes": 2, "checkpoint_interval_s": 1}
    job = lab.service.submit("sharded_machines.py", {"steps": 80, "step_ms": 50}, **template)
    lab.running(job)
    job.pause()
    lab.service.wait_for(job, "a pause", lambda info: info.status == "paused")
    newest = next(iter(job.checkpoints()))
    assert newest.step == job.info().step
    job.resume()
    lab.running(job, newest.step + 25)
    lab.service.kill(until("its process on machine 1", lambda: process_of(lab.host_with(job, 1))))
    done = lab.service.wait_for_end(job)
    assert (done.status, done.faults) == ("succeeded", 1), lab.service.story(job)
    told = [event.message for event in job.events() if event.kind == "checkpoint_committed"]
    assert told and all("in parts of 2 machines" in one for one in told)
    assert "checkpoint_refused" not in {event.kind for event in job.events()}, lab.service.story(job)
    assert losses(job) == losses_of(tmp_path, 80, "sharded_machines.py")


def test_the_code_of_a_further_machine_that_fails_ends_the_job_with_its_words(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\nif os.environ['ALLPASS_NODE_RANK'] == '1':\n    raise ValueError('no such column')\n"
        "time.sleep(60)\n"
    )
    app = allpass.build("fails-there", "ada", code=str(tmp_path / "train.py"), client=lab.service.client)
    job = app.run(soft_deadline="6hr", template={"nodes": 2})
    assert isinstance(job, allpass.Job)
    info = lab.service.wait_for_end(job)
    assert info.status == "failed", lab.service.story(job)
    assert info.message == "machine 1 of its job: exit code 1: ValueError: no such column"


@pytest.mark.training
@pytest.mark.filterwarnings("ignore::FutureWarning:transformers.modeling_utils")  # peft asks by an older name
def test_a_fine_tuning_on_two_machines_is_the_one_on_a_single_gpu(lab: Lab, tmp_path: Path) -> None:
    """Also when one of its machines loses its process on the way: from the last checkpoint, not a byte differs."""
    from allpass.recipe.packing import pack
    from tests.training import tiny

    rows = sums(tmp_path / "sums.jsonl")
    with open_to_all() as folder:
        model = tiny.shared_llama(folder / "tiny-llama")
        job = allpass.finetune(
            model, rows, steps=400, evaluate_every=100, batch_size=8, micro_batch=2, learning_rate=5e-3,
            precision="fp32", lora_dropout=0.2, template={"nodes": 2, "checkpoint_interval_s": 1},
            client=lab.service.client, user_name="ada",
        )  # fmt: skip
        lab.service.wait_for(job, "a checkpoint", lambda info: bool(list(job.checkpoints())))
        lab.service.kill(until("its process on machine 1", lambda: process_of(lab.host_with(job, 1))))
        info = job.wait(timeout=200, poll_s=0.1)
        assert (info.status, info.faults) == ("succeeded", 1), lab.service.story(job)
        told = [event.message for event in job.events()]
        assert any(one.startswith("machine 1 of its job: the process was killed by signal 9") for one in told), told
        log = list(job.logs())  # not the last words of machine 0: its agent may have stopped it before it said them
        assert any("training: on 2 GPUs, which share the 4 parts of 2 rows of a step" in line for line in log), log
        assert any("training: goes on with step" in line for line in log), log

        bundle = unpacked(pack(info.parameters, rows).bundle.content, tmp_path / "bundle")
        whole = Course(tmp_path / "alone", bundle, info.parameters).run()
    assert {point.step: point.values for point in job.metrics()} == whole.points()
    job.download(tmp_path / "artifacts")
    assert files_of(tmp_path / "artifacts") == files_of(whole.output)


def process_of(host: OwnHostProcess) -> int | None:
    """The job's own, on this host."""
    own = [pid for pid in host.machine_processes() if environment(pid).get("ALLPASS_NODE_RANK")]
    return own[0] if own else None
