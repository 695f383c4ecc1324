"""A final checkpoint waits for no other one: what is under way gives way, and is there should the final one fail."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from allpass.training.noted_file import NotedFile
from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane
from tests.workers.test_checkpoint_pieces import link, newest, small_and_quick
from tests.workers.test_early import PIECE, Leaving, Writing, data_of, hashes, stored
from workers.agent.fetching import Fetcher, fetch_checkpoint
from workers.agent.patience import Halt

__all__ = ["link", "small_and_quick"]  # fixtures

# Pieces are sent in the order of their hashes. The first ones are those that both checkpoints have.
IN_ORDER = sorted(hashes(data_of(1)))
SHARED = IN_ORDER[:2]


def final_data() -> bytes:
    """At the places of the shared pieces what the other checkpoint has."""
    places = [(data_of(1) if sha256 in SHARED else data_of(2), at) for at, sha256 in enumerate(hashes(data_of(1)))]
    return b"".join(data[at * PIECE : (at + 1) * PIECE] for data, at in places)


def begin_periodic(plane: Plane, leaving: Leaving, held: list[str]) -> None:
    """A checkpoint of step 3 is on its way, all of it stored but what is held."""
    plane.held.update(held)
    folder = leaving.folder / "step-3"
    folder.mkdir()
    with NotedFile(folder / "state", len(data_of(1)), PIECE) as file:
        file.write(memoryview(data_of(1)))
    leaving.offer("step-3", 3)
    rest = set(hashes(data_of(1))) - set(held)
    plane.wait(lambda: rest <= set(stored(plane)), "what is not held is stored")


def steps(plane: Plane) -> list[int]:
    return [one.step for one in plane.committed("run_1")]


def begin_final(plane: Plane, leaving: Leaving) -> Writing:
    """The process is asked to save, and has begun: the first pieces are found, and told."""
    leaving.ask()
    writing = Writing(leaving, final_data())
    writing.write(3)
    plane.wait(lambda: any("/coming" in line for line in plane.requests), "the first call")
    return writing


def test_a_final_save_does_not_wait_for_an_upload_that_hangs(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """The store takes some pieces of a periodic checkpoint and no others: the final one is committed meanwhile, what
    they share is not sent again, and the other one never is a checkpoint."""
    leaving = Leaving(link, tmp_path, asked=False)
    held = IN_ORDER[2:]
    begin_periodic(plane, leaving, held)
    begin_final(plane, leaving).end()
    assert "step-7 of step 7 is stored" in leaving.commit("step-7")
    assert steps(plane) == [7]
    assert not set(held) & set(stored(plane))
    assert [stored(plane).count(one) for one in SHARED] == [1, 1]
    fetch_checkpoint(link, newest(plane), tmp_path / "there")
    assert (tmp_path / "there/state").read_bytes() == final_data()
    plane.release.set()
    assert not leaving.fenced.is_set()


@pytest.mark.parametrize("end", ["killed", "unreadable"])
def test_what_gave_way_is_stored_when_the_final_one_is_not(
    plane: Plane, link: Fetcher, tmp_path: Path, end: str
) -> None:
    """The process dies in the middle of its last save, or that cannot be read: the periodic checkpoint, which had been
    given up, is committed after all, and its pieces that were stored are not sent again."""
    leaving = Leaving(link, tmp_path, asked=False)
    begin_periodic(plane, leaving, IN_ORDER[2:])
    writing = begin_final(plane, leaving)
    plane.release.set()
    if end == "killed":
        writing.give_up()
        leaving.leave()
    else:
        writing.end()
        shutil.rmtree(leaving.folder / "step-7")
        leaving.commit("step-7")
    assert steps(plane) == [3]
    assert [stored(plane).count(one) for one in SHARED] == [1, 1]
    fetch_checkpoint(link, newest(plane), tmp_path / "there")
    assert (tmp_path / "there/state").read_bytes() == data_of(1)


def test_an_upload_that_is_nearly_through_does_not_give_way(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """Most of it is stored: it is committed, and the final one after it."""
    leaving = Leaving(link, tmp_path, asked=False)
    begin_periodic(plane, leaving, IN_ORDER[-2:])
    writing = begin_final(plane, leaving)
    plane.release.set()
    plane.wait(lambda: steps(plane) == [3], "the periodic checkpoint")
    writing.end()
    assert "step-7 of step 7 is stored" in leaving.commit("step-7")
    assert steps(plane) == [3, 7]


def test_nothing_comes_after_the_final_one(plane: Plane, link: Fetcher, tmp_path: Path) -> None:
    """An upload that is nearly through, and hangs there, is not waited for either, and is dropped before the final
    checkpoint gives the job to another run: the source is not told that it was fenced."""
    leaving = Leaving(link, tmp_path, asked=False)
    begin_periodic(plane, leaving, IN_ORDER[-2:])
    begin_final(plane, leaving).end()
    assert "step-7 of step 7 is stored" in leaving.commit("step-7")
    plane.epochs["job_1"] = 2
    plane.release.set()
    plane.wait(lambda: set(IN_ORDER[-2:]) <= set(stored(plane)), "the last of the other one")
    assert steps(plane) == [7]
    assert not leaving.fenced.is_set()


SAVING_BESIDE = """
import json, os, pathlib, signal, sys, time
stop = False
def on_term(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, on_term)
checkpoints = pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"])
metrics = open(os.environ["ALLPASS_METRICS_FILE"], "a", buffering=1)
def save(step):
    (checkpoints / f"step-{step}").mkdir()
    (checkpoints / f"step-{step}" / "state").write_text(str(step))
    metrics.write(json.dumps({"step": step, "checkpoint": f"step-{step}"}) + "\\n")
for step in range(1, 6):
    metrics.write(json.dumps({"step": step, "loss": 1.0}) + "\\n")
while not stop:
    time.sleep(0.01)
save(3)
while not (checkpoints.parent / "gate").exists():
    time.sleep(0.01)
if "once" not in sys.argv:
    save(5)
sys.exit(75)
"""


@pytest.mark.parametrize("words", [[], ["once"]], ids=["it saves again", "it leaves"])
def test_a_checkpoint_that_was_overtaken_is_not_the_final_one(
    plane: Plane, start_agent: Callable[..., AgentProcess], words: list[str]
) -> None:
    """A save beside the training ends after the request to stop: it is stored, but the job is given away with the last
    step alone, or when the process has left."""
    run = desired(plane, SAVING_BESIDE, parameters=words)
    plane.want(run)
    agent = start_agent()
    plane.wait_step(run.run_id, 5)
    plane.ask(run.run_id, "checkpoint")
    plane.wait(lambda: plane.committed(run.run_id), "the checkpoint of before")
    (agent.root / "runs" / run.run_id / "gate").touch()
    assert plane.wait_exit(run.run_id).saved_after_stop
    assert [(one.step, one.final) for one in plane.committed(run.run_id)] == [(3, False), (5, True)][: 2 - len(words)]


def test_a_halt_is_set_by_itself_or_with_the_run() -> None:
    """One upload ends, or all of them do."""
    gone = threading.Event()
    one, other = Halt(gone), Halt(gone)
    one.set()
    assert (one.is_set(), other.is_set(), other.wait(0)) == (True, False, False)
    gone.set()
    assert other.is_set()
    assert other.wait()
