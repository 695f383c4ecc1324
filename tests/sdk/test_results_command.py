"""What the command line says of a job's files: those that it has, those it left behind, and why there are none."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from allpass.cli import main as cli
from allpass.cli import screen, tensorboard
from allpass.cli.tensorboard import is_event_file
from tests.sdk.fake_service import KEY, FakeService, served

DATA = {"path": "data/cache", "size_bytes": 12_000_000_000, "files": 40, "why": "over the limit of 10.0 GB"}
PIPE = {"path": "pipe", "size_bytes": 0, "files": 1, "why": "is not a regular file"}
NONE = {"files": 0, "size_bytes": 0, "left": [], "left_files": 0, "left_bytes": 0}
STARTED = "2030-01-01T00:00:00Z"


@pytest.fixture
def live(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """A served service that the environment points to, and a folder of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text("print(1)")
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "is_interactive", lambda *_: True)


def call(*words: str) -> Any:
    return CliRunner().invoke(cli.app, list(words))


def finished(*words: str) -> str:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_tells_what_is_kept_and_what_is_not(live: FakeService) -> None:
    """And how to keep what was too large."""
    left = {"left": [DATA, PIPE], "left_files": 41, "left_bytes": 12_000_000_000}
    job = live.add_job(status="succeeded", results={"files": 3, "size_bytes": 2_500_000, **left})
    printed = finished("show", job["id"])
    assert f"  results       3 files, 2.5 MB   (allpass download {job['id']})\n" in printed
    assert "  left behind   data/cache, 12.0 GB in 40 files (over the limit of 10.0 GB)\n" in printed
    assert "  left behind   pipe, 0 B (is not a regular file)\n" in printed
    assert "  left behind   keep it with: allpass run ... --keep . --keep data/cache\n" in printed
    assert "results" not in finished("show", live.add_job(status="succeeded", results=NONE)["id"])


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (
            {"status": "queued", "message": "no offer"},
            "no files: the job has not begun to run; it is queued (no offer)",
        ),
        ({"status": "running", "started_at": STARTED, "results": NONE}, "no files yet: what the script writes"),
        (
            {"status": "succeeded", "started_at": STARTED, "ended_at": STARTED, "results": NONE},
            "no files: the script wrote none to its working folder, and none to ALLPASS_OUTPUT_DIR",
        ),
        (
            {"status": "cancelled", "started_at": STARTED, "ended_at": STARTED, "results": {**NONE, "left": None}},
            "no files: its machine was gone before anything that it wrote was kept",
        ),
        (
            {"status": "failed", "started_at": STARTED, "ended_at": STARTED, "results": {**NONE, "left": [PIPE]}},
            "no files are kept. Left behind:\n  pipe, 0 B (is not a regular file)",
        ),
    ],
)
def test_download_says_why_there_is_nothing(live: FakeService, job: dict[str, Any], why: str) -> None:
    added = live.add_job(**{"started_at": None, "ended_at": None, **job})
    assert finished("download", added["id"]).startswith(why)


def test_download_fetches_with_paths_and_only_what_is_asked_for(live: FakeService) -> None:
    """A folder or a file; a name that begins alike is another one; what is not there is said."""
    job = live.add_job(status="succeeded", started_at=STARTED, results={**NONE, "files": 3})
    for path in ("out/final/model", "out/final2/model", "notes"):
        live.add_artifact(job["id"], path, path.encode())
    finished("download", job["id"], "a", "--only", "out/final/")
    assert [str(path) for path in Path("a").rglob("*") if path.is_file()] == ["a/out/final/model"]
    finished("download", job["id"], "b", "--only", "out", "--only", "notes")
    assert sum(path.is_file() for path in Path("b").rglob("*")) == 3
    assert finished("download", job["id"], "c", "--only", "ou") == "none of the job's 3 files is at or below ou\n"


def test_run_takes_paths_to_keep(live: FakeService) -> None:
    """In the job's template, as the service gets it, beside those of the file."""
    Path("t.json").write_text('{"outputs": ["runs/"]}')
    finished("run", "train.py", "-t", "t.json", "--keep", "./out/final/", "--keep", ".")
    (job,) = live.jobs.values()
    assert job["template"]["outputs"] == ["runs", "out/final", "."]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../data", "it leads out of it; name a folder that is in it, e.g. out/final"),
        ("/tmp/out", "write it as the script sees it from there, e.g. out/final"),
        ("~/out", "write it as the script sees it from there, e.g. out/final"),
        ("out/*.bin", "'out/*.bin' is a pattern: name the folder that the files are in, e.g. out/final"),
        ("a\\b", "leave line breaks, control characters and backslashes out"),
        ("a\nb", "leave line breaks, control characters and backslashes out"),
    ],
)
def test_a_path_that_cannot_be_kept_is_refused_before_anything_is_sent(live: FakeService, path: str, why: str) -> None:
    """With the field, the value and the mend."""
    result = call("run", "train.py", "--keep", path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --keep: {path!r} is ")
    assert why in " ".join(result.stderr.split())
    assert not live.jobs
    assert not live.objects


# What is empty, and the log


@pytest.mark.parametrize(
    ("job", "metrics", "checkpoints"),
    [
        ({"status": "queued", "message": "no offer"}, "no metrics: the job has not begun", "(no offer)"),
        ({"status": "cancelled", "ended_at": STARTED}, "no metrics: the job never began to run", "never began"),
        ({"status": "running", "started_at": STARTED}, "nothing was reported yet", "no checkpoint yet"),
        ({"status": "succeeded", "started_at": STARTED, "ended_at": STARTED}, "nothing was reported. ", "saved none"),
        ({"status": "running", "started_at": STARTED, "unsaved": "a pipe"}, "nothing", "no checkpoint is kept: a pipe"),
    ],
)
def test_empty_lists_say_why(
    live: FakeService, at_a_terminal: None, job: dict[str, Any], metrics: str, checkpoints: str
) -> None:
    added = live.add_job(**{"started_at": None, "ended_at": None, **job})
    live.checkpoint_steps = ()
    assert metrics in call("metrics", added["id"]).stderr
    assert checkpoints in call("checkpoints", added["id"]).stderr


def test_a_metric_that_was_not_reported_is_named(live: FakeService, at_a_terminal: None) -> None:
    job = live.add_job(status="running", started_at=STARTED)
    live.metrics[job["id"]] = [{"step": 1, "at": STARTED, "values": {"loss": 0.5}}]
    assert call("metrics", job["id"], "-m", "lsos").stderr == "no such metric was reported: lsos\n"


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_following_a_log_ends_as_its_job_does(live: FakeService, status: str, code: int) -> None:
    """The whole log is there; reading it without following is no judgement."""
    job = live.add_job(status=status, message="exit code 3", ended_at=STARTED)
    live.logs[job["id"]] = ["one\n", "two\n"]
    result = call("logs", "-f", job["id"])
    assert (result.stdout, result.exit_code) == ("one\ntwo\n", code)
    assert ("exit code 3" in result.stderr) is (code == 1)
    assert call("logs", job["id"]).exit_code == 0


def test_a_log_is_searched(live: FakeService) -> None:
    """Lines with their numbers, over pages; nothing found is exit code 1, as of grep."""
    job = live.add_job(status="running")
    live.logs[job["id"]] = [f"step {number}\nloss {number}\n" for number in range(5)] + ["CUDA out of memory\n"]
    printed = "".join(f"{2 * number + 2}: loss {number}\n" for number in range(5))
    assert finished("logs", job["id"], "--grep", "loss") == printed
    assert finished("logs", job["id"], "--grep", "cuda", "-i") == "11: CUDA out of memory\n"
    assert [
        json.loads(line)["line"] for line in finished("logs", job["id"], "--grep", "s 3", "--json").splitlines()
    ] == [8]
    missing = call("logs", job["id"], "--grep", "cuda")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert call("logs", "-f", job["id"], "--grep", "x").exit_code == 2


# TensorBoard


STAND_IN = """#!{python}
import pathlib, sys, time
place = pathlib.Path({told!r})
place.write_text(" ".join(sys.argv[1:]))
until = time.monotonic() + 120
while not place.with_name("end").exists() and time.monotonic() < until:
    time.sleep(0.01)
sys.exit(int(place.with_name("end").read_text()))
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `tensorboard` in the path that writes its arguments here, and ends with the code that is written to `end`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    told = tmp_path / "told"
    program = folder / "tensorboard"
    program.write_text(STAND_IN.format(python=sys.executable, told=str(told)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(tensorboard.sys, "executable", str(tmp_path / "elsewhere/python"))
    return told


def ends(stand_in: Path, code: int) -> None:
    """It looks all the time: the file is there when it is whole."""
    draft = stand_in.with_name("draft")
    draft.write_text(str(code))
    draft.rename(stand_in.with_name("end"))


def wait_for(look: Any) -> None:
    until = time.monotonic() + 60
    while not look():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_tensorboard_shows_event_files_and_those_that_come_later(
    live: FakeService, tmp_path: Path, stand_in: Path
) -> None:
    """Of the jobs that are named, each in a folder of its own; models stay where they are."""
    one, two = (live.add_job(status="running", started_at=STARTED, ended_at=None, results=NONE) for _ in range(2))
    live.add_artifact(one["id"], "runs/a/events.out.tfevents.1", b"first")
    live.add_artifact(one["id"], "out/model", b"large")
    results: list[Any] = []
    words = ["tensorboard", one["id"], two["id"], "--port", "6007", "--every", "1"]
    thread = threading.Thread(target=lambda: results.append(call(*words)))
    thread.start()
    wait_for(stand_in.exists)
    live.add_artifact(two["id"], "lightning_logs/version_0/events.out.tfevents.2", b"second")
    cache = tmp_path / "cache/allpass/tensorboard"
    wait_for(lambda: len([path for path in cache.rglob("*") if path.is_file()]) == 2)
    ends(stand_in, 0)
    thread.join()
    assert results[0].exit_code == 0, results[0].output
    (shown,) = cache.iterdir()
    assert stand_in.read_text() == f"--logdir {shown} --port 6007"
    assert (shown / one["id"] / "runs/a/events.out.tfevents.1").read_bytes() == b"first"
    assert (shown / two["id"] / "lightning_logs/version_0/events.out.tfevents.2").read_bytes() == b"second"


def test_a_tensorboard_that_fails_is_told(live: FakeService, stand_in: Path) -> None:
    job = live.add_job(status="succeeded", started_at=STARTED, ended_at=STARTED, results=NONE)
    ends(stand_in, 3)
    result = call("tensorboard", job["id"])
    assert result.exit_code == 1
    assert "tensorboard ended with exit code 3" in result.stderr


def test_without_tensorboard_the_one_line_that_installs_it_is_told(
    live: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is fetched."""
    job = live.add_job(status="running")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tensorboard.sys, "executable", str(tmp_path / "elsewhere/python"))
    result = call("tensorboard", job["id"])
    assert result.exit_code == 1
    assert "tensorboard is not installed here" in result.stderr
    assert "pip install tensorboard" in result.stderr


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("events.out.tfevents.1", True),
        ("output/runs/Nov22/events.out.tfevents.1.host.2.0", True),
        ("out/model.bin", False),
        ("tfevents/model.bin", False),
    ],
)
def test_event_files_are_known_by_their_names(path: str, is_one: bool) -> None:
    assert is_event_file(path) is is_one
