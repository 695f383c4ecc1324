"""How often a job is begun again, with real machines and processes: what its own code does is told apart from what its
machines do."""

from __future__ import annotations

from pathlib import Path

import pytest

import allpass
from tests.e2e.service import Service, until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

# Fails as often as it is told, each time a step further on, and then passes.
FAILING = """
import os
import sys
from pathlib import Path

tries = Path(sys.argv[1])
count = len(tries.read_text())
tries.write_text("x" * (count + 1))
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
    file.write('{"step": %d, "loss": 1.0}' % (count + 1) + chr(10))
if count < int(sys.argv[2]):
    raise ValueError(f"try {count + 1}")
print("passed")
"""
ENDLESS = """
import os, time
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file: file.write('{"step": 1}' + chr(10))
while True: time.sleep(0.05)
"""
FAULT_BUDGET = 3  # ALLPASS_FAULT_BUDGET, as it is without being set


def failing(service: Service, folder: Path, failures: int, retries: int | None) -> allpass.Job:
    code, tries = folder / "failing.py", folder / f"tries-{failures}"
    code.write_text(FAILING)
    tries.touch()
    tries.chmod(0o666)  # each run is another user
    app = allpass.build(f"failing-{failures}", "ada", code=code, client=service.client)
    template = {} if retries is None else {"retries": retries}
    return app.run(template=template, parameters=[str(tries), str(failures)], soft_deadline="6hr")


def test_a_script_that_fails_is_begun_again_as_often_as_it_was_told(service: Service, open_folder: Path) -> None:
    """With one retry and one failure it succeeds; with one more failure it has failed, in its own last words. Nothing
    of it counts as a fault of a machine."""
    passes = failing(service, open_folder, 1, retries=1)
    fails = failing(service, open_folder, 2, retries=1)
    info = service.wait_for_end(passes)
    assert (info.status, info.retried, info.faults) == ("succeeded", 1, 0), service.story(passes)
    (again,) = [event.message for event in passes.events() if event.kind == "retry"]
    assert again.startswith("failed: exit code 1: ValueError: try 1; is begun again")
    info = service.wait_for_end(fails)
    assert (info.status, info.retried, info.faults) == ("failed", 1, 0), service.story(fails)
    assert info.message == "exit code 1: ValueError: try 2; it is not begun again (1 of 1 retries used)"


def test_a_job_whose_machines_die_ends_when_its_fault_budget_is_used_up(service: Service, tmp_path: Path) -> None:
    """Its retries are for its own code alone: none of them is used, and none saves it."""
    code = tmp_path / "endless.py"
    code.write_text(ENDLESS)
    app = allpass.build("endless-deaths", "ada", code=code, client=service.client)
    job = app.run(template={"retries": 10}, soft_deadline="6hr")
    for death in range(FAULT_BUDGET + 1):
        service.wait_for(
            job, f"run {death + 1}", lambda info, died=death: info.faults == died and info.status == "running"
        )
        service.kill(service.agent_process(job))
        until("its death is known", lambda died=death: job.info().faults > died or job.info().status == "failed")
    info = service.wait_for_end(job)
    assert (info.status, info.reason, info.retried) == ("failed", "node_lost", 0), service.story(job)
    assert not [event for event in job.events() if event.kind == "retry"]
