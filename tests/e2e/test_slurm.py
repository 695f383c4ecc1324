"""A job on a real Slurm whose allocation ends, by its time or for somebody more urgent, goes on without a step lost."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import allpass
from app.stack.supervisor import Stack, StackOptions
from benchmarks.pair import PAIR, sums_of
from tests.e2e.conftest import client_of
from tests.e2e.pair import process_of
from tests.e2e.service import EXAMPLES, Service, uninterrupted, until
from tests.e2e.test_moves import MOVES, SCRIPT, assert_moved_exactly
from tests.folders import open_to_all
from tests.slurm_cluster import SlurmCluster, slurm_cluster
from tests.sweeps import swept

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]

# For longer than any allocation here lasts; where it goes on, its steps take no time.
LONG = {"steps": 5000, "step_ms": 40, "seed": 21}
SHAPE = {"partition": "main", "gpu_type": "A100", "gpu_count": 1, "gpu_memory_gb": 80, "cpus": 1, "memory_gb": 1}
SHAPES = [
    {**SHAPE, "name": "short", "time_limit": "1"},
    {**SHAPE, "name": "hops", "time_limit": "1", "most": 2},
    {**SHAPE, "name": "mild", "time_limit": "60", "partition": "graced"},
    {**SHAPE, "name": "long", "time_limit": "60", "most": 2},
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster() as cluster:
        yield cluster


@contextmanager
def stack_with(cluster: SlurmCluster, shape: str, *, most_wait_s: int = 60) -> Iterator[Service]:
    """A stack with a local cloud beside the cluster, of which it may have one shape."""
    setup = f"export PATH={Path(sys.executable).parent}:$PATH ALLPASS_AGENT_SHARES_HOST=1"  # it plays its GPUs
    settings = {
        **MOVES,
        "ALLPASS_SLURM_SHAPES": json.dumps([one for one in SHAPES if one["name"] == shape]),
        "ALLPASS_SLURM_BIN": str(cluster.bin),
        "ALLPASS_SLURM_CONF": str(cluster.conf),
        "ALLPASS_SLURM_SCRATCH": str(cluster.scratch),
        "ALLPASS_SLURM_LOG_DIR": str(cluster.logs),
        "ALLPASS_SLURM_SETUP": setup,
        "ALLPASS_SLURM_MAX_WAIT_S": str(most_wait_s),
        "ALLPASS_SLURM_STARTUP_S": "2",
        "ALLPASS_OPERATION_TIMEOUT_S": "12",
        "ALLPASS_STOP_GRACE_S": "10",
        "ALLPASS_PRICES_S": "1",
    }
    with open_to_all() as folder:
        stack = Stack(StackOptions(data_dir=folder / "data", port=0, cloud_speed=0.02, settings=settings), tell=print)
        stack.start()
        try:
            with client_of(stack.layout.client_file) as client:
                yield Service(stack, client)
        finally:
            stack.stop()
            cluster.clean_up()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], bytes]:
    """Losses and model of a run that nothing disturbed."""
    return uninterrupted(tmp_path_factory.mktemp("alone") / "run", "plain_loop.py", {**LONG, "step_ms": 0})


def on_slurm(service: Service, folder: Path) -> allpass.Job:
    """A job that trains on the cluster by now."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "plain_loop.py").write_bytes((EXAMPLES / "plain_loop.py").read_bytes())
    until("an offer of Slurm's", lambda: any(one.provider == "slurm" for one in service.client.offers()))
    job = allpass.build("slurm", "ada", code=folder, client=service.client).run(
        template={"gpu": {"type": "A100"}}, parameters=LONG, soft_deadline="6hr"
    )
    service.wait_for(job, "a step on Slurm", lambda info: info.status == "running" and info.step > 20)
    assert [stay.provider for stay in job.timeline().stays] == ["slurm"], service.story(job)
    return job


def slurm_jobs(cluster: SlurmCluster) -> list[str]:
    return cluster.call("squeue", "--noheader", "--format=%i").split()


def assert_no_step_was_lost(service: Service, job: allpass.Job, alone: Any, folder: Path) -> list[str]:
    """Where its code ran, in order. What was ordered just as the cluster filled up may have come to nothing."""
    assert_moved_exactly(service, job, alone, folder)
    stays = [stay for stay in job.timeline().stays if stay.running_at is not None]
    assert len(stays) == 2, service.story(job)
    left = f"plain_loop: saved step {stays[1].resumed_from_step}, leaving"
    assert left in list(job.logs()), service.story(job)
    return [stay.provider for stay in stays]


@pytest.mark.parametrize(("shape", "next_place"), swept([("short", "local"), ("hops", "slurm")], [("short", "local")]))
def test_a_job_leaves_an_allocation_before_its_time_is_up(
    cluster: SlurmCluster, alone: Any, tmp_path: Path, shape: str, next_place: str
) -> None:
    """The walltime is a lifetime: the next machine, of the cluster too where it has room, is prepared while the job
    trains, and Slurm never has to end it."""
    with stack_with(cluster, shape) as service:
        job = on_slurm(service, tmp_path / "code")
        (number,) = slurm_jobs(cluster)
        assert assert_no_step_was_lost(service, job, alone, tmp_path) == ["slurm", next_place]
        assert "move_begun" in [event.kind for event in job.events()], service.story(job)
        ended = cluster.until(number, "CANCELLED", "COMPLETED", "FAILED", "TIMEOUT")
        was_told = (
            ended["ExitCode"] == "3:0"
        )  # its agent heard that nobody needs it before its allocation was cancelled
        assert ended["JobState"] in {"CANCELLED", "COMPLETED"} or was_told, ended


@pytest.mark.parametrize("shape", ["mild", "long"])
def test_a_job_that_is_preempted_saves_and_goes_on_elsewhere(
    cluster: SlurmCluster, alone: Any, tmp_path: Path, shape: str
) -> None:
    """With a time of grace, its machine ends earlier than was said; without one, Slurm's SIGTERM reaches the agent."""
    with stack_with(cluster, shape) as service:
        job = on_slurm(service, tmp_path / "code")
        urgent = cluster.submit("--partition=urgent", "--nodes=3", "--exclusive", "--time=30")
        places = assert_no_step_was_lost(service, job, alone, tmp_path)
        assert places == ["slurm", "local"], service.story(job)
        cluster.until(urgent, "RUNNING")


def test_a_job_on_two_allocations_is_begun_again_when_a_process_dies(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Both are asked for at once and given back together; every number is that of a job that nobody has disturbed."""
    (tmp_path / "pair.py").write_text(PAIR)
    with stack_with(cluster, "long", most_wait_s=3_000) as service:  # while one is queued, Slurm is gloomy of the next
        until("an offer of Slurm's", lambda: any(one.provider == "slurm" for one in service.client.offers()))
        app = allpass.build("pair", "ada", code=tmp_path / "pair.py", client=service.client)
        template = {"nodes": 2, "gpu": {"type": "A100"}, "checkpoint_interval_s": 1}
        job = app.run(template=template, soft_deadline="6hr")
        assert isinstance(job, allpass.Job)
        service.wait_for(job, "steps", lambda info: info.status == "running" and (info.step or 0) > 40)
        assert len(slurm_jobs(cluster)) == 2, service.story(job)
        os.kill(process_of(job, 0), signal.SIGKILL)
        info = service.wait_for_end(job)
        assert info.status == "succeeded", service.story(job)
        assert {stay.provider for stay in job.timeline().stays} == {"slurm"}
        assert {point.step: point.values["total"] for point in job.metrics()} == sums_of(200)
        until("the end of both", lambda: not slurm_jobs(cluster))


def test_a_job_on_two_allocations_that_are_preempted_goes_on_from_the_step_it_saved(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    """Slurm asks each machine by itself, and whichever is heard of first has not failed: both leave after one step."""
    (tmp_path / "pair.py").write_text(PAIR)
    with stack_with(cluster, "long", most_wait_s=3_000) as service:
        until("an offer of Slurm's", lambda: any(one.provider == "slurm" for one in service.client.offers()))
        app = allpass.build("taken", "ada", code=tmp_path / "pair.py", client=service.client)
        template = {"nodes": 2, "gpu": {"type": "A100"}, "checkpoint_interval_s": 3600}
        job = app.run(template=template, soft_deadline="6hr")
        assert isinstance(job, allpass.Job)
        service.wait_for(job, "steps", lambda info: info.status == "running" and (info.step or 0) > 20)
        assert len(slurm_jobs(cluster)) == 2, service.story(job)
        urgent = cluster.submit("--partition=urgent", "--nodes=3", "--exclusive", "--time=30")
        cluster.until(urgent, "RUNNING")
        until("its end there", lambda: job.timeline().stays[0].to_at is not None)
        cluster.call("scancel", urgent)
        info = service.wait_for_end(job)
        assert info.status == "succeeded", service.story(job)
        ran = [stay for stay in job.timeline().stays if stay.running_at is not None]
        assert max(stay.resumed_from_step or 0 for stay in ran) > 20, service.story(job)
        assert {point.step: point.values["total"] for point in job.metrics()} == sums_of(200)
        (row,) = service.rows(f"SELECT faults FROM jobs WHERE id = '{job.id}'")
        assert row["faults"] == 0, service.story(job)
