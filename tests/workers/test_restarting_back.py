"""What cannot begin again with other GPUs goes back to those that it had, or on from what is stored."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.workers.agents import desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.restarted import (
    BY_RESTART,
    OWN,
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
from workers.agent.restarting import FAILED, REFUSED, SHORT, UNSAVED


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


def test_a_process_that_is_killed_meanwhile_goes_back(plane: Plane, start_agent: Start, open_folder: Path) -> None:
    run = a_run(plane, open_folder, every=20)
    plane.want(run)
    start_agent()
    plane.wait(lambda: plane.committed(run.run_id), "a checkpoint")
    is_asked_for_one(plane, run, open_folder)
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
