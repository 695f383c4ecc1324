"""Pieces of a checkpoint that travel before it is complete: sent while it is written, fetched while it is sent."""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allpass.training.noted_file import NotedFile
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Fault, Plane, pieces_of
from tests.workers.test_checkpoint_pieces import content_of, fill, link, newest, small_and_quick
from tests.workers.test_standby import prepared, promote
from workers.agent import early, fetching
from workers.agent.arriving import Arriving
from workers.agent.checkpoints import Uploader
from workers.agent.early import Early
from workers.agent.fetching import Fetcher, LocalPieces, Staged, fetch_checkpoint
from workers.agent.files import Fence
from workers.agent.uploading import Candidate

__all__ = ["link", "small_and_quick"]  # fixtures

Start = Callable[..., AgentProcess]
PIECE = 8 * 1024
COUNT = 12
SIZE = COUNT * PIECE - 100


class Leaving:
    """A source that was asked to save, or will be: an uploader that sends early."""

    def __init__(self, link: Fetcher, root: Path, *, asked: bool = True) -> None:
        self.said: list[str] = []
        self.fenced = threading.Event()
        self.folder = root / "checkpoints"
        self.folder.mkdir(exist_ok=True)
        fence = Fence(root, None)
        self._uploader = Uploader(
            link.api,
            link.transport,
            link.writer,
            fence,
            before_commit=lambda: None,
            on_fenced=self.fenced.set,
            say=self.said.append,
            gone=link.gone,
        )
        self._uploader.start()
        self._link, self._fence = link, fence
        if asked:
            self.ask()

    def ask(self) -> None:
        link = self._link
        sending = Early(link.api, link.transport, link.writer, self._fence, self.folder, lambda: 7, link.gone)
        self._uploader.send_early(sending)

    def offer(self, name: str, step: int) -> None:
        """A checkpoint of before."""
        self._uploader.offer(Candidate(self.folder / name, step))

    def commit(self, name: str) -> str:
        """The folder is complete: what was said of it in the end."""
        self._uploader.offer(Candidate(self.folder / name, 7, after_stop=True))
        self._uploader.finish()
        return self.said[-1] if self.said else ""

    def leave(self) -> None:
        self._uploader.finish()


class Writing:
    """A checkpoint that is written piece by piece into a hidden folder, and then appears."""

    def __init__(self, leaving: Leaving, data: bytes) -> None:
        self._hidden = leaving.folder / ".partial-step-7"
        self._hidden.mkdir()
        self._data = memoryview(data)
        self._file = NotedFile(self._hidden / "state", len(data), PIECE)

    def write(self, pieces: int) -> None:
        self._file.write(self._data[: pieces * PIECE])
        self._data = self._data[pieces * PIECE :]

    def give_up(self) -> None:
        self._file.__exit__(OSError, OSError(), None)

    def end(self) -> None:
        self._file.write(self._data)
        self._file.__exit__(None, None, None)
        (self._hidden / "state.json").write_text("{}")
        self._hidden.rename(self._hidden.with_name("step-7"))


def data_of(seed: int) -> bytes:
    return random.Random(seed).randbytes(SIZE)


def stored(plane: Plane) -> list[str]:
    return [line.partition("/objects/")[2].partition("?")[0] for line in plane.stored_lines]


def hashes(data: bytes) -> list[str]:
    return [hashlib.sha256(data[at : at + PIECE]).hexdigest() for at in range(0, len(data), PIECE)]


def fetched(plane: Plane) -> list[str]:
    return list(plane.read)


def test_pieces_are_stored_while_the_rest_is_written(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """Half of a file is in the store, and told, before the other half exists; no piece is sent a second time, and the
    checkpoint that is committed is the whole one."""
    data = data_of(1)
    leaving = Leaving(link, tmp_path)
    writing = Writing(leaving, data)
    writing.write(6)
    plane.wait(lambda: len(plane.coming.get("run_1", {})) == 6, "six pieces stored and told")
    assert set(stored(plane)) == set(hashes(data)[:6])
    assert not plane.checkpoints, "half a checkpoint is none"
    writing.end()
    assert leaving.commit("step-7") == f"checkpoint step-7 of step 7 is stored (2 files, {SIZE + 2:,} bytes)"
    assert len(stored(plane)) == len(set(stored(plane))) == COUNT + 1
    fetch_checkpoint(link, newest(plane), tmp_path / "there")
    assert content_of(tmp_path / "there") == {"state": data, "state.json": b"{}"}


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("PUT ", 0, times=4)],
        [Fault("POST .*/coming$", 0, times=1)],
        [Fault("POST .*/coming$", 503, times=2), Fault("PUT ", 503, times=2)],
        [Fault("POST .*/coming$", 404)],
        [Fault("PUT ", 403, times=3)],
    ],
    ids=["lost pieces", "a lost answer", "a server that starts again", "an older server", "expired links"],
)
def test_what_does_not_get_through_early_is_sent_at_the_end(
    plane: Plane, link: Fetcher, tmp_path: Path, faults: list[Fault]
) -> None:
    """Whatever fails on the way, it costs time alone."""
    data = data_of(2)
    plane.faults += [Fault(one.pattern, one.status, times=one.times) for one in faults]
    leaving = Leaving(link, tmp_path)
    writing = Writing(leaving, data)
    writing.write(6)
    plane.wait(lambda: any("/coming" in line for line in plane.requests), "the first call")
    writing.end()
    assert "is stored" in leaving.commit("step-7")
    assert len(stored(plane)) == len(set(stored(plane))) == COUNT + 1
    fetch_checkpoint(link, newest(plane), tmp_path / "there")
    assert (tmp_path / "there/state").read_bytes() == data


def test_a_save_that_is_given_up_leaves_nothing_but_pieces(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """The folder vanishes in the middle and the process ends: no checkpoint, and the agent is not held up."""
    leaving = Leaving(link, tmp_path)
    writing = Writing(leaving, data_of(3))
    writing.write(4)
    plane.wait(lambda: len(plane.coming.get("run_1", {})) == 4, "four pieces")
    shutil.rmtree(leaving.folder)
    leaving.leave()
    writing.give_up()
    assert plane.checkpoints == {}
    assert leaving.said == []


def test_a_source_that_is_fenced_in_the_middle_commits_nothing(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """Another run holds the job's epoch: the next call is refused, and the process is told to go."""
    leaving = Leaving(link, tmp_path)
    writing = Writing(leaving, data_of(4))
    writing.write(4)
    plane.wait(lambda: len(plane.coming.get("run_1", {})) == 4, "four pieces")
    plane.epochs["job_1"] = 2
    writing.end()
    leaving.commit("step-7")
    assert leaving.fenced.is_set()
    assert plane.checkpoints == {}
    assert len(plane.coming["run_1"]) == 4


def test_what_was_saved_before_the_stop_is_not_sent_early(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """Only the final checkpoint hurries."""
    old = tmp_path / "checkpoints/step-3"
    old.mkdir(parents=True)
    with NotedFile(old / "state", SIZE, PIECE) as file:
        file.write(memoryview(data_of(5)))
    leaving = Leaving(link, tmp_path)
    writing = Writing(leaving, data_of(6))
    writing.write(2)
    plane.wait(lambda: len(plane.coming.get("run_1", {})) == 2, "two pieces")
    writing.end()
    leaving.commit("step-7")
    assert not set(stored(plane)) & set(hashes(data_of(5)))


def test_a_file_without_a_note_is_told_while_it_is_sent(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """It is cut and hashed when it is complete; what is stored of it is told while many pieces are still on their
    way."""
    first, last = sorted(hashes(data_of(7)))[:6], sorted(hashes(data_of(7)))[6:]
    plane.held.update(last)
    leaving = Leaving(link, tmp_path)
    fill(leaving.folder / "step-7", {"state": data_of(7)})
    committing = threading.Thread(target=leaving.commit, args=("step-7",))
    committing.start()
    plane.wait(lambda: {span.sha256 for span in plane.coming.get("run_1", {}).values()} == set(first), "six told")
    assert plane.committed("run_1") == []
    plane.release.set()
    committing.join()
    assert pieces_of(plane.committed("run_1")[-1].files) == {*first, *last}


def test_few_calls_tell_of_many_pieces(
    plane: Plane, link: Fetcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is slower than the writer: what was found meanwhile is told at once, and all is sent."""
    monkeypatch.setattr(early, "CALL_S", 60.0)  # however slow this machine is, none comes for its time alone
    plane.held.update(hashes(data_of(12))[:1])
    leaving = Leaving(link, tmp_path)
    writing = Writing(leaving, data_of(12))
    writing.write(1)
    plane.wait(lambda: any("PUT " in line for line in plane.requests), "the first piece on its way")
    writing.end()
    plane.release.set()
    assert "is stored" in leaving.commit("step-7")
    assert sum("/coming" in line for line in plane.requests) < COUNT // 2
    assert len(stored(plane)) == len(set(stored(plane))) == COUNT + 1


def arrived(link: Fetcher, plane: Plane, folder: Path, shelf: LocalPieces | None = None) -> Staged:
    arriving = Arriving(link, folder, shelf or LocalPieces())
    arriving.start()
    told = [span.model_dump(mode="json") for span in plane.coming["run_1"].values()]
    before = len(plane.read)
    arriving.tell(told)
    lacking = {span["sha256"] for span in told} - (shelf.held() if shelf else set())
    plane.wait(lambda: lacking <= set(plane.read[before:]), "what was told is fetched")
    return arriving.finish()


def test_what_came_early_is_not_fetched_again(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """Half of the file is in its place when the checkpoint is committed: the other half is fetched, and the file is
    what it was."""
    data = data_of(8)
    leaving = Leaving(link, tmp_path)
    writing = Writing(leaving, data)
    writing.write(6)
    plane.wait(lambda: len(plane.coming.get("run_1", {})) == 6, "six pieces")
    staged = arrived(link, plane, tmp_path / "coming")
    writing.end()
    leaving.commit("step-7")
    before = len(fetched(plane))
    fetch_checkpoint(link, newest(plane), tmp_path / "there", LocalPieces(), staged)
    assert content_of(tmp_path / "there") == {"state": data, "state.json": b"{}"}
    assert sorted(fetched(plane)[:before]) == sorted(hashes(data)[:6])
    assert not set(fetched(plane)[before:]) & set(hashes(data)[:6])


@pytest.mark.parametrize("change", ["other bytes", "another size", "another name"])
def test_what_came_of_another_checkpoint_is_left_aside(
    plane: Plane, link: Fetcher, tmp_path: Path, change: str
) -> None:
    """The committed one counts: what differs from what was told is fetched."""
    leaving = Leaving(link, tmp_path)
    writing = Writing(leaving, data_of(9))
    writing.write(COUNT)
    plane.wait(lambda: len(plane.coming.get("run_1", {})) == COUNT, "all pieces")
    staged = arrived(link, plane, tmp_path / "coming")
    writing.end()
    other = bytearray(data_of(9))
    if change == "other bytes":
        other[PIECE * 3] ^= 1
    elif change == "another size":
        other += b"more"
    name = "elsewhere" if change == "another name" else "state"
    shutil.rmtree(leaving.folder / "step-7")
    fill(leaving.folder / "step-7", {name: bytes(other)})
    leaving.commit("step-7")
    fetch_checkpoint(link, newest(plane), tmp_path / "there", LocalPieces(), staged)
    assert content_of(tmp_path / "there") == {name: bytes(other)}


def test_a_piece_that_never_arrives_is_fetched_at_the_end(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """The store does not give it at first: standing by goes on, and nothing wrong is believed."""
    data = data_of(10)
    leaving = Leaving(link, tmp_path)
    writing = Writing(leaving, data)
    writing.write(3)
    plane.wait(lambda: len(plane.coming.get("run_1", {})) == 3, "three pieces")
    gone = hashes(data)[1]
    plane.faults.append(Fault(f"GET /objects/{gone}", 404, times=fetching.FAULTS_ALLOWED))
    staged = arrived(link, plane, tmp_path / "coming")
    writing.end()
    leaving.commit("step-7")
    fetch_checkpoint(link, newest(plane), tmp_path / "there", LocalPieces(), staged)
    assert (tmp_path / "there/state").read_bytes() == data


def test_names_that_lead_out_are_not_laid_out(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """Whatever the server says."""
    told: dict[str, Any] = {
        "path": "../out", "file_bytes": 10, "offset": 0, "sha256": plane.put(b"x" * 10), "size_bytes": 10, "start": 0,
        "length": 10,
    }  # fmt: skip
    arriving = Arriving(link, tmp_path / "coming", LocalPieces())
    arriving.start()
    arriving.tell([told])
    arriving.finish()
    assert not (tmp_path / "out").exists()


NOTED_TRAINING = """
import json, os, pathlib, random, signal, sys, time
from allpass.training.noted_file import NotedFile
stop = False
def on_term(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, on_term)
checkpoints = pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"])
metrics = open(os.environ["ALLPASS_METRICS_FILE"], "a", buffering=1)
if "ALLPASS_RESUME_DIR" in os.environ:
    state = pathlib.Path(os.environ["ALLPASS_RESUME_DIR"], "state").read_bytes()
    pathlib.Path(os.environ["ALLPASS_OUTPUT_DIR"], "result").write_bytes(state)
    sys.exit(0)
step = 0
while not stop:
    step += 1
    metrics.write(json.dumps({"step": step, "loss": 1.0}) + "\\n")
    time.sleep(0.01)
hidden = checkpoints / ".partial"
hidden.mkdir()
data = random.Random(1).randbytes(40 * 65536 + 17)
gate = checkpoints.parent / "gate"
with NotedFile(hidden / "state", len(data), 65536) as file:
    file.write(memoryview(data)[: 20 * 65536])
    while not gate.exists():
        time.sleep(0.01)
    file.write(memoryview(data)[20 * 65536 :])
hidden.rename(checkpoints / "final")
metrics.write(json.dumps({"step": step, "checkpoint": "final", "loss": 1.0}) + "\\n")
sys.exit(75)
"""


def test_a_job_moves_while_its_checkpoint_is_still_being_written(plane: Plane, start_agent: Start) -> None:
    """The target has much of it before the source has written the other half, and begins with all of it.

    Not all that is written: what does not get through at once, on a machine that stalls, is sent when it is complete.
    """
    source = desired(plane, NOTED_TRAINING, parameters={})
    plane.want(source)
    agent = start_agent()
    plane.wait_step(source.run_id, 1)
    target = desired(plane, NOTED_TRAINING, epoch=3, want="standby", parameters={})
    plane.want(target)
    prepared(plane, target)
    plane.ask(source.run_id, "checkpoint")
    plane.wait(lambda: len(set(plane.read) & {one.sha256 for one in spans(plane, source.run_id)}) >= 10, "much of it")
    assert not plane.checkpoints
    (agent.root / "runs" / source.run_id / "gate").touch()
    assert plane.wait_exit(source.run_id).saved_after_stop
    final = plane.committed(source.run_id)[-1]
    promote(plane, target, resume=plane.resume_from(final))
    assert plane.wait_exit(target.run_id).exit_code == 0
    data = random.Random(1).randbytes(40 * 65536 + 17)
    assert plane.objects[plane.artifacts[target.run_id]["result"]] == data
    pieces = pieces_of(final.files)
    assert {plane.read.count(one) for one in pieces} == {1}, "what had come was fetched again"
    assert len(stored(plane)) == len(set(stored(plane)))


def test_a_target_that_is_called_off_leaves_nothing_of_what_came(plane: Plane, start_agent: Start) -> None:
    """It dies with half a checkpoint: the source saves and leaves as if nobody had waited."""
    source = desired(plane, NOTED_TRAINING, parameters={})
    plane.want(source)
    agent = start_agent()
    plane.wait_step(source.run_id, 1)
    target = desired(plane, NOTED_TRAINING, epoch=3, want="standby", parameters={})
    plane.want(target)
    prepared(plane, target)
    plane.ask(source.run_id, "checkpoint")
    plane.wait(lambda: set(plane.read) & {one.sha256 for one in spans(plane, source.run_id)}, "some of it")
    plane.unlist(target.run_id)
    plane.wait(lambda: not (agent.root / "spool" / target.run_id).exists(), "removal of what the target had")
    (agent.root / "runs" / source.run_id / "gate").touch()
    assert plane.wait_exit(source.run_id).saved_after_stop
    assert plane.committed(source.run_id)


def spans(plane: Plane, run_id: str) -> list[Any]:
    return list(plane.coming.get(run_id, {}).values())
