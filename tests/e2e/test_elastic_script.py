"""A script of a user's own gives up a GPU and has it back, on the real stack, and not a byte of its result differs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import allpass
from tests.e2e.service import EXAMPLES, Service, command_line, environment, processes, until
from tests.e2e.test_resize import resized
from tests.training.scripts import files_of

pytestmark = [pytest.mark.stack, pytest.mark.training, pytest.mark.timeout(240)]
PARAMETERS = {"steps": 900, "step_ms": 30}


def test_a_script_goes_on_with_one_gpu_and_with_two_again(service: Service, tmp_path: Path) -> None:
    """As its guide says. Its processes are those that it is to have; losses are those of a run on one GPU."""
    app = allpass.build("elastic", "ada", code=str(EXAMPLES / "elastic.py"), client=service.client)
    on_two = {"gpu": {"count": 2, "type": "A100"}, "start": "when-cheap"}
    job = app.run(soft_deadline="6hr", parameters=PARAMETERS, template=on_two)
    assert isinstance(job, allpass.Job)
    alone = app.run(soft_deadline="6hr", parameters={**PARAMETERS, "step_ms": 0})
    assert isinstance(alone, allpass.Job)

    service.wait_for(job, "two processes", lambda info: (info.step or 0) > 5 and len(followers(job)) == 1)
    until("to have one", lambda: resized(job, 1))
    service.wait_for(job, "one process", lambda info: info.where is not None and info.where.gpu_count == 1)
    until("to have two", lambda: resized(job, 2))
    service.wait_for(job, "two again", lambda info: len(followers(job)) == 1)
    info = job.wait(timeout=200, poll_s=0.1)
    assert (info.status, info.faults) == ("succeeded", 0), service.story(job)
    sizes = [event.message.partition(" (")[0] for event in job.events() if event.kind == "gpus_changed"]
    assert sizes == ["trains on 1 GPU", "trains on 2 GPUs"]

    assert alone.wait(timeout=200, poll_s=0.1).status == "succeeded", service.story(alone)
    assert [(one.step, one.values) for one in job.metrics()] == [(one.step, one.values) for one in alone.metrics()]
    for one, name in ((job, "changed"), (alone, "alone")):
        one.download(tmp_path / name)
    assert hashes(tmp_path / "changed") == hashes(tmp_path / "alone")
    assert "model.pt" in " ".join(hashes(tmp_path / "alone"))


def hashes(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files_of(folder).items()}


def followers(job: allpass.Job) -> list[int]:
    own = (pid for pid in processes() if environment(pid).get("ALLPASS_JOB_ID") == job.id)
    return [
        pid for pid in own if environment(pid).get("ALLPASS_ELASTIC_FOLLOWS") and "elastic.py" in str(command_line(pid))
    ]
