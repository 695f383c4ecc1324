"""Two runs that share a process: each is told, saved, ended, fenced and reported by itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from allpass.wire.agent import DesiredRun
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Plane
from tests.workers.test_isolation import SYSTEM_PYTHON
from tests.workers.test_spares import PARAMETERS, command, recipe, standing_by, told_by

Start = Callable[..., AgentProcess]

# What `workers/trainer/together.py` does, with files in a folder in the place of a training: `finish-lead`, and so on.
SCRIPT = """
import json, os, pathlib, signal, sys, time

stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
file = os.environ.get("ALLPASS_COMPANION_FILE")
found = [("lead", dict(os.environ))] + ([("companion", json.loads(open(file).read())["environ"])] if file else [])
control = pathlib.Path(json.loads(open(os.environ["ALLPASS_PARAMETERS_FILE"]).read())["control"])

def write(path, text):
    part = pathlib.Path(path + ".part")
    part.write_text(text)
    part.replace(path)

class Side:
    def __init__(self, name, environ):
        self.name, self.environ, self.step, self.is_in = name, environ, 0, True
        self.say("began")
    def say(self, text):
        log = self.environ.get("ALLPASS_LOG_FILE")
        if log is None:
            print(self.name, text, flush=True)
        else:
            with open(log, "a") as file:
                file.write("%s %s%s" % (self.name, text, chr(10)))
    def tell(self, **line):
        with open(self.environ["ALLPASS_METRICS_FILE"], "a") as file:
            file.write(json.dumps({"step": self.step, **line}) + chr(10))
    def asks(self, word):
        return (control / (word + "-" + self.name)).exists()
    def save(self):
        folder = pathlib.Path(self.environ["ALLPASS_CHECKPOINT_DIR"], "step-%d" % self.step)
        folder.mkdir()
        (folder / "state").write_text(self.name + str(self.step))
        self.tell(checkpoint=folder.name)
    def end(self, **told):
        self.is_in = False
        write(self.environ["ALLPASS_END_FILE"], json.dumps(told))
    def act(self):
        if self.asks("finish"):
            pathlib.Path(self.environ["ALLPASS_OUTPUT_DIR"], "out").write_text(self.name)
            self.end(exit_code=0, why="done")
        elif self.asks("part"):
            self.end(exit_code=75, why="no help", parted="no help")
        elif self.asks("garble"):
            write(self.environ["ALLPASS_END_FILE"], "{")
            self.is_in = False
        elif os.path.exists(self.environ["ALLPASS_LEAVE_FILE"]) and not self.asks("stay"):
            self.save()
            self.end(exit_code=75, why="asked")
        else:
            self.step += 1
            self.tell(loss=1.0, tokens=1000 + self.step * (7 if self.name == "lead" else 3))

write(str(control / "process"), str(os.getpid()))
sides = [Side(*one) for one in found if "ALLPASS_END_FILE" in one[1]]
for side in sides:
    side.tell(training={"tokens_before": 1000})
if not sides:
    print("alone", flush=True)
while any(side.is_in for side in sides):
    for side in sides:
        if side.is_in:
            side.act()
    if stops:
        [side.save() for side in sides if side.is_in]
        print("both leave", flush=True)
        sys.exit(75)
    time.sleep(0.01)
"""


@pytest.fixture
def control(open_folder: Path) -> Path:
    """What the test puts here the process does."""
    open_folder.chmod(0o777)
    return open_folder


def pair(
    plane: Plane, control: Path, lead: dict[str, Any] | None = None, companion: dict[str, Any] | None = None
) -> tuple[DesiredRun, DesiredRun]:
    """Wanted in one reply."""
    plane.report_every_ms = 50
    bundle = tar_gz({"train.py": SCRIPT, "recipe.json": "{}"})
    spec: dict[str, Any] = {"parameters": {**PARAMETERS, "control": str(control)}}
    first = desired(plane, bundle, **{"job_id": "job_lead", **spec, **(lead or {})})
    second = desired(plane, bundle, **{"job_id": "job_companion", **spec, **(companion or {})})
    first = first.model_copy(update={"companion": second.run_id})
    second = second.model_copy(update={"companion_of": first.run_id})
    want(plane, [second, first])
    return first, second


def want(plane: Plane, runs: Sequence[DesiredRun]) -> None:
    with plane.changed:
        for run in runs:
            plane.desired[run.run_id] = run
            plane.epochs.setdefault(run.job_id, run.epoch)
        plane.version += 1
        plane.changed.notify_all()


def train(plane: Plane, runs: Sequence[DesiredRun], control: Path) -> int:
    """Wait until each has taken some steps; the process of both."""
    for run in runs:
        plane.wait_step(run.run_id, 3)
    return int((control / "process").read_text())


def ends(plane: Plane, run: DesiredRun) -> tuple[int | None, int | None]:
    exit_ = plane.wait_exit(run.run_id)
    return exit_.exit_code, exit_.signal


def test_each_reports_its_own_steps_tokens_log_and_outputs(plane: Plane, start_agent: Start, control: Path) -> None:
    """They share a process, whose user is both's, and nothing else."""
    has_users = os.getuid() == 0 and Path(SYSTEM_PYTHON).exists()
    lead, companion = pair(plane, control)
    agent = start_agent(control / "machine", **({"ALLPASS_AGENT_PYTHON": SYSTEM_PYTHON} if has_users else {}))
    train(plane, (lead, companion), control)
    uids = {(agent.root / "runs" / run.run_id / "metrics.jsonl").stat().st_uid for run in (lead, companion)}
    assert len(uids) == 1
    assert (uids == {os.getuid()}) != has_users
    for name, run, each in (("lead", lead, 7), ("companion", companion, 3)):
        (control / f"finish-{name}").touch()
        assert ends(plane, run) == (0, None)
        told = plane.told(run.run_id)
        assert told.tokens == told.step * each > 0
        assert plane.metrics[run.run_id][told.step].values["tokens"] == 1000 + told.step * each
        assert plane.objects[plane.artifacts[run.run_id]["out"]] == name.encode()
        lines = plane.wait_log(run.run_id, f"{name} began\n").splitlines()
        assert [line for line in lines if not line.startswith("allpass: ")] == [f"{name} began"]


@pytest.mark.parametrize("who", [0, 1], ids=["lead", "companion"])
def test_one_that_is_asked_to_leave_saves_and_the_other_goes_on(
    plane: Plane, start_agent: Start, control: Path, who: int
) -> None:
    """It ends with its own checkpoint, told as the answer to the request; the other ends when it is done."""
    runs = pair(plane, control)
    agent = start_agent()
    pid = train(plane, runs, control)
    leaver, other = runs[who], runs[1 - who]
    plane.ask(leaver.run_id, "checkpoint")
    exit_ = plane.wait_exit(leaver.run_id)
    assert (exit_.exit_code, exit_.saved_after_stop, exit_.parted) == (75, True, None)
    (saved,) = plane.committed(leaver.run_id)
    assert saved.final
    plane.unlist(leaver.run_id)
    plane.wait_step(other.run_id, plane.told(other.run_id).step + 5)
    assert command(pid), "the process goes on"
    later = desired(plane, "print('later')", job_id="job_later")
    plane.want(later)
    assert ends(plane, later) == (0, None), "who comes to another GPU does not wait for the other one's end"
    (control / f"finish-{('lead', 'companion')[1 - who]}").touch()
    assert ends(plane, other) == (0, None)
    for run in (other, later):
        plane.unlist(run.run_id)
    plane.wait(
        lambda: not any(path.name.startswith("run_") for path in (agent.root / "runs").iterdir()), "an empty place"
    )


def test_both_that_are_asked_at_once_leave_as_one(plane: Plane, start_agent: Start, control: Path) -> None:
    """The process hears of it, and neither side by itself: their common state is saved."""
    runs = pair(plane, control)
    start_agent()
    train(plane, runs, control)
    want(plane, [run.model_copy(update={"want": "checkpoint"}) for run in runs])
    for run in runs:
        exit_ = plane.wait_exit(run.run_id)
        assert (exit_.exit_code, exit_.saved_after_stop) == (75, True)
        assert len(plane.committed(run.run_id)) == 1
    plane.wait_log(runs[0].run_id, "both leave")


def test_a_machine_that_is_taken_away_has_both_leave_as_one(plane: Plane, start_agent: Start, control: Path) -> None:
    """The agent asks them together."""
    runs = pair(plane, control)
    agent = start_agent()
    train(plane, runs, control)
    agent.terminate()
    assert agent.wait() == 0
    for run in runs:
        assert plane.wait_exit(run.run_id).exit_code == 75
    plane.wait_log(runs[0].run_id, "both leave")


def test_a_process_that_is_killed_ends_both(plane: Plane, start_agent: Start, control: Path) -> None:
    """Each as the process did."""
    runs = pair(plane, control)
    start_agent()
    os.kill(train(plane, runs, control), signal.SIGKILL)
    assert [ends(plane, run) for run in runs] == [(None, 9), (None, 9)]


def test_who_has_left_is_not_ended_with_the_process(plane: Plane, start_agent: Start, control: Path) -> None:
    """It was done, and the other is killed: only that one has to come again."""
    (control / "finish-companion").touch()
    lead, companion = pair(plane, control)
    start_agent()
    assert ends(plane, companion) == (0, None)
    os.kill(train(plane, [lead], control), signal.SIGKILL)
    assert ends(plane, lead) == (None, 9)


def test_a_split_reaches_the_server_with_its_reason(plane: Plane, start_agent: Start, control: Path) -> None:
    """From both; an end that cannot be read is a failure of that one."""
    for name in ("part-lead", "garble-companion"):
        (control / name).touch()
    lead, companion = pair(plane, control)
    start_agent()
    exit_ = plane.wait_exit(lead.run_id)
    assert (exit_.exit_code, exit_.parted) == (75, "no help")
    assert ends(plane, companion) == (1, None)


def test_a_companion_that_cannot_be_prepared_leaves_the_lead_alone(
    plane: Plane, start_agent: Start, control: Path
) -> None:
    """It tells why; the lead starts as a run by itself."""
    lead, companion = pair(plane, control, companion={"template": {"secrets": ["TOKEN"]}})
    start_agent()
    assert "needs the secret TOKEN" in (plane.wait_exit(companion.run_id).environment_error or "")
    assert ends(plane, lead) == (0, None)
    plane.wait_log(lead.run_id, "alone")


@pytest.mark.parametrize("how", ["fails", "is stopped"])
def test_a_lead_that_never_starts_parts_with_its_companion(
    plane: Plane, start_agent: Start, control: Path, how: str
) -> None:
    """Which has done nothing wrong, and goes on elsewhere."""
    lead: dict[str, Any] = {"template": {"secrets": ["TOKEN"]}} if how == "fails" else {"want": "checkpoint"}
    _, companion = pair(plane, control, lead)
    start_agent()
    exit_ = plane.wait_exit(companion.run_id)
    assert (exit_.exit_code, exit_.parted) == (75, "the run whose process it was to share has ended")


@pytest.mark.parametrize("who", [0, 1], ids=["lead", "companion"])
def test_one_that_is_fenced_leaves_and_the_other_goes_on(
    plane: Plane, start_agent: Start, control: Path, who: int
) -> None:
    """Nothing more of it is taken; the other trains to its end."""
    runs = pair(plane, control)
    start_agent()
    train(plane, runs, control)
    fenced, other = runs[who], runs[1 - who]
    with plane.changed:
        plane.epochs[fenced.job_id] = 99
    plane.wait_exit(fenced.run_id)
    assert plane.committed(fenced.run_id) == []
    plane.wait_step(other.run_id, plane.told(other.run_id).step + 5)
    (control / f"finish-{('lead', 'companion')[1 - who]}").touch()
    assert ends(plane, other) == (0, None)


def test_one_that_does_not_leave_in_time_is_killed(plane: Plane, start_agent: Start, control: Path) -> None:
    """The process with it: the other goes on from what it has saved."""
    (control / "stay-companion").touch()
    runs = pair(plane, control)
    start_agent()
    train(plane, runs, control)
    plane.ask(runs[1].run_id, "checkpoint", grace_ms=100)
    assert [ends(plane, run) for run in runs] == [(None, 9), (None, 9)]


def test_both_end_with_the_agent_and_are_not_started_again(plane: Plane, start_agent: Start, control: Path) -> None:
    """A second agent of this machine says that they were killed."""
    runs = pair(plane, control)
    agent = start_agent()
    pid = train(plane, runs, control)
    agent.kill()
    plane.wait(lambda: not command(pid), "the end of the process")
    start_agent(agent.root)
    assert [ends(plane, run) for run in runs] == [(None, 9), (None, 9)]


def test_a_pair_takes_the_process_that_stood_by(plane: Plane, start_agent: Start, control: Path) -> None:
    """The lead's kind decides; both train in it, and the last of them leaves one behind."""
    agent = start_agent()
    told_by(plane, recipe(plane))
    spare, _ = standing_by(plane, agent)
    runs = pair(plane, control)
    assert train(plane, runs, control) == spare
    for name, run in zip(("lead", "companion"), runs, strict=True):
        (control / f"finish-{name}").touch()
        assert ends(plane, run) == (0, None)
        plane.unlist(run.run_id)
    assert standing_by(plane, agent)[0] != spare


def test_what_is_known_of_a_pair_is_json_for_its_user_alone(plane: Plane, start_agent: Start, control: Path) -> None:
    """The companion's environment holds no secret, and nothing of the lead's reaches its log."""
    lead, companion = pair(plane, control, companion={"template": {"secrets": ["TOKEN"]}, "secrets": {"TOKEN": "hush"}})
    agent = start_agent()
    train(plane, (lead, companion), control)
    file = agent.root / "runs" / lead.run_id / "companion.json"
    told = json.loads(file.read_text())
    assert file.stat().st_mode & 0o777 == 0o600
    assert "hush" not in file.read_text()
    assert told["environ"]["ALLPASS_JOB_ID"] == "job_companion"
    assert Path(told["code"]).is_dir()
    want(plane, [run.model_copy(update={"want": "kill"}) for run in (lead, companion)])
    assert [ends(plane, run) for run in (lead, companion)] == [(None, 9), (None, 9)]
