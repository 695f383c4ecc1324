"""A run whose code knows nothing of GPUs that change has others by beginning again, from what it has saved."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from allpass.wire.agent import DesiredRun, GpusTold
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from workers.agent.process import Ended
from workers.agent.restarting import FAILED, PROVE_S, REFUSED, SHORT, UNSAVED, NextBegin, Restarts

Start = Callable[..., AgentProcess]
UNAWARE = Path(__file__).parents[1] / "training" / "unaware"
ACCELERATED, TRAINER = UNAWARE / "accelerated.py", UNAWARE / "trainer.py"
BY_RESTART = {"resize_by": "restart", "gpu": {"count": 2}}

# A loop as people write it: it saves and leaves on SIGTERM. What is in `control` makes it go wrong.
TRAINS = r"""
import hashlib, json, os, pathlib, signal, sys, time
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
gpus = os.environ["CUDA_VISIBLE_DEVICES"]
counts = [os.environ.get(name) for name in ("PET_NPROC_PER_NODE", "ALLPASS_GPU_COUNT", "ALLPASS_GPU_COUNT_ASKED")]
step, state = 0, "start"
if "ALLPASS_RESUME_DIR" in os.environ:
    step, state = json.loads(pathlib.Path(os.environ["ALLPASS_RESUME_DIR"], "state.json").read_text())
    assert step == int(os.environ["ALLPASS_RESUME_STEP"])
(control / "pid").write_text(str(os.getpid()))
print(f"begins on {gpus} at {step}", *counts, flush=True)
metrics = open(os.environ["ALLPASS_METRICS_FILE"], "a", buffering=1)
if (control / f"fails-on-{len(gpus.split(','))}").exists():
    if (control / "unusable").exists():
        metrics.write(json.dumps({"step": step, "training": {"unusable": "CUDA error: device busy"}}) + "\n")
    sys.exit("cannot begin with so many")
while not (control / "end").exists():
    step += 1
    state = hashlib.sha256(f"{state}{step}".encode()).hexdigest()
    time.sleep(0.02)
    metrics.write(json.dumps({"step": step, "loss": 1 / step, "training": {"saves": True} if SAVES else {}}) + "\n")
    if (control / "fails").exists():
        sys.exit(3)
    if asked and (control / "done").exists():
        sys.exit(0)
    if asked and (control / "slow").exists():
        continue
    if asked and (control / "breaks").exists():
        sys.exit(3)
    if asked or (EVERY and step % EVERY == 0):
        folder = pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"], f"step-{step}")
        folder.mkdir()
        (folder / "state.json").write_text(json.dumps([step, state]))
        metrics.write(json.dumps({"step": step, "checkpoint": folder.name}) + "\n")
    if asked:
        print(f"leaves {gpus} at {step}", flush=True)
        sys.exit(75)
print("result", step, state, flush=True)
"""


def a_run(
    plane: Plane, control: Path, *, saves: bool = True, every: int = 0, script: str = TRAINS, **spec: Any
) -> DesiredRun:
    plane.report_every_ms = 50
    control.chmod(0o777)
    script = f"SAVES, EVERY = {saves}, {every}\n{script}"
    values = {"template": BY_RESTART, "gpu_indices": [0, 1], "use_gpus": [0, 1], **spec}
    return desired(plane, script, parameters={"control": str(control)}, **values)


def give(plane: Plane, run: DesiredRun, *gpus: int, held: tuple[int, ...] = (0, 1)) -> None:
    spec = run.spec.model_copy(update={"use_gpus": list(gpus), "gpu_indices": list(held)})
    plane.want(run.model_copy(update={"spec": spec}))


def gpus_told(plane: Plane, run: DesiredRun) -> GpusTold:
    report = plane.report(run.run_id)
    return (None if report is None else report.gpus) or GpusTold(used=[], leaving=[], refused=[])


def uses(plane: Plane, run: DesiredRun) -> tuple[list[int], list[int]]:
    told = gpus_told(plane, run)
    return told.used, told.leaving


def has(plane: Plane, run: DesiredRun, gpus: list[int]) -> bool:
    return uses(plane, run) == (gpus, [])


def begins(plane: Plane, run: DesiredRun) -> list[tuple[str, int]]:
    found = re.findall(r"^begins on ([\d,]+) at (\d+)", plane.log(run.run_id), re.MULTILINE)
    return [(gpus, int(step)) for gpus, step in found]


def end(plane: Plane, run: DesiredRun, control: Path) -> None:
    (control / "end").touch()
    assert plane.wait_exit(run.run_id).exit_code == 0


def test_it_goes_on_with_fewer_and_with_more_at_its_step(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """One run: no step is lost or taken twice, nothing is fetched, and what it leaves is told when it has gone."""
    run = a_run(plane, open_folder)
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "what it begins with")
    fetched = len(plane.read)
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == ([0], []), "one")
    plane.wait(lambda: gpus_told(plane, run).pause_ms, "how long it stood still")
    give(plane, run, 0, 1)
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "two again")
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 5)
    end(plane, run, open_folder)
    log = plane.wait_log(run.run_id, "result ")
    (_, _), (one, first), (two, second) = begins(plane, run)
    assert (one, two, 0 < first < second) == ("0", "0,1", True)
    assert [f"leaves 0,1 at {first}" in log, f"leaves 0 at {second}" in log] == [True, True]
    assert f"begins on 0 at {first} 1 1 2" in log and f"begins on 0,1 at {second} 2 2 2" in log
    steps = sorted(plane.metrics[run.run_id])
    assert steps == list(range(1, len(steps) + 1))
    assert plane.told(run.run_id).step == steps[-1]
    assert {one.step for one in plane.committed(run.run_id)} >= {second}
    assert not any(one.final for one in plane.committed(run.run_id)), "it goes on here"
    assert len(plane.read) == fetched
    assert {report.phase for report in plane.reports if report.run_id == run.run_id} <= {
        *("preparing", "running", "exited"),
    }


def test_no_begin_finds_the_notes_of_another_one_nor_fills_the_disk(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """Of code that keeps its newest checkpoint alone, and notes things where hooks do."""
    notes = """
notes = pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"], ".accelerate")
assert not notes.exists()
notes.mkdir()
(notes / "saved-0-1-1").touch()
"""
    alone = (
        "        for old in folder.parent.glob('step-*'): __import__('shutil').rmtree(old)\n        folder.mkdir()\n"
    )
    script = TRAINS.replace("step, state = 0", f"{notes}step, state = 0").replace("        folder.mkdir()\n", alone)
    run = a_run(plane, open_folder, script=script)
    plane.want(run)
    agent = start_agent()
    plane.wait(lambda: has(plane, run, [0, 1]), "what it begins with")
    for gpus in ([0], [0, 1], [0], [0, 1]):
        give(plane, run, *gpus)
        plane.wait(partial(has, plane, run, gpus), "another number")
    end(plane, run, open_folder)
    assert len(begins(plane, run)) == 5
    assert len({path.stat().st_ino for path in agent.root.rglob("state.json")}) <= 2


def test_what_it_gives_up_is_held_until_it_has_left(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    run = a_run(plane, open_folder)
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "what it begins with")
    (open_folder / "slow").touch()
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == ([0, 1], [1]), "about to leave one")
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 5)
    assert uses(plane, run) == ([0, 1], [1])
    (open_folder / "slow").unlink()
    plane.wait(lambda: uses(plane, run) == ([0], []), "one")
    end(plane, run, open_folder)


def test_what_never_saves_is_never_stopped(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """And nobody is told that it could change its GPUs."""
    run = a_run(plane, open_folder, saves=False)
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 5)
    give(plane, run, 0)
    plane.wait_step(run.run_id, 40)
    end(plane, run, open_folder)
    assert [report.gpus for report in plane.reports if report.run_id == run.run_id and report.gpus is not None] == []
    assert begins(plane, run) == [("0,1", 0)]


def test_a_checkpoint_that_is_kept_says_that_it_saves(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    run = a_run(plane, open_folder, saves=False, every=20)
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "that it can")
    assert plane.committed(run.run_id)
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == ([0], []), "one")
    end(plane, run, open_folder)
    steps = sorted(plane.metrics[run.run_id])
    assert steps == list(range(1, len(steps) + 1))


def test_code_that_does_not_save_when_asked_is_asked_when_it_has(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """It knows no request, and what it had done since its last save would be lost."""
    script = TRAINS.replace("signal.signal(signal.SIGTERM, lambda *_: asked.append(True))", "")
    run = a_run(plane, open_folder, saves=False, every=40, script=script)
    plane.want(run)
    start_agent()
    plane.wait(lambda: has(plane, run, [0, 1]), "that it can")
    assert gpus_told(plane, run).after_save
    plane.wait_step(run.run_id, plane.told(run.run_id).step // 40 * 40 + 50)
    give(plane, run, 0)
    plane.wait(lambda: has(plane, run, [0]), "one")
    assert gpus_told(plane, run).kept is None
    reached = max(plane.metrics[run.run_id])
    end(plane, run, open_folder)
    (_, _), (gpus, step) = begins(plane, run)
    assert (gpus, step % 40) == ("0", 0) and reached - step < 30


def test_who_is_to_begin_again_may_save_for_as_long_as_before(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """Its checkpoints take longer than its grace, by the times of their files; nothing presses."""
    long = """
        begun = folder / "begun"
        begun.touch()
        os.utime(begun, (0, time.time() - 30))
"""
    script = TRAINS.replace("        folder.mkdir()\n", f"        folder.mkdir(){long}")
    run = a_run(plane, open_folder, every=20, script=script, grace_ms=200)
    plane.want(run)
    start_agent()
    plane.wait(lambda: plane.committed(run.run_id), "a checkpoint")
    (open_folder / "slow").touch()
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == ([0, 1], [1]), "about to leave one")
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 50)
    (open_folder / "slow").unlink()
    plane.wait(lambda: has(plane, run, [0]), "one")
    assert gpus_told(plane, run).kept is None
    end(plane, run, open_folder)


@pytest.mark.parametrize("template", [{}, {"resize_by": "code"}, {"resize_by": "of a newer release"}])
def test_without_its_owners_word_it_keeps_what_it_has(
    plane: Plane, start_agent: Start, open_folder: Path, template: dict[str, str]
) -> None:
    run = a_run(plane, open_folder, template=template)
    plane.want(run)
    start_agent()
    plane.wait_step(run.run_id, 5)
    give(plane, run, 0)
    plane.wait_step(run.run_id, 30)
    end(plane, run, open_folder)
    assert plane.told(run.run_id).gpus is None and begins(plane, run) == [("0,1", 0)]
    assert "None None None" in plane.log(run.run_id)


def test_what_does_not_save_when_asked_goes_back_and_is_not_asked_again(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """Its patience is over: it is killed, and goes on from what it has, where it was."""
    run = a_run(plane, open_folder, every=20, grace_ms=1000)
    plane.want(run)
    start_agent()
    plane.wait(lambda: plane.committed(run.run_id), "a checkpoint")
    (open_folder / "slow").touch()
    give(plane, run, 0)
    plane.wait(lambda: gpus_told(plane, run).kept == UNSAVED, "that it keeps them")
    (open_folder / "slow").unlink()
    assert uses(plane, run) == ([0, 1], [])
    plane.wait(lambda: len(begins(plane, run)) == 2, "its next begin")
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 10)
    give(plane, run, 0)
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 20)
    end(plane, run, open_folder)
    (_, _), (gpus, step) = begins(plane, run)
    assert gpus == "0,1" and step >= 20 and step % 20 == 0
    assert "and keeps them: it has not saved when it was asked to" in plane.log(run.run_id)


@pytest.mark.parametrize(("begin", "then"), [([0, 1], [0]), ([0], [0, 1])])
def test_what_cannot_begin_with_another_number_goes_back_from_the_same_checkpoint(
    plane: Plane, start_agent: Start, open_folder: Path, begin: list[int], then: list[int]
) -> None:
    """As a sharded checkpoint: nothing is lost, and what it was to leave is its own all the while."""
    (open_folder / f"fails-on-{len(then)}").touch()
    run = a_run(plane, open_folder, gpu_indices=begin, use_gpus=begin)
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == (begin, []), "what it begins with")
    give(plane, run, *then)
    plane.wait(lambda: gpus_told(plane, run).kept == FAILED, "that it keeps them")
    plane.wait(lambda: len(begins(plane, run)) == 3, "its third begin")
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 5)
    end(plane, run, open_folder)
    words = [",".join(map(str, gpus)) for gpus in (begin, then, begin)]
    found = begins(plane, run)
    assert [gpus for gpus, _ in found] == words and found[1][1] == found[2][1] > 0
    steps = sorted(plane.metrics[run.run_id])
    assert steps == list(range(1, len(steps) + 1))
    held = [
        {*told.used, *told.leaving}
        for told in (report.gpus for report in plane.reports if report.run_id == run.run_id)
        if told is not None
    ]
    assert all(one >= set(begin) for one in held)
    assert f"and keeps them: it failed on {len(then)}" in plane.log(run.run_id)


def test_an_epoch_that_is_shorter_with_more_gpus_does_not_end_it(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """Its steps would be done, by their number, and half of its rows unread: it goes on with what it had."""
    counts = """
total = 160 // len(gpus.split(","))
if step >= total:
    sys.exit(0)
"""
    script = TRAINS.replace("while not", f"{counts}while not").replace(
        '{"saves": True}', '{"saves": True, "total_steps": total}'
    )
    run = a_run(plane, open_folder, script=script, gpu_indices=[0], use_gpus=[0])
    plane.want(run)
    start_agent()
    plane.wait(lambda: has(plane, run, [0]), "what it begins with")
    plane.wait_step(run.run_id, 90)
    give(plane, run, 0, 1)
    plane.wait(lambda: gpus_told(plane, run).kept == SHORT, "that it keeps what it had")
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 5)
    end(plane, run, open_folder)
    (_, _), (two, first), (one, second) = begins(plane, run)
    assert (two, one) == ("0,1", "0") and first == second >= 80
    assert "on 2 nothing was left to do, and before there was" in plane.log(run.run_id)


def test_what_is_done_at_that_moment_is_done(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    run = a_run(plane, open_folder)
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "what it begins with")
    (open_folder / "done").touch()
    give(plane, run, 0)
    exit_ = plane.wait_exit(run.run_id)
    assert (exit_.exit_code, exit_.saved_after_stop) == (0, False)
    assert len(begins(plane, run)) == 1


def test_an_error_of_its_own_at_that_moment_is_told_where_it_goes_on_to(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """It may be of what lies on the disk: what is stored is tried, before its job is said to have failed."""
    run = a_run(plane, open_folder, every=20)
    plane.want(run)
    start_agent()
    plane.wait(lambda: plane.committed(run.run_id), "a checkpoint")
    (open_folder / "breaks").touch()
    (open_folder / "fails-on-2").touch()  # again and again
    give(plane, run, 0)
    exit_ = plane.wait_exit(run.run_id)
    assert (exit_.signal, exit_.saved_after_stop, exit_.stranded) == (15, False, True)
    assert [gpus for gpus, _ in begins(plane, run)] == ["0,1", "0,1"]


def test_where_nothing_is_stored_an_error_is_an_error(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    run = a_run(plane, open_folder)
    plane.want(run)
    start_agent()
    plane.wait(lambda: has(plane, run, [0, 1]), "what it begins with")
    (open_folder / "breaks").touch()
    (open_folder / "fails-on-2").touch()
    give(plane, run, 0)
    exit_ = plane.wait_exit(run.run_id)
    assert (exit_.exit_code, exit_.stranded) == (1, False)


def test_what_is_gone_from_the_disk_is_taken_from_the_store(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """It had made room for a new checkpoint, and there was not enough."""
    full = """
    if asked:
        import shutil
        for old in pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"]).glob("step-*"):
            shutil.rmtree(old)
        raise OSError(28, "No space left on device")
"""
    script = TRAINS.replace("    if asked or (EVERY", f"{full}    if asked or (EVERY")
    run = a_run(plane, open_folder, every=20, script=script)
    plane.want(run)
    start_agent()
    plane.wait(lambda: plane.committed(run.run_id), "a checkpoint")
    give(plane, run, 0)
    exit_ = plane.wait_exit(run.run_id)
    assert (exit_.signal, exit_.saved_after_stop, exit_.stranded) == (15, False, True)


# It begins to save when it is asked to, trains on meanwhile, and announces it two steps later.
BESIDE = """
    if asked and len(asked) == 1:
        asked.append((step, state))
    if len(asked) > 1 and step < asked[1][0] + 2:
        continue
    if asked:
        step, state = asked[1]
"""


@pytest.mark.parametrize("code", [0, 75])
def test_what_was_saved_beside_the_training_is_an_answer(
    plane: Plane, start_agent: Start, open_folder: Path, code: int
) -> None:
    """The training has passed it by then. Whatever its exit code, it is not over, and has saved."""
    script = TRAINS.replace("    if asked or (EVERY", f"{BESIDE}    if asked or (EVERY").replace(
        "exit(75)", f"exit({code})"
    )
    run = a_run(plane, open_folder, script=script)
    plane.want(run)
    start_agent()
    plane.wait(lambda: has(plane, run, [0, 1]), "what it begins with")
    plane.wait_step(run.run_id, 10)
    give(plane, run, 0)
    plane.wait(lambda: has(plane, run, [0]), "one")
    end(plane, run, open_folder)
    (_, _), (gpus, step) = begins(plane, run)
    assert (gpus, gpus_told(plane, run).kept) == ("0", None) and step >= 10
    assert not any(one.final for one in plane.committed(run.run_id))


def test_code_that_announces_what_it_saves_is_asked_when_it_does(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """Wherever else it was waited for."""
    template = {**BY_RESTART, "checkpoints": {"folders": "out/checkpoint-*"}}
    run = a_run(plane, open_folder, every=100, template=template)
    plane.want(run)
    start_agent()
    plane.wait(lambda: has(plane, run, [0, 1]), "what it begins with")
    give(plane, run, 0)
    plane.wait(lambda: has(plane, run, [0]), "one")
    end(plane, run, open_folder)
    (_, _), (_, step) = begins(plane, run)
    assert 100 <= step < 150


def test_gpus_that_one_process_could_not_use_explain_no_later_failure(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    for name in ("fails-on-2", "unusable"):
        (open_folder / name).touch()
    run = a_run(plane, open_folder, gpu_indices=[0], use_gpus=[0])
    plane.want(run)
    start_agent()
    plane.wait(lambda: has(plane, run, [0]), "what it begins with")
    give(plane, run, 0, 1)
    plane.wait(lambda: gpus_told(plane, run).kept == FAILED, "that it keeps them")
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 10)
    (open_folder / "fails").touch()
    exit_ = plane.wait_exit(run.run_id)
    assert (exit_.exit_code, exit_.machine_fault) == (3, False)


@pytest.mark.parametrize("want", ["checkpoint", "kill"])
def test_who_is_to_leave_meanwhile_leaves(plane: Plane, start_agent: Start, open_folder: Path, want: str) -> None:
    """What it answers to the one request counts as the answer to the other."""
    run = a_run(plane, open_folder)
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "what it begins with")
    (open_folder / "slow").touch()
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == ([0, 1], [1]), "about to leave one")
    plane.ask(run.run_id, want)
    if want == "checkpoint":
        plane.wait(lambda: plane.told(run.run_id).phase == "stopping", "that it leaves")
        (open_folder / "slow").unlink()
    exit_ = plane.wait_exit(run.run_id)
    assert exit_.saved_after_stop == (want == "checkpoint")
    assert len(begins(plane, run)) == 1
    assert [one.final for one in plane.committed(run.run_id)] == ([True] if want == "checkpoint" else [])


def test_an_agent_that_dies_meanwhile_begins_nothing_again(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """The run is over, as any whose agent has died: its job goes on from what is stored."""
    run = a_run(plane, open_folder, every=20)
    plane.want(run)
    agent = start_agent(open_folder / "machine")
    plane.wait(lambda: plane.committed(run.run_id), "a checkpoint")
    (open_folder / "slow").touch()
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == ([0, 1], [1]), "about to leave one")
    agent.kill()
    start_agent(open_folder / "machine")
    assert plane.wait_exit(run.run_id).signal == 9
    assert begins(plane, run) in ([], [("0,1", 0)])


OWN = r"""
import json, os, pathlib, time
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])
out = pathlib.Path("out")
found = sorted(out.glob("checkpoint-*"), key=lambda one: int(one.name.split("-")[1]))
step = json.loads((found[-1] / "state.json").read_text()) if found else 0
print(f"begins on {os.environ['CUDA_VISIBLE_DEVICES']} at {step}", flush=True)
while not (control / "end").exists():
    step += 1
    time.sleep(0.02)
    if step % 20 == 0 and not (control / "saves-no-more").exists():
        folder = out / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps(step))
    elif (control / "saves-no-more").exists():
        (control / "is-on").touch()
"""


def test_code_that_saves_by_itself_leaves_when_it_has(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    """However long that takes: without a save it is not asked. A wish that is withdrawn meanwhile is none."""
    open_folder.chmod(0o777)
    plane.report_every_ms = 50
    template = {**BY_RESTART, "checkpoints": {"folders": "out/checkpoint-*"}}
    run = desired(
        plane, tar_gz({"train.py": OWN}), parameters={"control": str(open_folder)}, template=template,
        gpu_indices=[0, 1], use_gpus=[0, 1], grace_ms=1000,
    )  # fmt: skip
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "that it can")
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run)[0] == [0], "one")
    plane.wait(lambda: uses(plane, run) == ([0], []), "that it has begun there")
    (open_folder / "saves-no-more").touch()
    plane.wait((open_folder / "is-on").exists, "steps without a save")
    give(plane, run, 0, 1)
    plane.wait(lambda: gpus_told(plane, run) is not None and len(plane.syncs) > 0, "that it is asked")
    give(plane, run, 0)
    end(plane, run, open_folder)
    (_, _), (gpus, step), *more = begins(plane, run)
    assert (gpus, step % 20, more) == ("0", 0, []) and step > 0


@pytest.mark.training
@pytest.mark.timeout(240)
def test_an_unchanged_trainer_goes_on_with_another_number_of_processes(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """`torchrun` starts a process for each GPU; what was saved by two goes on in one, and in two again."""
    plan = {"steps": 70, "step_ms": 150, "arguments": {"ddp_backend": "gloo"}}
    bundle = tar_gz({"train.py": TRAINER.read_text(), "parameters.json": json.dumps(plan)})
    template = {**BY_RESTART, "command": ["torchrun", "--standalone", "train.py"]}
    plane.report_every_ms = 50
    run = desired(plane, bundle, template=template, gpu_indices=[0, 1], use_gpus=[0, 1], grace_ms=60_000)
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "that it can")
    for gpus in ([0], [0, 1]):
        give(plane, run, *gpus)
        plane.wait(partial(has, plane, run, gpus), "another number")
        plane.wait_step(run.run_id, plane.told(run.run_id).step + 5)
    assert plane.wait_exit(run.run_id).exit_code == 0
    steps = sorted(plane.metrics[run.run_id])
    assert steps == list(range(1, 71))
    assert gpus_told(plane, run).kept is None


def test_a_loop_over_accelerate_begins_again(plane: Plane, start_agent: Start) -> None:
    """It has its own folders, and finds in them what it left."""
    plane.report_every_ms = 50
    plan = {"steps": 120, "every": 5, "step_s": 0.1}
    run = desired(
        plane, ACCELERATED.read_text(), parameters=plan, template=BY_RESTART, gpu_indices=[0, 1], use_gpus=[0, 1],
        grace_ms=20_000,
    )  # fmt: skip
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "that it can")
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == ([0], []), "one")
    assert plane.wait_exit(run.run_id).exit_code == 0
    found = [int(step) for step in re.findall(r"^step (\d+) ", plane.wait_log(run.run_id, "step 120 "), re.MULTILINE)]
    assert found == list(range(1, 121))


def test_a_process_that_is_killed_meanwhile_goes_back(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    run = a_run(plane, open_folder, every=20)
    plane.want(run)
    start_agent()
    plane.wait(lambda: plane.committed(run.run_id), "a checkpoint")
    (open_folder / "slow").touch()
    give(plane, run, 0)
    plane.wait(lambda: uses(plane, run) == ([0, 1], [1]), "about to leave one")
    os.kill(int((open_folder / "pid").read_text()), signal.SIGKILL)
    (open_folder / "slow").unlink()
    plane.wait(lambda: gpus_told(plane, run).kept == UNSAVED, "that it keeps them")
    plane.wait_step(run.run_id, plane.told(run.run_id).step + 5)
    end(plane, run, open_folder)
    assert [gpus for gpus, _ in begins(plane, run)] == ["0,1", "0,1"]


def test_code_that_does_not_go_on_from_what_it_saves_is_asked_once(
    plane: Plane, start_agent: Start, open_folder: Path
) -> None:
    """It is found when it saves what it has saved before, and told: no number of GPUs is worth that twice."""
    open_folder.chmod(0o777)
    plane.report_every_ms = 50
    template = {**BY_RESTART, "checkpoints": {"folders": "out/checkpoint-*"}}
    forgets = OWN.replace("if found else 0", "if found and step else 0").replace("found = ", "step, found = 0, ")
    forgets = forgets.replace("folder.mkdir(parents=True)", "folder.mkdir(parents=True, exist_ok=True)")
    forgets = forgets.replace("step % 20 == 0", "step % (30 if found else 20) == 0")
    run = desired(
        plane, tar_gz({"train.py": forgets}), parameters={"control": str(open_folder)}, template=template,
        gpu_indices=[0, 1], use_gpus=[0, 1],
    )  # fmt: skip
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "that it can")
    plane.wait(lambda: plane.committed(run.run_id)[-1].step >= 40, "two checkpoints")
    give(plane, run, 0)
    plane.wait(lambda: gpus_told(plane, run).kept == REFUSED, "that it is of no use", timeout_s=30)
    assert any("has begun again" in one.why for one in plane.refusals)
    give(plane, run, 0, 1)
    (open_folder / "end").touch()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert [gpus for gpus, _ in begins(plane, run)] == ["0,1", "0"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def restarts(*use: int, held: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[Restarts, Clock]:
    clock = Clock()
    spec = {"use_gpus": list(use), "gpu_indices": list(held), "template": BY_RESTART}
    found = Restarts(spec, clock)
    found.begin()
    found.trains()
    found.shows()
    return found, clock


def wants(one: Restarts, *use: int) -> None:
    one.tell({"use_gpus": list(use)})


LEFT = Ended(exit_code=75, orderly=True)


def test_an_older_server_that_says_nothing_of_gpus_is_told_nothing() -> None:
    one, _ = restarts()
    assert one.used == (0, 1, 2, 3) and one.told() == {} and not one.is_due(shown=True)


def test_what_has_trained_with_a_number_once_frees_its_gpus_at_once() -> None:
    """The first time they are its own until it has shown that it goes on without, or has had its time."""
    one, clock = restarts(0, 1)
    for held, is_proven in (([1], False), ([], True)):
        wants(one, 0)
        assert one.is_due(shown=True)
        one.ask()
        one.hears()
        assert one.told()["gpus"]["leaving"] == [1]
        begin = one.after(LEFT, saved=True, told=True)
        assert begin == NextBegin((0,))
        clock.now_s += 3
        assert one.begun(begin) == 3
        assert (one.told()["gpus"]["used"], one.told()["gpus"]["leaving"]) == ([0], held)
        assert one.may_begin_again is not is_proven
        if not is_proven:
            wants(one, 0, 1)
            assert not one.is_due(shown=True), "it may have to go back first"
            clock.now_s += PROVE_S
            assert one.told()["gpus"]["leaving"] == []
        one.trains()
        wants(one, 0, 1)
        one.ask()
        one.hears()
        again = one.after(LEFT, saved=True, told=True)
        assert again == NextBegin((0, 1))
        one.begun(again)
        one.trains()
    assert one.told()["gpus"]["pause_ms"] == 0


def test_it_begins_with_what_is_wanted_by_then() -> None:
    """A run that stands by is told more than once before it begins."""
    one = Restarts({"use_gpus": [0, 1], "gpu_indices": [0, 1, 2], "template": BY_RESTART})
    wants(one, 0, 1, 2)
    assert one.begin() == (0, 1, 2) and not one.is_wanted
    wants(one, 0)
    assert one.used == (0, 1, 2) and one.is_wanted


def test_a_failure_later_on_is_its_own() -> None:
    one, _ = restarts(0, 1)
    wants(one, 0)
    one.ask()
    one.hears()
    begin = one.after(LEFT, saved=True, told=True)
    assert begin is not None
    one.begun(begin)
    one.trains()
    assert one.after(Ended(exit_code=1), saved=False, told=True) is None


def test_a_request_that_never_reached_it_explains_no_end() -> None:
    """Of code that saves by itself, and had not."""
    one, _ = restarts(0, 1)
    wants(one, 0)
    one.ask()
    one.hears()
    assert one.after(Ended(exit_code=1), saved=False, told=False) is None
    assert one.kept == ""
    wants(one, 0, 1)
    one.let_be()
    assert one.told()["gpus"]["leaving"] == []


def grown(*, had: bool = False) -> tuple[Restarts, Clock]:
    """It has just begun on two, after one."""
    one, clock = restarts(0, 1, held=(0, 1)) if had else restarts(0)
    for use in ((0,), (0, 1))[not had :]:
        wants(one, *use)
        one.ask()
        one.hears()
        begin = one.after(LEFT, saved=True, told=True)
        assert begin == NextBegin(use)
        one.begun(begin)
        if use == (0,):
            one.trains()
    return one, clock


@pytest.mark.parametrize("had", [False, True])
def test_what_grew_goes_back_as_long_as_it_took_no_step(had: bool) -> None:
    """Nothing is held for it, so it may load for an hour; meanwhile it can be asked for another number."""
    one, clock = grown(had=had)
    clock.now_s += 100 * PROVE_S
    assert (one.told()["gpus"]["used"], one.told()["gpus"]["leaving"]) == ([0, 1], [])
    wants(one, 0)
    assert one.is_due(shown=True)
    assert one.after(Ended(exit_code=1), saved=False, told=True) == NextBegin((0,), is_back=True)
    assert one.kept == FAILED


def test_with_nothing_left_to_do_it_goes_back() -> None:
    """Of what has taken a step, and of what has told no more, exit code 0 is done."""
    one, _ = grown()
    assert one.after(Ended(exit_code=0), saved=False, told=True) is None
    assert one.after(Ended(exit_code=0), saved=False, told=True, short=True) == NextBegin((0,), is_back=True)
    assert one.kept == SHORT
    one, _ = grown()
    one.trains()
    assert one.after(Ended(exit_code=0), saved=False, told=True, short=True) is None


def test_a_failure_after_a_step_where_it_has_gone_back_to_is_its_own() -> None:
    one, _ = grown()
    begin = one.after(Ended(exit_code=1), saved=False, told=True)
    assert begin is not None
    one.begun(begin)
    assert one.may_begin_again, "what is stored may do"
    assert [one.strands(Ended(exit_code=code)) for code in (1, 0)] == [True, False]
    one.trains()
    assert not one.may_begin_again and not one.strands(Ended(exit_code=1))


def test_a_pause_begins_when_its_process_hears_of_it() -> None:
    """It trains while its next save is waited for."""
    one, clock = restarts(0, 1)
    wants(one, 0)
    one.ask()
    clock.now_s += 3600
    one.hears()
    clock.now_s += 3
    begin = one.after(LEFT, saved=True, told=True)
    assert begin is not None and one.begun(begin) == 3
    clock.now_s += 4
    one.trains()
    assert one.told()["gpus"]["pause_ms"] == 7000
