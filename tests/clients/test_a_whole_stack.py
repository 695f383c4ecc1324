"""A job with a tracker on a whole stack that moves it: one run before and after, and the link to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import allpass
from app.stack.supervisor import Stack, StackOptions
from tests.clients.environments import SCRIPTS, python_of
from tests.clients.test_mlflow import asked, steps_of, told_of
from tests.e2e.conftest import client_of
from tests.e2e.service import Service
from tests.e2e.test_moves import MOVES
from tests.folders import open_to_all

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
STEPS = 200


@pytest.fixture(scope="module")
def moving() -> Iterator[Service]:
    """A stack whose policy moves jobs that have run for two seconds."""
    with open_to_all() as folder:
        stack = Stack(StackOptions(data_dir=folder / "data", port=0, cloud_speed=0.02, settings=MOVES), tell=print)
        stack.start()
        try:
            with client_of(stack.layout.client_file) as client:
                yield Service(stack, client)
        finally:
            stack.stop()


def test_a_moved_jobs_run_of_mlflow_is_one_and_is_shown(moving: Service, server: str, tmp_path: Path) -> None:
    """Each step once, by `allpass show` and by the REST API the link to it, whoever asks."""
    (tmp_path / "train.py").write_bytes((SCRIPTS / "tracked.py").read_bytes())
    app = allpass.build(
        "tracked", "ada", code=tmp_path, client=moving.client, command=[python_of("mlflow"), "train.py"]
    )
    job = app.run(
        parameters={"tracker": "mlflow", "steps": STEPS, "step_s": 0.1, "experiment": "stack"},
        template={"env": {"MLFLOW_TRACKING_URI": server}},
        soft_deadline="6hr",
    )
    info = job.wait(timeout=240, poll_s=0.2)
    assert (info.status, info.moves >= 1) == ("succeeded", True), moving.story(job)
    (link,) = info.links.values()
    address, _, run_id = link.rpartition("/")
    assert address.startswith(f"{server}/#/experiments/")
    assert steps_of(server, run_id) == list(range(1, STEPS + 1))
    told = told_of(server, run_id)
    assert told["info"]["status"] == "FINISHED"
    assert len(asked(server, "runs/search", experiment_ids=[told["info"]["experiment_id"]])["runs"]) == 1
    known = json.loads(moving.stack.layout.client_file.read_text())
    answer = httpx.get(
        f"{known['url']}/v1/jobs/{job.id}", headers={"Authorization": f"Bearer {known['api_key']}"}, trust_env=False
    )
    assert answer.json()["links"] == {"mlflow": link}
    shown = subprocess.run(
        [str(Path(sys.executable).with_name("allpass")), "show", job.id],
        env={**os.environ, "ALLPASS_URL": known["url"], "ALLPASS_API_KEY": known["api_key"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"mlflow: {link}" in shown.stdout
