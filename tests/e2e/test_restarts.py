"""A script that `torchrun` has started gives up a GPU and has it back by restarts, on the real stack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import allpass
from allpass.errors import Conflict
from tests.e2e.service import EXAMPLES, Service, environment, processes, until
from tests.e2e.test_resize import runs_beside

pytestmark = [pytest.mark.stack, pytest.mark.training, pytest.mark.timeout(300)]
STEPS = 700
BY_RESTART = {"gpu": {"count": 2, "type": "A100"}, "start": "when-cheap", "resize_by": "restart"}
NEVER_SAVES = """
import json, os, time
with open(os.environ["ALLPASS_METRICS_FILE"], "a", buffering=1) as metrics:
    for step in range(1, 400):
        metrics.write(json.dumps({"step": step, "loss": 1 / step}) + chr(10))
        time.sleep(0.02)
print("one process,", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
"""


def test_torchrun_goes_on_with_one_gpu_and_with_two_again(service: Service) -> None:
    """In one run, at the exact step; what it gives up is another job's meanwhile."""
    command = ["torchrun", "--standalone", "two_machines.py"]
    app = allpass.build(
        "restarted", "ada", code=str(EXAMPLES / "two_machines.py"), command=command, client=service.client
    )
    parameters = {"steps": STEPS, "step_ms": 40}
    job = app.run(soft_deadline="6hr", parameters=parameters, template={**BY_RESTART, "labels": {"lends": "a-gpu"}})
    assert isinstance(job, allpass.Job)

    service.wait_for(job, "two processes", lambda info: (info.step or 0) > 5 and ranks(job) == 2)
    node_id = job.timeline().stays[-1].node_id
    until("to have one", lambda: resized(job, 1))
    uses(service, job, 1)
    runs_beside(service, node_id)
    until("to have two", lambda: resized(job, 2))
    uses(service, job, 2)
    info = job.wait(timeout=200, poll_s=0.1)
    assert (info.status, info.faults, info.moves) == ("succeeded", 0, 0), service.story(job)
    told = [event for event in job.events() if event.kind == "gpus_changed"]
    assert [event.message for event in told] == [
        "trains on 1 GPU (0), after 2: restarted from its newest checkpoint, not exact",
        "trains on 2 GPUs (0, 1), after 1: restarted from its newest checkpoint, not exact",
    ]
    assert len([event for event in job.events() if event.kind == "starting"]) == 1
    assert [point.step for point in job.metrics()] == list(range(1, STEPS + 1))
    log = "\n".join(job.logs())
    begun = re.findall(r"^process 0 of (\d) begins after step (\d+)", log, re.MULTILINE)
    assert [int(processes_) for processes_, _ in begun] == [2, 1, 2]
    left = [int(step) for step in re.findall(r"GPUs? instead of \d, from step (\d+), after", log)]
    assert [int(step) for _, step in begun] == [0, *left] and 0 < left[0] < left[1]
    service.settled()


def test_what_never_saves_is_never_stopped(service: Service, tmp_path: Path) -> None:
    """Its owner hears why, and it runs to its end as it began."""
    (tmp_path / "train.py").write_text(NEVER_SAVES)
    app = allpass.build("never-saves", "ada", code=str(tmp_path / "train.py"), client=service.client)
    job = app.run(soft_deadline="6hr", template=BY_RESTART)
    assert isinstance(job, allpass.Job)
    service.wait_for(job, "its first steps", lambda info: (info.step or 0) > 5)
    with pytest.raises(Conflict, match="has not saved yet") as refused:
        job.resize(1)
    assert refused.value.code == "not_elastic"
    assert job.wait(timeout=120, poll_s=0.1).status == "succeeded", service.story(job)
    assert "".join(job.logs()).count("one process,") == 1
    assert [event.kind for event in job.events() if event.kind.startswith("gpus")] == []


def ranks(job: allpass.Job) -> int:
    """Processes of its training."""
    own = [environment(pid) for pid in processes()]
    return sum(one.get("ALLPASS_JOB_ID") == job.id and "LOCAL_RANK" in one for one in own)


def uses(service: Service, job: allpass.Job, gpus: int) -> None:
    service.wait_for(
        job,
        f"{gpus} GPUs",
        lambda info: info.where is not None and info.where.gpu_count == gpus and ranks(job) == gpus,
    )


def resized(job: allpass.Job, gpus: int) -> bool:
    """Once it has shown that it saves, and there is room."""
    try:
        job.resize(gpus)
    except Conflict as error:
        assert error.code in ("not_elastic", "no_room", "conflict")
        return False
    return True
