"""A range that began on the one GPU of a pool that was free goes on on two, once they are, and computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import allpass
from app.stack.supervisor import Clouds, Stack, StackOptions
from tests.e2e.conftest import client_of
from tests.e2e.own_hosts import OwnHostProcess
from tests.e2e.service import EXAMPLES, Service
from tests.e2e.test_elastic_script import hashes
from tests.folders import open_to_all

pytestmark = [pytest.mark.stack, pytest.mark.training, pytest.mark.timeout(400)]

PARAMETERS = {"steps": 1200, "step_ms": 120}


@pytest.fixture(scope="module")
def lab() -> Iterator[Service]:
    """A stack without a cloud; pool `lab` has one host with three GPUs."""
    settings = {"ALLPASS_MOVE_SAVE_S": "1", "ALLPASS_MOVE_LOAD_S": "1", "ALLPASS_MOVE_PREPARE_S": "5"}
    with open_to_all() as folder:
        stack = Stack(StackOptions(folder / "data", port=0, clouds=Clouds.NONE, settings=settings), tell=print)
        stack.start()
        host = OwnHostProcess(folder, "one", gpus=3)
        try:
            with client_of(stack.layout.client_file) as client:
                client.create_pool("lab")
                done = host.join(client.url, client.create_pool_token("lab").token)
                assert done.returncode == 0, done.stderr
                yield Service(stack, client)
        finally:
            host.clear()
            stack.stop()


def test_it_moves_to_the_larger_piece_while_it_trains(lab: Service, tmp_path: Path) -> None:
    """How fast its app is with two GPUs is known from earlier jobs."""
    (tmp_path / "holds.py").write_text("import time\nprint('begins', flush=True)\ntime.sleep(600)\n")
    holds = allpass.build("holds", "bob", code=str(tmp_path / "holds.py"), client=lab.client)
    other = holds.run(soft_deadline="6hr", template={"gpu": {"count": 2}})
    assert isinstance(other, allpass.Job)
    lab.wait_for(other, "two of the GPUs", lambda info: info.status == "running")
    app = allpass.build("elastic", "ada", code=str(EXAMPLES / "elastic.py"), client=lab.client)
    job = app.run(soft_deadline="6hr", parameters=PARAMETERS, template={"gpu": {"count": 1, "max_count": 2}})
    assert isinstance(job, allpass.Job)
    lab.wait_for(job, "its first steps", lambda info: (info.step or 0) > 20)
    assert [stay.gpu_count for stay in job.timeline().stays] == [1], lab.story(job)
    lab.execute(
        "INSERT INTO size_speeds (app_id, shape, gpu_type, gpus, steps_per_s, noise, samples, updated_ms) "
        "SELECT j.app_id, '', lower(regexp_replace(n.gpu_type, '[^A-Za-z0-9]', '', 'g')), one.gpus, one.speed, 0, 3, 1 "
        "FROM jobs j JOIN nodes n ON n.rented_for_job_id = j.id, (VALUES (1, 8.0), (2, 15.0)) AS one (gpus, speed) "
        f"WHERE j.id = '{job.id}' ON CONFLICT DO NOTHING"
    )
    other.cancel()
    lab.wait_for(job, "its move", lambda info: info.where is not None and info.where.gpu_count == 2)
    info = job.wait(timeout=300, poll_s=0.2)
    assert (info.status, info.faults) == ("succeeded", 0), lab.story(job)
    assert [stay.gpu_count for stay in job.timeline().stays] == [1, 2], lab.story(job)
    assert [one.kind for one in job.events()].count("moves_larger") == 1

    alone = app.run(soft_deadline="6hr", parameters={**PARAMETERS, "step_ms": 0}, template={"gpu": {"count": 1}})
    assert isinstance(alone, allpass.Job)
    assert alone.wait(timeout=200, poll_s=0.2).status == "succeeded", lab.story(alone)
    assert [(one.step, one.values) for one in job.metrics()] == [(one.step, one.values) for one in alone.metrics()]
    for one, name in ((job, "moved"), (alone, "alone")):
        one.download(tmp_path / name)
    assert hashes(tmp_path / "moved") == hashes(tmp_path / "alone")
