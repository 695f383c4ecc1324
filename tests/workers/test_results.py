"""What a script that knows nothing of Allpass leaves in its working folder is kept, however it ends."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from allpass.wire.agent import ArtifactReport
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import TOKEN, Fault, Plane
from workers.agent import keeping, results
from workers.agent.api import Api, Writer
from workers.agent.files import Fence
from workers.agent.keeping import Keeper
from workers.agent.machine import Machine
from workers.agent.outputs_kept import OutputCollector
from workers.agent.results import LeftOut, Mark, ResultLimits, choose, find, gathered, size
from workers.agent.storing import File, Storing, Until
from workers.agent.transfers import Transfers
from workers.agent.transport import Transport
from workers.agent.workspace import Workspace

Start = Callable[..., AgentProcess]
KEEP = {"most_bytes": 1_000_000, "named_bytes": 3_000_000, "every_s": 30.0}
OFTEN = {**KEEP, "every_s": 0.05}
ORDINARY = """
import os, pathlib
def put(path, size):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
put("out/final/model.safetensors", 1000)
put("out/final/config.json", 10)
put("runs/Nov22/events.out.tfevents.1", 100)
put("wandb/run-1/files/output.log", 20)
put("__pycache__/train.pyc", 5)
put(".git/objects/aa", 5)
put("node_modules/a/index.js", 5)
put("env/bin/python", 5); put("env/pyvenv.cfg", 5)
put("hf/hub/models--gpt2/blobs/1", 5)
put("cache/tagged/x", 5); put("cache/tagged/CACHEDIR.TAG", 5)
put("notes.txt", 7); put(".env", 7)
pathlib.Path("config.yaml").write_text("changed")
print("done")
"""
WAIT = """
while not (pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"]) / "end").exists():
    time.sleep(0.01)
"""


WRITER = Writer(run_id="run_1", job_id="job_1", epoch=1)


@pytest.fixture
def machine(plane: Plane) -> Iterator[Machine]:
    """As much of one as results need."""
    transport = Transport()
    yield cast(Machine, SimpleNamespace(api=Api(plane.url, TOKEN, transport), transport=transport))
    transport.close()


def paths(plane: Plane, run_id: str) -> list[str]:
    return sorted(plane.artifacts.get(run_id, {}))


def left_of(plane: Plane, run_id: str) -> dict[str, tuple[int, int, str]]:
    return {one.path: (one.size_bytes, one.files, one.why) for one in plane.results[run_id].left}


def final(plane: Plane, run_id: str) -> ArtifactReport:
    report = plane.results[run_id]
    assert report.final
    return report


def test_new_and_changed_files_of_the_working_folder_are_kept(plane: Plane, start_agent: Start) -> None:
    """Without caches, environments, version control and the code itself; the log tells how many."""
    bundle = tar_gz({"train.py": ORDINARY, "config.yaml": "as it was", "data/train.jsonl": "{}"})
    run = desired(plane, bundle, keep=KEEP)
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert paths(plane, run.run_id) == [
        "config.yaml",
        "notes.txt",
        "out/final/config.json",
        "out/final/model.safetensors",
        "runs/Nov22/events.out.tfevents.1",
        "wandb/run-1/files/output.log",
    ]
    assert len(plane.objects[plane.artifacts[run.run_id]["out/final/model.safetensors"]]) == 1000
    assert (final(plane, run.run_id).left, final(plane, run.run_id).left_files) == ([], 0)
    plane.wait(lambda: "6 output files are stored" in plane.log(run.run_id), "the log")


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", None), ("1/0", 1)])
def test_a_run_that_fails_keeps_what_it_wrote(plane: Plane, start_agent: Start, end: str, code: int | None) -> None:
    """Its end is what it was."""
    script = f"""
import os, pathlib, sys
pathlib.Path("half.bin").write_bytes(b"half")
pathlib.Path(os.environ["ALLPASS_OUTPUT_DIR"], "declared.bin").write_bytes(b"whole")
{end}
"""
    run = desired(plane, script, keep=KEEP)
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == code
    assert paths(plane, run.run_id) == ["declared.bin", "half.bin"]


def test_a_server_of_an_older_release_gets_the_output_folder_of_a_run_that_succeeded(
    plane: Plane, start_agent: Start
) -> None:
    """And nothing that it does not know."""
    script = (
        'import os, pathlib; pathlib.Path("a").touch(); pathlib.Path(os.environ["ALLPASS_OUTPUT_DIR"], "b").touch()'
    )
    run = desired(plane, script)
    plane.want(run)
    start_agent()
    plane.wait_exit(run.run_id)
    assert paths(plane, run.run_id) == ["b"]
    assert not plane.results[run.run_id].joins


def test_what_is_named_is_kept_whole_and_all_else_is_told(plane: Plane, start_agent: Start) -> None:
    """Caches in it too, and files of the code; what is named and not there is told as well."""
    bundle = tar_gz({"train.py": ORDINARY, "out/final/README.md": "of the code"})
    template = {"outputs": ["out/final", "hf/hub", "notes.txt", "out/fianl"]}
    run = desired(plane, bundle, keep=KEEP, template=template)
    plane.want(run)
    start_agent()
    plane.wait_exit(run.run_id)
    assert paths(plane, run.run_id) == [
        "hf/hub/models--gpt2/blobs/1",
        "notes.txt",
        "out/final/README.md",
        "out/final/config.json",
        "out/final/model.safetensors",
    ]
    assert left_of(plane, run.run_id) == {
        "runs/Nov22/events.out.tfevents.1": (100, 1, "is not named (--keep)"),
        "wandb/run-1/files/output.log": (20, 1, "is not named (--keep)"),
        "config.yaml": (7, 1, "is not named (--keep)"),
        "out/fianl": (0, 0, "is named, and there is no such file or folder"),
    }


def test_what_is_too_much_is_left_behind_as_a_whole_and_told(plane: Plane, start_agent: Start) -> None:
    """The model is kept; the data are told by their folder, with size and number of files."""
    script = ORDINARY + "for n in range(7): put(f'data/cache/{n % 3}/{n}.arrow', 300_000)\n"
    run = desired(plane, script, keep=KEEP)
    plane.want(run)
    start_agent()
    plane.wait_exit(run.run_id)
    assert "out/final/model.safetensors" in paths(plane, run.run_id)
    told = final(plane, run.run_id)
    assert (told.left_bytes, told.left_files) == (1_200_000, 4)
    assert {one.why for one in told.left} == {"over the limit of 1.0 MB"}
    plane.wait(lambda: "left behind: data/cache/" in plane.log(run.run_id), "the log")
    named = desired(plane, script, keep=KEEP, template={"outputs": [".", "data/cache"]}, job_id="job_2")
    plane.want(named)
    plane.wait_exit(named.run_id)
    assert len(paths(plane, named.run_id)) == 6 + 7
    assert final(plane, named.run_id).left == []


def test_hostile_folders_cost_what_is_hostile_in_them(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """Links out, pipes, sockets, names that nobody can write down, a terabyte of holes: the rest is kept."""
    (tmp_path / "secret").write_text("of the host")
    script = f"""
import os, pathlib, socket
pathlib.Path("good").write_text("good")
os.link("good", "again")
os.symlink("good", "beside")
os.symlink({str(tmp_path / "secret")!r}, "stolen")
os.symlink("/etc", "etc")
os.symlink("nowhere", "dangling")
os.symlink("loop", "loop")
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("sock")
open(b"caf\\xe9", "w").write("x")
open("back\\\\slash", "w").write("x")
open("two\\nlines", "w").write("x")
os.makedirs("deep/" * 4)
os.symlink("..", "deep/up")
with open("holes", "wb") as file: file.truncate(1 << 40)
"""
    run = desired(plane, script, keep=KEEP)
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert paths(plane, run.run_id) == ["again", "beside", "good", "two\nlines"]
    assert "of the host" not in {data.decode("utf-8", "replace") for data in plane.objects.values()}
    left = left_of(plane, run.run_id)
    assert {path: why for path, (_, _, why) in left.items()} == {
        "stolen": "is a link that leads out of the run's folder",
        "etc": "is a link that leads out of the run's folder",
        "pipe": "is not a regular file",
        "sock": "is not a regular file",
        "'caf\\udce9'": "has a name that is not UTF-8",
        "back\\slash": "has a backslash in its name",
        "holes": "is larger than 5.4 GB, the most that one file may have: save it in several",
    }
    assert left["holes"][0] == 1 << 40


@pytest.mark.parametrize(
    "deed",
    ["shutil.rmtree(here)", "os.rename(here, here + '-old')", "shutil.rmtree(here); os.symlink('/etc', here)"],
)
def test_a_script_that_takes_its_folder_away_leaves_nothing(plane: Plane, start_agent: Start, deed: str) -> None:
    """And nothing of the host is taken in its place."""
    script = f"import os, shutil; here = os.getcwd(); {deed}; print('gone')"
    run = desired(plane, script, keep=KEEP)
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert paths(plane, run.run_id) == []
    assert final(plane, run.run_id).left == []


def test_the_output_folder_goes_before_the_working_folder(plane: Plane, start_agent: Start) -> None:
    """Where both have a file of the same name, or one has a folder of it, the other one is told."""
    script = """
import os, pathlib
out = pathlib.Path(os.environ["ALLPASS_OUTPUT_DIR"])
(out / "model.bin").write_text("declared"); (out / "log").write_text("file"); (out / "b").mkdir(); (out / "b/c").touch()
pathlib.Path("model.bin").write_text("by the way"); pathlib.Path("log").mkdir(); pathlib.Path("log/1").touch()
pathlib.Path("b").touch(); pathlib.Path("other").touch()
"""
    run = desired(plane, script, keep=KEEP)
    plane.want(run)
    start_agent()
    plane.wait_exit(run.run_id)
    assert paths(plane, run.run_id) == ["b/c", "log", "model.bin", "other"]
    assert plane.objects[plane.artifacts[run.run_id]["model.bin"]] == b"declared"
    assert set(left_of(plane, run.run_id)) == {"model.bin", "log/1", "b"}


def test_while_a_run_goes_on_what_it_wrote_is_kept(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """What grows, as it is; what is removed is no result any more; a machine that is killed has kept it."""
    script = """
import json, os, pathlib, time
log = open("events.out.tfevents.7", "ab", buffering=0)
pathlib.Path("removed").touch()
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])
while True:
    log.write(b"x" * 10)
    if (control / "remove").exists() and os.path.exists("removed"): os.remove("removed")
    time.sleep(0.005)
"""
    run = desired(plane, script, keep=OFTEN, parameters={"control": str(open_folder)})
    plane.want(run)
    agent = start_agent()
    plane.wait(lambda: paths(plane, run.run_id) == ["events.out.tfevents.7", "removed"], "both are kept")
    first = len(plane.objects[plane.artifacts[run.run_id]["events.out.tfevents.7"]])
    (open_folder / "remove").touch()
    plane.wait(lambda: paths(plane, run.run_id) == ["events.out.tfevents.7"], "the removed one is gone")

    def grown() -> bool:
        return len(plane.objects[plane.artifacts[run.run_id]["events.out.tfevents.7"]]) > first

    plane.wait(grown, "it has grown")
    agent.kill()
    data = plane.objects[plane.artifacts[run.run_id]["events.out.tfevents.7"]]
    assert set(data) == {ord("x")}
    assert not plane.results[run.run_id].final


def test_nothing_is_told_again_while_nothing_changes(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """One report when it was written, and one at the end; its bytes travel once."""
    script = f"""
import json, os, pathlib, time
part = pathlib.Path(os.environ["HOME"], "part")
part.write_bytes(b"m" * 1000)
part.rename("model")  # nobody finds half of it
{WAIT}
"""
    run = desired(plane, script, keep=OFTEN, parameters={"control": str(open_folder)})
    plane.want(run)
    start_agent()
    plane.wait(lambda: paths(plane, run.run_id) == ["model"], "it is kept")
    (open_folder / "end").touch()
    plane.wait_exit(run.run_id)
    assert sum("artifacts" in line for line in plane.story) == 2
    sha256 = plane.artifacts[run.run_id]["model"]
    assert sum(line.startswith("PUT") and sha256 in line for line in plane.stored_lines) <= 1


@pytest.mark.parametrize("named", [False, True])
def test_what_lay_beside_a_checkpoint_is_kept_before_it_counts(
    plane: Plane, start_agent: Start, open_folder: Path, *, named: bool
) -> None:
    """A run that goes on from it writes none of that again, so a machine that dies right then takes none of it along:
    whether the script tells of its checkpoints, or its owner has said where they are."""
    save = (
        'pathlib.Path(f"out/checkpoint-{step}").mkdir(); pathlib.Path(f"out/checkpoint-{step}/state").write_text("s")'
        if named
        else 'pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"], str(step)).write_text("s"); tell(checkpoint=str(step))'
    )
    script = f"""
import json, os, pathlib, time
def tell(**more):
    with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
        file.write(json.dumps({{"step": step, **more}}) + chr(10))
pathlib.Path("out/samples").mkdir(parents=True)
for step in (1, 2):
    pathlib.Path(f"out/samples/{{step}}.png").write_bytes(b"x" * step)
    {save}
step = 3
pathlib.Path("out/samples/3.png").touch()
tell()
while True: time.sleep(0.01)
"""
    template = {"checkpoints": {"folders": "out/checkpoint-*"}} if named else {}
    run = desired(plane, script, keep=KEEP, template=template)  # no other pass comes in time
    plane.want(run)
    agent = start_agent()
    plane.wait_step(run.run_id, 3)
    plane.wait(lambda: plane.committed(run.run_id), "a checkpoint")
    agent.kill()
    kept = next(place for place, line in enumerate(plane.story) if line == f"{run.run_id} early artifacts")
    counted = next(place for place, line in enumerate(plane.story) if " checkpoint " in line)
    assert kept < counted
    assert {"out/samples/1.png"} <= set(paths(plane, run.run_id))


def test_a_store_that_does_not_answer_keeps_no_checkpoint_from_counting(
    plane: Plane, start_agent: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies beside it has seconds."""
    script = """
import json, os, pathlib, time
pathlib.Path("stuck").write_text("stuck")
pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"], "1").write_text("s")
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file:
    file.write(json.dumps({"step": 1, "checkpoint": "1"}) + chr(10))
while True: time.sleep(0.01)
"""
    plane.held.add(hashlib.sha256(b"stuck").hexdigest())
    run = desired(plane, script, keep=KEEP)
    plane.want(run)
    start_agent()
    plane.wait(lambda: plane.committed(run.run_id), "the checkpoint", timeout_s=30)
    plane.release.set()


def test_a_run_that_was_moved_keeps_what_it_wrote_though_it_is_fenced(plane: Plane, start_agent: Start) -> None:
    """Its job goes on elsewhere since its final checkpoint; what it left is taken all the same."""
    script = """
import os, pathlib, signal, sys, time
def leave(*_):
    pathlib.Path("runs").mkdir(); pathlib.Path("runs/events").write_text("of the first machine")
    pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"], "state").write_text("1")
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file: file.write('{"step": 1}\\n')
while True: time.sleep(0.01)
"""
    run = desired(plane, script, keep=KEEP)
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 1)
    plane.ask(run.run_id, "checkpoint")
    plane.wait(lambda: plane.committed(run.run_id), "the final checkpoint")
    plane.epochs[run.job_id] = 2  # the hand-over
    plane.wait_exit(run.run_id)
    assert paths(plane, run.run_id) == ["runs/events"]


def test_a_run_that_is_cancelled_keeps_what_it_wrote_if_its_machine_stays(plane: Plane, start_agent: Start) -> None:
    """The server does not list it any more."""
    script = """
import os, pathlib, time
pathlib.Path("best.pt").write_text("so far")
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file: file.write('{"step": 1}\\n')
while True: time.sleep(0.01)
"""
    run = desired(plane, script, keep=KEEP)
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 1)
    plane.unlist(run.run_id)
    plane.wait(lambda: paths(plane, run.run_id) == ["best.pt"], "it is kept")


def test_one_file_that_the_store_refuses_costs_the_others_nothing(plane: Plane, start_agent: Start) -> None:
    """It is told, with the reason."""
    bad = hashlib.sha256(b"bad").hexdigest()
    script = """
import pathlib
for n in range(9): pathlib.Path(f"good-{n}").write_text(str(n))
pathlib.Path("bad").write_text("bad")
"""
    plane.faults.append(Fault(rf"PUT .*{bad}", 403))
    run = desired(plane, script, keep=KEEP)
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert paths(plane, run.run_id) == [f"good-{n}" for n in range(9)]
    assert set(left_of(plane, run.run_id)) == {"bad"}


def test_a_store_that_does_not_answer_costs_a_machine_that_is_taken_away_seconds(
    plane: Plane, start_agent: Start
) -> None:
    """What arrived is kept, what did not is told; the end of the run is told at once then."""
    script = """
import os, pathlib, time
pathlib.Path("good").write_text("good"); pathlib.Path("stuck").write_text("stuck")
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as file: file.write('{"step": 1}' + chr(10))
while True: time.sleep(0.01)
"""
    plane.held.add(hashlib.sha256(b"stuck").hexdigest())
    run = desired(plane, script, keep=KEEP, grace_ms=100)
    plane.want(run)
    agent = start_agent()
    plane.wait_step(run.run_id, 1)
    agent.terminate()
    plane.wait_exit(run.run_id, timeout_s=30)
    plane.release.set()
    assert paths(plane, run.run_id) == ["good"]
    assert left_of(plane, run.run_id) == {"stuck": (5, 1, "was not sent in time")}


def test_a_server_that_takes_no_results_does_not_change_the_end(plane: Plane, start_agent: Start) -> None:
    """Exit code 0 is told all the same."""
    plane.faults.append(Fault(r"POST .*/artifacts", 422))
    run = desired(plane, ORDINARY, keep=KEEP)
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert [one.what for one in plane.refusals] == ["output"]


# What is found and chosen


def marks(sizes: dict[str, int], changed_ns: int = 0) -> dict[str, Mark]:
    return {path: Mark(changed_ns, size_bytes, 0) for path, size_bytes in sizes.items()}


def test_small_folders_go_before_large_ones_and_are_kept_whole() -> None:
    """Of about the same size, the newest; a limit that one does not fit under lets smaller ones through."""
    others = {**marks({"a/1": 60, "a/2": 60}), **marks({"b/1": 5}), **marks({"c/1": 100}, 9), **marks({"d/1": 101}, 8)}
    kept, left = choose({}, others, ResultLimits(110, 0))
    assert sorted(kept) == ["b/1", "c/1"]
    assert {one.path for one in left} == {"a/1", "a/2", "d/1"}
    kept, _ = choose({"x/1": Mark(0, 500, 0)}, others, ResultLimits(10, 500, 3))
    assert sorted(kept) == ["b/1", "x/1"]


def test_what_is_left_is_told_by_the_highest_folder_of_which_nothing_is_kept() -> None:
    left = [LeftOut(f"data/{n % 10}/{n}", 10, 1, "large") for n in range(100)] + [LeftOut("out/x/1", 1, 1, "large")]
    assert gathered(left, ["out/y/1"]) == [LeftOut("data", 1000, 100, "large"), LeftOut("out/x/1", 1, 1, "large")]


def test_a_folder_of_too_many_files_is_looked_at_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_FILES", 50)
    for number in range(80):
        (tmp_path / str(number)).touch()
    found = find(tmp_path)
    assert len(found.files) == 50
    assert [one.why for one in found.left] == ["after 50 files nobody looked"]


def test_a_hundred_thousand_files_are_chosen_in_seconds() -> None:
    """As many as can be kept; the rest is one line."""
    others = marks({f"shards/{n // 100}/{n}": 10 for n in range(100_000)})
    kept, left = choose({}, others, ResultLimits(10**9, 0))
    told = gathered(left, kept)
    assert len(kept) == 10_000
    assert sum(one.files for one in told) == 90_000
    assert {one.why for one in told} == {"over the limit of 10,000 files: pack them"}


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name and the reason; those beside it are found. (Root, as whom tests may run, reads everything.)"""
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").touch()
    scan = os.scandir

    def refuse(path: str) -> Any:
        if "closed" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = find(tmp_path)
    assert [(one.path, one.why) for one in found.left] == [("closed", "cannot be read: Permission denied")]
    assert list(found.files) == ["open/file"]


@pytest.mark.parametrize(("size_bytes", "text"), [(0, "0 B"), (999, "999 B"), (12_000_000_000, "12.0 GB")])
def test_sizes_are_told_as_the_command_line_does(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


def test_an_agent_that_fails_at_results_does_not_change_how_a_run_ended(
    plane: Plane, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: it is told, and that is all."""
    plane.epochs["job_1"] = 1
    workspace = Workspace(tmp_path, "run_1", None)
    says: list[str] = []
    keeper = Keeper({"keep": KEEP}, WRITER, machine, workspace, says.append, threading.Event(), cast(Any, None))
    monkeypatch.setattr(OutputCollector, "look", lambda *_: 1 / 0)
    keeper.finish(3, succeeded=True)
    assert [one.why for one in plane.refusals] == ["the agent failed: ZeroDivisionError"]


def test_a_file_that_grows_and_one_that_vanishes_while_they_are_read(machine: Machine, tmp_path: Path) -> None:
    """Of the first, what was there when it was found; of the second, what became of it."""
    code = tmp_path
    (code / "grows").write_bytes(b"12345")
    (code / "gone").write_bytes(b"x")
    found = find(code)
    files = {path: File(code, Fence(code, None), mark) for path, mark in found.files.items()}
    (code / "grows").write_bytes(b"1234567890")
    (code / "gone").unlink()
    ready, unread = Storing(machine, WRITER).read(files, Until(threading.Event()))
    assert ready["grows"].piece.sha256 == hashlib.sha256(b"12345").hexdigest()
    assert unread == {"gone": "was removed while it was read"}


def keeper_of(machine: Machine, root: Path, says: list[str] | None = None, keep: dict[str, Any] = KEEP) -> Keeper:
    """In a folder in which nothing runs."""
    workspace = Workspace(root, WRITER.run_id, None)
    workspace.code.mkdir(parents=True)
    workspace.output.mkdir(parents=True)
    said = [] if says is None else says
    transfers = Transfers(machine.api, WRITER, threading.Event())
    keeper = Keeper({"keep": keep}, WRITER, machine, workspace, said.append, threading.Event(), transfers)
    keeper.remember()
    return keeper


def test_what_has_arrived_is_registered_before_the_rest_is_sent(
    plane: Plane, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small ones first: a machine that ends in the middle has lost only what was not sent."""
    monkeypatch.setattr(keeping, "BATCH_BYTES", 100)
    monkeypatch.setattr(keeping, "REGISTER_S", 0.0)
    keeper = keeper_of(machine, tmp_path)
    code = tmp_path / "runs" / WRITER.run_id / "code"
    (code / "small").write_bytes(b"s" * 60)
    (code / "large").write_bytes(b"l" * 90)
    plane.held.add(hashlib.sha256(b"l" * 90).hexdigest())
    ending = threading.Thread(target=keeper.finish, args=(3,), kwargs={"succeeded": False})
    ending.start()
    plane.wait(lambda: paths(plane, WRITER.run_id) == ["small"], "the small one")
    assert not plane.results[WRITER.run_id].final
    plane.release.set()
    ending.join()
    assert paths(plane, WRITER.run_id) == ["large", "small"]
    assert final(plane, WRITER.run_id).left == []


def test_a_file_that_cannot_be_sent_at_the_end_stays_as_it_was_kept_before(
    plane: Plane, machine: Machine, tmp_path: Path
) -> None:
    """Which is told; one that was removed is no result any more."""
    keeper = keeper_of(machine, tmp_path)
    code = tmp_path / "runs" / WRITER.run_id / "code"
    (code / "log").write_bytes(b"first")
    (code / "removed").write_bytes(b"of old")
    keeper.keep_up()
    assert paths(plane, WRITER.run_id) == ["log", "removed"]
    (code / "log").write_bytes(b"first and second")
    (code / "removed").unlink()
    plane.faults.append(Fault(rf"PUT .*{hashlib.sha256(b'first and second').hexdigest()}", 403))
    keeper.finish(3, succeeded=False)
    assert paths(plane, WRITER.run_id) == ["log"]
    assert plane.objects[plane.artifacts[WRITER.run_id]["log"]] == b"first"
    (left,) = final(plane, WRITER.run_id).left
    assert (left.path, left.why.endswith("; an earlier state of it is kept")) == ("log", True)
