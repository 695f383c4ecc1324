"""What cannot be kept of a run: the agent says so at once, in words that say what to do, and goes on."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import PATIENCE_S, TOKEN, Fault, Plane
from workers.agent import files, transfer
from workers.agent.api import Api, Writer
from workers.agent.checkpoints import Uploader
from workers.agent.files import Fence
from workers.agent.patience import Backoff
from workers.agent.transport import Transport
from workers.agent.uploading import Candidate

Start = Callable[..., AgentProcess]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "Backoff", lambda **_: Backoff(0.001, 0.01))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "step-40"
    folder.mkdir()
    (folder / "good").write_bytes(b"weights")
    return folder


@pytest.fixture
def send(plane: Plane, tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """Upload a folder; the reason for which it was refused, or "" when it is stored."""
    plane.epochs["job_1"] = 1
    transport = Transport()
    writer = Writer(run_id="run_1", job_id="job_1", epoch=1)

    def upload(folder: Path) -> str:
        uploader = Uploader(
            Api(plane.url, TOKEN, transport),
            transport,
            writer,
            Fence(tmp_path, None),
            before_commit=lambda: None,
            on_fenced=lambda: None,
            say=lambda _: None,
            gone=threading.Event(),
        )
        uploader.start()
        uploader.offer(Candidate(folder, 40))
        uploader.finish()
        assert [one.step for one in plane.refusals] == [40] * len(plane.refusals)
        return plane.refusals[-1].why if plane.refusals else ""

    yield upload
    transport.close()


def deep(folder: Path, length: int) -> None:
    """A file whose path below `folder` has more characters than any call takes at once."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        for _ in range(length // 101 + 1):
            Path("d" * 100).mkdir()
            os.chdir("d" * 100)
        Path("file").write_bytes(b"x")
    finally:
        os.chdir(before)


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def unix_socket(folder: Path) -> None:
    before = Path.cwd()
    os.chdir(folder)  # its address must be short
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("socket")
    finally:
        os.chdir(before)


def sparse(folder: Path) -> None:
    disk = os.statvfs(folder)
    with (folder / "huge").open("wb") as file:
        file.truncate(2 * disk.f_blocks * disk.f_frsize)


def not_utf8(folder: Path) -> None:
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe"))).write_bytes(b"x")


HOSTILE: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: deep(folder, 5000), "use names in UTF-8|too long"),
    (
        lambda folder: (
            (folder / ("n" * 200)).joinpath("m" * 200, "o" * 200).mkdir(parents=True)
            or (folder / ("n" * 200) / ("m" * 200) / ("o" * 200) / "f").write_bytes(b"x")
        ),
        "of at most 512 characters",
    ),
    (not_utf8, "use names in UTF-8"),
    (lambda folder: (folder / "back\\slash").write_bytes(b"x"), "without backslashes"),
    (fifo, "pipe is not a regular file"),
    (unix_socket, "socket is a socket or a device"),
    (lambda folder: (folder / "loop").symlink_to("loop"), "loop is a link that leads to itself"),
    (lambda folder: (folder / "dangling").symlink_to("nothing"), "dangling was removed while it was read"),
    (lambda folder: (folder / "password").symlink_to("/etc/passwd"), "password leads out of the run's folder"),
    (lambda folder: (folder / "null").symlink_to("/dev/null"), "null is not a regular file"),
    (sparse, "huge .*write it without holes"),
]


@pytest.mark.parametrize(("make", "why"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_cannot_be_stored_is_refused_in_words(
    send: Callable[[Path], str], folder: Path, plane: Plane, make: Callable[[Path], object], why: str
) -> None:
    """It neither hangs nor is left out silently, and no checkpoint is made of the rest."""
    make(folder)
    told = send(folder)
    assert re.search(why, told), told
    assert len(told) < 600
    assert plane.committed("run_1") == []
    assert len(plane.refusals) == 1


@pytest.mark.parametrize("name", ["a\nb", "tab\t", "..hidden", "...", "ü" * 80, "emoji-🚀", "trailing "])
def test_odd_names_are_stored(send: Callable[[Path], str], folder: Path, plane: Plane, name: str) -> None:
    """What every file system takes and every reader can write down."""
    (folder / name).write_bytes(b"odd")
    assert send(folder) == ""
    (stored,) = plane.committed("run_1")
    assert {file.path for file in stored.files} == {"good", name}


def test_a_folder_that_cannot_be_read_is_not_left_out(
    send: Callable[[Path], str], folder: Path, plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a checkpoint is none."""
    (folder / "closed").mkdir()
    scandir = os.scandir

    def guarded(path: str) -> object:
        if str(path).rstrip("/").endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(files.os, "scandir", guarded)
    assert "closed cannot be read: give its owner the right to read it" in send(folder)
    assert plane.committed("run_1") == []


def test_a_folder_that_grows_while_it_is_read_has_an_end(
    send: Callable[[Path], str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most that can be stored is also the most that is looked at."""
    monkeypatch.setattr(files, "MOST_FILES", 50)
    growing, stop = threading.Event(), threading.Event()

    def grow() -> None:
        number = 0
        while not stop.is_set() and number < 20_000:
            (folder / f"new-{number}").write_bytes(b"")
            number += 1
            if number > 60:
                growing.set()

    writer = threading.Thread(target=grow)
    writer.start()
    assert growing.wait(PATIENCE_S)
    try:
        assert "more than 50 files" in send(folder)
    finally:
        stop.set()
        writer.join()


def test_what_the_server_says_is_passed_on(send: Callable[[Path], str], folder: Path, plane: Plane) -> None:
    """In its own words; three tries are enough for what is refused."""
    plane.faults.append(Fault(r"POST .*/checkpoints$", 422, "files: at most 10,000 can be named"))
    assert send(folder) == "files: at most 10,000 can be named"


def test_a_store_without_room_is_waited_for_and_told_once(
    send: Callable[[Path], str], folder: Path, plane: Plane
) -> None:
    """The operator makes room, and the checkpoint is stored: nothing is lost."""
    plane.faults.append(Fault(r"PUT /objects/", 507, "store_full", times=12))
    assert "has no room left for it" in send(folder)
    assert len(plane.refusals) == 1
    assert len(plane.committed("run_1")) == 1


def test_links_that_expire_again_and_again_are_no_refusal(
    send: Callable[[Path], str], folder: Path, plane: Plane
) -> None:
    """Each time something got through before: the upload goes on with new ones, however often."""
    for number in range(40):
        (folder / f"part-{number}").write_bytes(os.urandom(70_000))
    plane.faults += [Fault(r"PUT /objects/[0-7]", 403, "expired", times=9)]
    assert send(folder) == ""
    assert len(plane.committed("run_1")) == 1


def test_an_older_server_that_knows_no_refusals_costs_the_log_line_only(
    send: Callable[[Path], str], folder: Path, plane: Plane
) -> None:
    """404 is an answer."""
    plane.faults.append(Fault(r"POST .*/refusals$", 404, "not_found"))
    fifo(folder)
    assert send(folder) == ""


REFUSED_BY_NAME = """
import json, os, signal, sys, time
from pathlib import Path
metrics = open(os.environ["ALLPASS_METRICS_FILE"], "a", buffering=1)
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
step = 0
while not asked:
    step += 1
    metrics.write(json.dumps({"step": step}) + "\\n")
    if step == 3:
        folder = Path(os.environ["ALLPASS_CHECKPOINT_DIR"], "step-3"); folder.mkdir()
        os.mkfifo(folder / "pipe")
        metrics.write(json.dumps({"step": step, "checkpoint": "step-3"}) + "\\n")
    time.sleep(0.01)
folder = Path(os.environ["ALLPASS_CHECKPOINT_DIR"], "last"); folder.mkdir()
os.mkfifo(folder / "pipe")
metrics.write(json.dumps({"step": step, "checkpoint": "last"}) + "\\n")
sys.exit(75)
"""


def test_a_refusal_is_told_while_the_script_trains_on_and_the_end_is_none_that_saved(
    plane: Plane, start_agent: Start
) -> None:
    """Long before the final one: its owner has every chance to mend it."""
    start_agent()
    run = desired(plane, REFUSED_BY_NAME)
    plane.want(run)
    plane.wait(lambda: plane.refusals, "the first refusal")
    assert plane.told(run.run_id).phase == "running"
    assert (plane.refusals[0].step, plane.refusals[0].why) == (3, "pipe is not a regular file")
    plane.ask(run.run_id, "checkpoint")
    report = plane.wait_exit(run.run_id)
    assert (report.exit_code, report.saved_after_stop) == (75, False)
    assert len(plane.refusals) == 2
