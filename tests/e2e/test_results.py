"""Results of scripts that know nothing of where they run, on the real stack: moved, cancelled, failed."""

from __future__ import annotations

from pathlib import Path

import pytest

import allpass
from tests.e2e.service import Service, until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

MOVABLE = """
import json, os, pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
resumed = os.environ.get("ALLPASS_RESUME_DIR")
step = json.loads(pathlib.Path(resumed, "state").read_text()) if resumed else 0
pathlib.Path("runs").mkdir()
pathlib.Path(f"runs/events.out.tfevents.{step}").write_text(f"from {step}")
pathlib.Path("out").mkdir()
while step < 400:
    step += 1
    time.sleep(0.025)
    pathlib.Path("out/last").write_text(str(step))
    with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file: file.write(json.dumps({"step": step}) + chr(10))
    if step == 5:  # a job that has never saved is moved when it says that it will
        with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
            file.write(json.dumps({"step": step, "training": {"saves": True}}) + chr(10))
    if asked:
        pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"], "last").mkdir()
        pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"], "last", "state").write_text(str(step))
        with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
            file.write(json.dumps({"step": step, "checkpoint": "last"}) + chr(10))
        sys.exit(75)
"""
ENDLESS = """
import os, pathlib, time
pathlib.Path("best.pt").write_bytes(b"b" * 1000)
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file: file.write('{"step": 1}' + chr(10))
while True: time.sleep(0.05)
"""
FAILING = """
import os, pathlib
pathlib.Path("half.pt").write_text("half")
os.mkfifo("pipe")
raise SystemExit("out of luck")
"""


def submit(service: Service, folder: Path, name: str, script: str) -> allpass.Job:
    file = folder / f"{name}.py"
    file.write_text(script)
    return allpass.build(f"results-{name}", "ada", code=file, client=service.client).run(soft_deadline="6hr")


def paths(job: allpass.Job, folder: Path) -> list[str]:
    return sorted(str(one.path.relative_to(folder)) for one in job.download(folder))


def test_a_job_that_moved_has_what_both_of_its_runs_wrote(service: Service, tmp_path: Path) -> None:
    """What both wrote is the later one's."""
    job = submit(service, tmp_path, "movable", MOVABLE)
    info = service.wait_for_end(job)
    assert info.status == "succeeded", service.story(job)
    assert info.moves == 1
    found = paths(job, tmp_path / "results")
    assert len(found) == 3
    assert found[0] == "out/last"
    assert found[1] == "runs/events.out.tfevents.0"
    assert (tmp_path / "results/out/last").read_text() == "400"
    assert info.results is not None
    assert info.results.left == []


def test_a_job_that_is_cancelled_has_what_it_wrote_before(service: Service, tmp_path: Path) -> None:
    """Also while it runs."""
    job = submit(service, tmp_path, "endless", ENDLESS)
    until("its file is kept", lambda: paths(job, tmp_path / "early"))
    job.cancel()
    assert service.wait_for_end(job).status == "cancelled"
    assert paths(job, tmp_path / "results") == ["best.pt"]


def test_a_job_that_fails_has_what_it_wrote_and_says_what_it_left_behind(service: Service, tmp_path: Path) -> None:
    """Its end stays its own."""
    job = submit(service, tmp_path, "failing", FAILING)
    info = service.wait_for_end(job)
    assert (info.status, info.message) == ("failed", "exit code 1: out of luck")
    assert paths(job, tmp_path / "results") == ["half.pt"]
    assert info.results is not None
    assert [(one.path, one.why) for one in info.results.left or ()] == [("pipe", "is not a regular file")]
    (event,) = [event for event in job.events() if event.kind == "results_kept"]
    assert event.message == "1 file of this run is kept (4 B); left behind: pipe, 0 B (is not a regular file)"
