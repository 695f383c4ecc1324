"""A run whose code knows nothing of GPUs that change has others by beginning again, from what it has saved."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from tests.workers.agents import desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.restarted import (
    ACCELERATED,
    BY_RESTART,
    OWN,
    TRAINER,
    TRAINS,
    Start,
    a_run,
    begins,
    end,
    give,
    gpus_told,
    has,
    is_asked_for_one,
    uses,
)


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
    is_asked_for_one(plane, run, open_folder)
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
    is_asked_for_one(plane, run, open_folder)
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


@pytest.mark.parametrize("want", ["checkpoint", "kill"])
def test_who_is_to_leave_meanwhile_leaves(plane: Plane, start_agent: Start, open_folder: Path, want: str) -> None:
    """What it answers to the one request counts as the answer to the other."""
    run = a_run(plane, open_folder)
    plane.want(run)
    start_agent()
    plane.wait(lambda: uses(plane, run) == ([0, 1], []), "what it begins with")
    is_asked_for_one(plane, run, open_folder)
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
    is_asked_for_one(plane, run, open_folder)
    agent.kill()
    start_agent(open_folder / "machine")
    assert plane.wait_exit(run.run_id).signal == 9
    assert begins(plane, run) in ([], [("0,1", 0)])


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
