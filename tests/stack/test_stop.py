"""Stopping `allpass up` loses no step that could be saved, and is no fault of any job."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import allpass as aps
from allpass.client import Client
from tests.stack.up_process import Up, processes_of, until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(400)]
# Counts until the file `until` is there; saves when it is asked to leave, and leaves.
COUNTS = """
import json, os, pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
given = json.loads(pathlib.Path(os.environ["ALLPASS_PARAMETERS_FILE"]).read_text())
resumed = os.environ.get("ALLPASS_RESUME_DIR")
step = int(pathlib.Path(resumed, "step").read_text()) if resumed else 0
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    def tell(**line):
        metrics.write(json.dumps({"step": step, **line}) + chr(10))
        metrics.flush()
    while not pathlib.Path(given["until"]).exists():
        time.sleep(given["step_ms"] / 1000)
        step += 1
        tell(loss=1.0 / step)
        if asked:
            folder = pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"], f"step-{step}")
            folder.mkdir()
            (folder / "step").write_text(str(step))
            tell(checkpoint=folder.name)
            sys.exit(75)
"""
# Counts on for ever, leaves on no signal and saves nothing.
STUBBORN = """
import json, os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    for step in range(1, 10_000):
        metrics.write(json.dumps({"step": step, "loss": 1.0}) + chr(10))
        metrics.flush()
        time.sleep(0.05)
"""


def submit(client: Client, name: str, code: Path, **parameters: object) -> str:
    app = aps.build(app_name=name, user_name="ada", code=str(code), client=client)
    job = app.run(parameters=parameters, soft_deadline="1h")
    assert isinstance(job, aps.Job)
    return job.id


def steps_of(client: Client, job_id: str) -> list[int]:
    return [point.step for point in client.metrics(job_id) if "loss" in point.values]


def trains_on(client: Client, job_id: str, from_step: int) -> int:
    """Wait until it is beyond that step; its step."""

    def look() -> int | None:
        job = client.get_job(job_id)
        assert job.status != "failed", f"{job.reason}: {job.message}"
        return job.step if job.status == "running" and job.step > from_step else None

    return until(f"{job_id} beyond step {from_step}", look)


def story(client: Client, job_id: str) -> str:
    return "\n".join(f"{event.at:%H:%M:%S} {event.kind}: {event.message}" for event in client.events(job_id))


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name / "train.py"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_jobs_survive_four_stops_without_a_fault_or_a_lost_step(open_folder: Path) -> None:
    """One job saves at once, one at the end of a long step. Each stop is told, and each start goes on from there."""
    done = open_folder / "done"
    code = script(open_folder, "counts", COUNTS)
    with Up(open_folder / "data") as up:
        client = up.start()
        quick = submit(client, "quick", code, until=str(done), step_ms=20)
        slow = submit(client, "slow", code, until=str(done), step_ms=900)
        reached = {quick: 0, slow: 0}
        for _ in range(4):
            for job_id, step in list(reached.items()):
                reached[job_id] = trains_on(client, job_id, step)
            assert up.stop(signal.SIGTERM) == 0, up.said()
            client = up.start()
        done.touch()
        for job_id, name in ((quick, "quick"), (slow, "slow")):
            job = client.wait(job_id, timeout_s=60, poll_s=0.1)
            assert (job.status, job.faults) == ("succeeded", 0), story(client, job_id)
            steps = steps_of(client, job_id)
            assert steps == list(range(1, len(steps) + 1)), story(client, job_id)
            assert job.moves >= 4
            assert up.said().count(f"{name} goes on at step ") == 4
        assert up.stop(signal.SIGTERM) == 0, up.said()


def test_no_way_of_ending_blames_a_job_even_one_that_never_saves(open_folder: Path) -> None:
    """The terminal goes away, an impatient second Ctrl-C, SIGKILL of all: each start goes on from what was saved."""
    saver_code, stubborn_code = script(open_folder, "counts", COUNTS), script(open_folder, "stubborn", STUBBORN)
    with Up(open_folder / "data", options=("--save-within", "8")) as up:
        client = up.start()
        saver = submit(client, "saver", saver_code, until="/nowhere", step_ms=20)
        stubborn = submit(client, "stubborn", stubborn_code)
        both = (saver, stubborn)

        for job_id in both:
            trains_on(client, job_id, 0)
        assert up.stop(signal.SIGHUP) == 0, up.said()
        saved = int(up.said().rpartition("saver goes on at step ")[2].split()[0])
        assert "stubborn has saved nothing: it begins again at step 0" in up.said()

        client = up.start()
        assert trains_on(client, saver, saved) > saved
        trains_on(client, stubborn, 0)
        assert up.stop(signal.SIGINT, signal.SIGINT, within_s=30) == 0, up.said()

        client = up.start()
        for job_id in both:
            trains_on(client, job_id, 0)
        assert up.process is not None
        up.process.kill()
        up.process.wait()
        until("the end of every process", lambda: not processes_of(up.data_dir))

        client = up.start()
        went_down = "local went down, and its machine with it"
        until("the loss of its machine to be seen", lambda: went_down in story(client, saver))
        for job_id in both:
            trains_on(client, job_id, 0)
            job = client.get_job(job_id)
            assert job.faults == 0, story(client, job_id)
        steps = steps_of(client, saver)
        assert steps[:saved] == list(range(1, saved + 1))
        assert up.stop(signal.SIGTERM) == 0, up.said()


def test_a_stop_at_any_moment_of_the_start_is_a_stop(tmp_path: Path) -> None:
    """Also in the middle of making the database. Nothing is left running, and the next start succeeds."""
    with Up(tmp_path / "data") as up:
        for after_s in (0.8, 2.0, 3.5):
            up.begin()
            up.waits(after_s)
            # before it has begun with anything, it simply ends
            assert up.stop(signal.SIGTERM) in {0, -signal.SIGTERM}, up.said()
            until("the end of every process", lambda: not processes_of(up.data_dir))
        assert up.start().health(ready=True).status == "ok"
        assert "Traceback" not in up.said()
        assert up.stop(signal.SIGTERM) == 0, up.said()
