"""Checkpoints that a script keeps by itself, in folders of its own: found when they are complete, and put back."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agents import AgentProcess, desired
from tests.workers.plane import Plane, Stored
from workers.agent.laying import lay_back
from workers.agent.own_folders import OwnCheckpoint, Pattern, is_written
from workers.agent.own_saves import OwnSaves
from workers.agent.process import Ended
from workers.agent.workspace import Workspace

Start = Callable[..., AgentProcess]
ACCELERATED = Path(__file__).parents[1] / "training" / "unaware" / "accelerated.py"
DECLARED = {"checkpoints": {"folders": "out/checkpoint-*"}}

# A loop as people write it: it knows nothing of us, and goes on from the newest folder that it finds. Once the test has
# asked it to leave, its steps are slow, but for those before a save: whoever notices the save has time.
PLAIN = r"""
import hashlib, json, os, pathlib, random, shutil, sys, time
out, asked = pathlib.Path("out"), pathlib.Path(os.environ.get("HOME", ""), "asked")
found = sorted(out.glob("checkpoint-*"), key=lambda one: int(one.name.split("-")[1]))
step, value = 0, "start"
random.seed(3)
if found and {resumes}:
    state = json.loads((found[-1] / "state.json").read_text())
    step, value = state["step"], state["value"]
    version, words, gauss = json.loads((found[-1] / "random.json").read_text())
    random.setstate((version, tuple(words), gauss))
while step < {steps}:
    step += 1
    value = hashlib.sha256(f"{{value}} {{random.random()}}".encode()).hexdigest()
    print("step", step, value[:12], flush=True)
    time.sleep(0.3 if asked.exists() and step % 25 < 20 else 0.05)
    if step % 25 == 0:
        folder = out / f"checkpoint-{{step}}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({{"step": step, "value": value}}))
        {between}
        (folder / "random.json").write_text(json.dumps(random.getstate()))
        for old in found[:-1]:
            shutil.rmtree(old, ignore_errors=True)
        found = [*found[-1:], folder]
print("result", value, flush=True)
"""


def plain(steps: int = 200, between: str = "", resumes: bool = True) -> str:
    return PLAIN.format(steps=steps, between=between or "pass", resumes=resumes)


def begin(plane: Plane, script: str, **more: Any) -> str:
    run = desired(plane, script, template=DECLARED, **more)
    plane.want(run)
    return run.run_id


def told(log: str) -> dict[int, str]:
    """What the script has said of each step."""
    return {int(step): value for step, value in re.findall(r"^step (\d+) (\w+)", log, re.MULTILINE)}


def steps_of(log: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+) ", log, re.MULTILINE)]


def result(log: str) -> str:
    (found,) = re.findall(r"^result (\w+)", log, re.MULTILINE)
    return str(found)


def names(stored: Stored) -> list[str]:
    return [file.path for file in stored.files]


def test_a_loop_that_knows_nothing_of_it_moves_exactly(plane: Plane, start_agent: Start, tmp_path: Path) -> None:
    """It is asked to leave when it has just saved: what it had saved lies there for the next run, which takes no step
    twice but those of the moment in between, and comes to what it comes to when it is left alone."""
    agent = start_agent()
    first = begin(plane, plain(), grace_ms=20_000)
    plane.wait(lambda: plane.committed(first), "a first checkpoint")
    (agent.root / "runs" / first / "asked").touch()
    plane.ask(first, "checkpoint")
    exit_ = plane.wait_exit(first)
    assert exit_.saved_after_stop
    last = plane.committed(first)[-1]
    assert names(last) == [f"out/checkpoint-{last.step}/random.json", f"out/checkpoint-{last.step}/state.json"]
    assert plane.told(first).step == last.step
    resume = plane.resume_from(last)
    plane.epochs["job_1"] = 2
    second = begin(plane, plain(), resume=resume, epoch=2)
    (tmp_path / "alone").mkdir()
    command = [sys.executable, "-c", plain()]
    alone = subprocess.run(command, cwd=tmp_path / "alone", capture_output=True, text=True, check=True).stdout
    assert plane.wait_exit(second).exit_code == 0
    log = plane.wait_log(second, "\nresult ")
    before, after = told(plane.wait_log(first, f"step {last.step} ")), told(log)
    assert min(after) == last.step + 1
    assert {**before, **after} == told(alone)
    assert len(before.keys() & after.keys()) <= 20, "it trained on after it had saved"
    assert result(log) == result(alone)


def test_what_is_half_written_is_no_checkpoint(plane: Plane, start_agent: Start) -> None:
    """It is killed between two files of its second one: the first counts, as it has a newer one beside it."""
    stalls = "if step == 50: print('in between', flush=True); time.sleep(600)"
    start_agent()
    run_id = begin(plane, plain(between=stalls), grace_ms=2_000)
    plane.wait(lambda: "in between" in plane.log(run_id), "the second folder")
    plane.wait(lambda: plane.committed(run_id), "the first one")
    plane.ask(run_id, "checkpoint")
    assert not plane.wait_exit(run_id).saved_after_stop
    assert [one.step for one in plane.committed(run_id)] == [25]


def test_a_script_that_begins_again_is_told_and_loses_no_checkpoint(plane: Plane, start_agent: Start) -> None:
    """It does not look for what was put back: its early folders are refused, with the reason."""
    start_agent()
    first = begin(plane, plain(), grace_ms=20_000)
    plane.wait(lambda: plane.committed(first), "a first checkpoint")
    plane.ask(first, "checkpoint")
    plane.wait_exit(first)
    last = plane.committed(first)[-1]
    script = plain(steps=last.step - 1, resumes=False)
    resume = plane.resume_from(last)
    plane.epochs["job_1"] = 2
    second = begin(plane, script, resume=resume, epoch=2)
    plane.wait(lambda: plane.refusals, "the refusal")
    assert "has begun again" in plane.refusals[-1].why
    plane.wait_exit(second)
    assert plane.committed(second) == []


def test_a_script_that_ends_by_itself_while_its_save_is_awaited_has_succeeded(plane: Plane, start_agent: Start) -> None:
    """Nobody has asked it to leave yet, so its last folder is no reason to run it again."""
    start_agent()
    run_id = begin(plane, plain(steps=60), grace_ms=60_000)
    plane.wait(lambda: "step 55 " in plane.log(run_id), "nearly its end")
    plane.ask(run_id, "checkpoint")
    exit_ = plane.wait_exit(run_id)
    assert (exit_.exit_code, exit_.saved_after_stop) == (0, False)


def test_folders_that_nobody_has_named_are_told_and_let_be(plane: Plane, start_agent: Start) -> None:
    """Nobody knows whether the script goes on from them; its owner does, and hears what to say."""
    start_agent()
    run = desired(plane, plain(steps=30))
    plane.want(run)
    assert plane.wait_exit(run.run_id).exit_code == 0
    plane.wait_log(run.run_id, "--checkpoints 'out/checkpoint-*'")
    assert plane.committed(run.run_id) == []


def test_a_loop_over_accelerate_needs_nobody_to_say_where_its_folders_are(plane: Plane, start_agent: Start) -> None:
    """What it saves by itself is back in its place, and it takes the very next step."""
    start_agent()
    script, plan = ACCELERATED.read_text(), {"steps": 60, "every": 5}
    first = desired(plane, script, parameters={**plan, "step_s": 0.25}, grace_ms=20_000)  # not over before it is asked
    plane.want(first)
    plane.wait(lambda: plane.committed(first.run_id), "a first checkpoint")
    plane.ask(first.run_id, "checkpoint")
    exit_ = plane.wait_exit(first.run_id)
    assert (exit_.exit_code, exit_.saved_after_stop) == (75, True)
    last = plane.committed(first.run_id)[-1]
    assert {name.rpartition("/")[0] for name in names(last)} == {f"allpass-own/out/step_{last.step}"}
    plane.epochs["job_1"] = 2
    parameters = {**plan, "step_s": 0.0}
    second = desired(plane, script, parameters=parameters, resume=plane.resume_from(last), epoch=2)
    plane.want(second)
    assert plane.wait_exit(second.run_id).exit_code == 0
    log = plane.wait_log(second.run_id, "step 60 ")
    assert steps_of(plane.wait_log(first.run_id, f"step {last.step} ")) + steps_of(log) == list(range(1, 61))
    assert "what the script had saved is back in its place" in log


def test_what_a_hook_refuses_is_told_to_the_server(plane: Plane, start_agent: Start) -> None:
    """A loop that begins again though it was given back what it had: no plan moves it from then on."""
    start_agent()
    line = json.dumps({"step": 0, "training": {"refused": "it has begun\nagain"}})
    run = desired(plane, f"import os\nopen(os.environ['ALLPASS_METRICS_FILE'], 'a').write({line!r} + chr(10))\n")
    plane.want(run)
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert [one.why for one in plane.refusals] == ["it has begun again"]


def test_a_tracker_that_takes_nothing_is_told_to_the_server_once(plane: Plane, start_agent: Start) -> None:
    start_agent()
    lines = [json.dumps({"step": step, "training": {"untracked": f"W&B: refused\n{step}"}}) for step in (0, 1)]
    code = f"import os\nopen(os.environ['ALLPASS_METRICS_FILE'], 'a').write({chr(10).join(lines)!r} + chr(10))\n"
    run = desired(plane, code)
    plane.want(run)
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert [(one.what, one.why) for one in plane.refusals] == [("tracking", "W&B: refused 0")]


@pytest.mark.parametrize(
    ("text", "name", "step"),
    [
        ("out/checkpoint-*", "checkpoint-100", 100),
        ("out/checkpoint-*", "checkpoint-", None),
        ("out/checkpoint-*", "checkpoint-1x", None),
        ("out/checkpoint-*", "checkpoint-../../x", None),
        ("out/checkpoint-*", "checkpoint-" + "9" * 13, None),
        ("out/checkpoint-*", "checkpoint-٣", None),
        ("ckpt-*.pt", "ckpt-007.pt", 7),
        ("ckpt-*.pt", "ckpt-007.ptx", None),
        ("a+b/step(*)", "step(3)", 3),
    ],
)
def test_the_star_stands_for_a_number_and_nothing_else(text: str, name: str, step: int | None) -> None:
    """So no name leads anywhere else."""
    pattern = Pattern.of({"checkpoints": {"folders": text}})
    assert pattern is not None
    assert pattern.step_of(name) == step


@pytest.mark.parametrize(
    "text", ["/etc/checkpoint-*", "../checkpoint-*", "out/../../c-*", "out/*/c-*", "out/c", 7, None]
)
def test_a_pattern_of_which_nothing_is_known_is_none(text: Any) -> None:
    """The service refuses it; should one come all the same, nothing is looked for."""
    assert Pattern.of({"checkpoints": {"folders": text}}) is None
    assert Pattern.of({"checkpoints": text}) is None


class Place:
    """A run's folders, and what is found in them."""

    def __init__(self, folder: Path, resumed: int = 0) -> None:
        self.workspace = Workspace(folder, "run_1", None)
        self.out = self.workspace.code / "out"
        self.out.mkdir(parents=True)
        self.found: list[tuple[int, bool]] = []
        self.refused: list[str] = []
        spec = {"resume": {"step": resumed}} if resumed else {}
        if resumed:
            self.save(resumed)
        pattern = Pattern("out", "checkpoint-", "")
        self.saves = OwnSaves(spec, self.workspace, pattern, self._offer, self._refuse)
        self.saves.remember()

    def save(self, step: int, *files: str, age_s: float = 0) -> Path:
        folder = self.out / f"checkpoint-{step}"
        folder.mkdir()
        for name in files or ("model", "optimizer"):
            (folder / name).write_bytes(b"x" * 100)
            moment_s = time.time() - age_s
            os.utime(folder / name, (moment_s, moment_s))
        return folder

    def _offer(self, found: OwnCheckpoint, after_stop: bool) -> None:
        self.found.append((found.step, after_stop))

    def _refuse(self, step: int, name: str, error: Exception) -> None:
        self.refused.append(str(error))

    def end(self, **ended: Any) -> list[tuple[int, bool]]:
        self.saves.start()
        self.saves.finish(Ended(**ended))
        return self.found


def test_a_process_that_was_killed_leaves_what_it_had_not_touched_for_long(tmp_path: Path) -> None:
    """What was written right before may be half of it; a process that left by itself had ended it."""
    fresh, old, crashed, done = (Place(tmp_path / name) for name in ("fresh", "old", "crashed", "done"))
    fresh.save(10)
    assert fresh.end(signal=9) == []
    old.save(10, age_s=60)
    assert old.end(signal=9) == [(10, False)]
    crashed.save(10, age_s=60)
    assert crashed.end(exit_code=1) == [(10, False)]
    done.save(10, age_s=60)
    assert done.end(exit_code=0) == [], "the job is done"


def test_one_that_lacks_what_those_before_had_is_none(tmp_path: Path) -> None:
    """A file that is missing, or much smaller, has not been written yet."""
    lacks, short, whole = (Place(tmp_path / name, resumed=10) for name in ("lacks", "short", "whole"))
    lacks.save(20, "model", age_s=60)
    assert lacks.end(signal=9) == []
    os.truncate(short.save(20, age_s=60) / "optimizer", 50)
    assert short.end(signal=9) == []
    whole.save(20, age_s=60)
    assert whole.end(signal=9) == [(20, False)]


def test_links_lead_nowhere(tmp_path: Path) -> None:
    """Neither one in the place of the folder, nor one in the place of a checkpoint."""
    away = tmp_path / "away"
    (away / "checkpoint-10").mkdir(parents=True)
    (away / "checkpoint-10" / "model").write_text("secret")
    inner, outer = Place(tmp_path / "inner"), Place(tmp_path / "outer")
    (inner.out / "checkpoint-10").symlink_to(away / "checkpoint-10")
    assert inner.end(exit_code=1) == []
    outer.out.rmdir()
    outer.out.symlink_to(away)
    assert outer.end(exit_code=1) == []


def test_too_many_of_them_are_told_and_harm_nothing(tmp_path: Path) -> None:
    """Nobody looks through a hundred thousand names each second."""
    place = Place(tmp_path)
    for number in range(10_050):
        (place.out / f"other-{number}").touch()
    place.saves.remember()
    assert place.end(exit_code=1) == []
    assert len(place.refused) == 1


def test_a_file_that_is_open_for_writing_is_not_complete(tmp_path: Path) -> None:
    """Whoever only reads it does not count."""
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    with (folder / "model").open("w"):
        assert is_written(folder)
    with (folder / "model").open():
        assert not is_written(folder)


def test_what_is_put_back_goes_through_no_link(tmp_path: Path) -> None:
    """Code of the run may have run before, as its user."""
    workspace = Workspace(tmp_path, "run_1", None)
    resume = workspace.resume(10)
    (resume / "out" / "checkpoint-10").mkdir(parents=True)
    (resume / "out" / "checkpoint-10" / "model").write_text("weights")
    workspace.code.mkdir(parents=True)
    pattern = Pattern("out", "checkpoint-", "")
    assert lay_back(workspace, resume, pattern)
    assert (workspace.code / "out" / "checkpoint-10" / "model").read_text() == "weights"
    assert lay_back(workspace, resume, pattern), "again, over what lies there"
    assert not lay_back(workspace, resume, Pattern("other", "checkpoint-", ""))
    assert not lay_back(workspace, resume, None)
    away = tmp_path / "away"
    away.mkdir()
    (workspace.code / "out").rename(tmp_path / "moved")
    (workspace.code / "out").symlink_to(away)
    with pytest.raises(OSError):
        lay_back(workspace, resume, pattern)
    assert list(away.iterdir()) == []


def test_what_a_hook_has_announced_goes_through_no_link_either(tmp_path: Path) -> None:
    """It may be anywhere below the code, which code of the run has had before."""
    workspace = Workspace(tmp_path, "run_1", None)
    resume = workspace.resume(10)
    (resume / "allpass-own" / "a" / "last").mkdir(parents=True)
    (resume / "allpass-own" / "a" / "last" / "model").write_text("weights")
    workspace.code.mkdir(parents=True)
    assert lay_back(workspace, resume, None)
    assert (workspace.code / "a" / "last" / "model").read_text() == "weights"
    (resume / "other").write_text("one that is not below it")
    assert not lay_back(workspace, resume, None)
    (resume / "other").unlink()
    shutil.rmtree(workspace.code / "a")
    (workspace.code / "a").symlink_to(tmp_path)
    with pytest.raises(OSError):
        lay_back(workspace, resume, None)
    assert not (tmp_path / "last").exists()


def test_who_need_not_leave_is_not_told_and_who_was_told_is_known(tmp_path: Path) -> None:
    """Whichever of the two comes first: the process is told, or let be, and both know of it."""
    told: list[int] = []
    first, second = (Place(tmp_path / name).saves for name in ("first", "second"))
    for saves in (first, second):
        saves.ask(told.append, 1000, patiently=True)
    assert first.let_be()
    first._tell_to_leave()
    assert (told, first.was_told) == ([], False)
    second._tell_to_leave()
    assert (told, second.was_told, second.let_be()) == ([1000], True, False)
