"""Whole stories: a real agent, real user processes, a control plane over HTTP."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable

import pytest
from pydantic import BaseModel

from allpass.wire.agent import CheckpointCommit, DesiredRun, SyncReply
from tests.workers.agents import AgentProcess, desired, tar_gz
from tests.workers.plane import Fault, Plane

Start = Callable[..., AgentProcess]

HELLO = """
import json, os, pathlib, sys, time
print("hello", *sys.argv[1:])
while not pathlib.Path(os.environ["HOME"], "gate").exists(): time.sleep(0.01)
parameters = json.load(open(os.environ["ALLPASS_PARAMETERS_FILE"]))
with open(os.environ["ALLPASS_METRICS_FILE"], "a") as metrics:
    for step in range(1, 4):
        metrics.write(json.dumps({"step": step, "loss": parameters["lr"] / step, "note": "text", "nan": float("nan")}))
        metrics.write("\\n")
    metrics.write("not json\\n[1]\\n{\\"loss\\": 1}\\n")
out = pathlib.Path(os.environ["ALLPASS_OUTPUT_DIR"])
(out / "adapter").mkdir()
(out / "adapter" / "weights.bin").write_bytes(b"w" * 1000)
(out / "empty").write_bytes(b"")
"""

# A training whose state is a running hash: any step lost or done twice gives another result. Where its plan names a
# fourth number, it takes that step once the test lets it (`go_on`).
TRAINING = """
import hashlib, json, os, pathlib, signal, sys, time
stop = False
def on_term(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, on_term)
checkpoints = pathlib.Path(os.environ["ALLPASS_CHECKPOINT_DIR"])
metrics = open(os.environ["ALLPASS_METRICS_FILE"], "a", buffering=1)
steps, pause, every, *gated = json.load(open(os.environ["ALLPASS_PARAMETERS_FILE"]))["plan"]
step, state = 0, "start"
if "ALLPASS_RESUME_DIR" in os.environ:
    step = int(os.environ["ALLPASS_RESUME_STEP"])
    state = pathlib.Path(os.environ["ALLPASS_RESUME_DIR"], "deep", "state").read_text()
    print("resumed at", step)
while step < steps:
    step += 1
    state = hashlib.sha256(f"{state}{step}".encode()).hexdigest()
    time.sleep(pause)
    while step in gated and not pathlib.Path(os.environ["HOME"], "gate").exists():
        time.sleep(0.01)
    metrics.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
    if stop or (every and step % every == 0):
        folder = checkpoints / f"step-{step}"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "state").write_text(state)
        (folder / "big").write_bytes(b"x" * 3_000_000)
        metrics.write(json.dumps({"step": step, "checkpoint": folder.name, "loss": 1 / step}) + "\\n")
    if stop:
        sys.exit(75)
pathlib.Path(os.environ["ALLPASS_OUTPUT_DIR"], "result").write_text(state)
"""

MANY = 2_000  # steps, of which each takes a moment: nobody has to hurry to ask for a save before the last


def go_on(agent: AgentProcess, run_id: str) -> None:
    (agent.root / "runs" / run_id / "gate").touch()


def result_of(plane: Plane, run_id: str) -> bytes:
    return plane.objects[plane.artifacts[run_id]["result"]]


def test_progress_is_told_as_often_as_the_server_wants_and_the_end_at_once(plane: Plane, start_agent: Start) -> None:
    """Sixty steps over more than a second: one report of progress at most, and the exit right after the last step."""
    plane.report_every_ms = 600_000
    run = desired(plane, TRAINING, parameters={"plan": [60, 0.02, 0]})
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    told = [report.step for report in plane.reports if report.phase == "running" and report.step > 0]
    assert len(set(told)) <= 1


def test_success_is_told_after_everything_it_left_is_stored(plane: Plane, start_agent: Start) -> None:
    """Log, metrics and output files are with the control plane before it hears of exit code 0, and stay listed."""
    run = desired(plane, HELLO, parameters={"lr": 0.5})
    plane.want(run)
    agent = start_agent()
    plane.wait(lambda: f"{run.run_id} running" in plane.story, "its beginning")
    go_on(agent, run.run_id)
    ended = plane.wait_exit(run.run_id)
    assert (ended.exit_code, ended.signal, ended.environment_error) == (0, None, None)
    assert ended.last_lines == "hello"
    plane.wait_log(run.run_id, "hello\n")
    assert {step: point.values for step, point in plane.metrics[run.run_id].items()} == {
        1: {"loss": 0.5},
        2: {"loss": 0.25},
        3: {"loss": 0.5 / 3},
    }
    assert plane.told(run.run_id).step == 3
    assert set(plane.artifacts[run.run_id]) == {"adapter/weights.bin", "empty"}
    assert plane.story.index(f"{run.run_id} artifacts") < plane.story.index(f"{run.run_id} exited")
    phases = [line.split()[1] for line in dict.fromkeys(plane.story) if line.split()[1] in ("preparing", "running")]
    assert phases == ["preparing", "running"]
    skipped = "a line of the metrics file is skipped"
    plane.wait(lambda: plane.log(run.run_id).count(skipped) >= 3, "what is skipped")
    assert plane.log(run.run_id).count(skipped) == 3, "each kind of fault is told once"


def test_an_exited_run_is_reported_until_it_is_not_listed_any_more(plane: Plane, start_agent: Start) -> None:
    """The report of an end is repeated in every sync; when the server lets go of the run, its folder goes too."""
    run = desired(plane, "print('x')")
    plane.want(run)
    agent = start_agent()
    plane.wait_exit(run.run_id)
    other = desired(plane, "print('y')", job_id="job_2")
    plane.want(other)
    plane.wait_exit(other.run_id)
    told_again = next(sync for sync in reversed(plane.syncs) if any(one.run_id == other.run_id for one in sync.runs))
    assert {report.run_id for report in told_again.runs} == {run.run_id, other.run_id}
    assert (agent.root / "runs" / run.run_id).is_dir()
    plane.unlist(run.run_id)
    plane.wait(lambda: not (agent.root / "runs" / run.run_id).exists(), "removal of the run's folder")
    plane.wait(lambda: {report.run_id for report in plane.syncs[-1].runs} == {other.run_id}, "a report without it")


def test_words_are_argv(plane: Plane, start_agent: Start) -> None:
    """Parameters given as a list of words arrive as the script's arguments."""
    run = desired(plane, "import sys; print(sys.argv)", parameters=["--lr", "1e-3", "two words"])
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).last_lines == "['train.py', '--lr', '1e-3', 'two words']"


def test_code_that_raises_shows_its_own_traceback(plane: Plane, start_agent: Start) -> None:
    """The last lines are the user's traceback, and no artifact is registered."""
    script = "import os, pathlib\npathlib.Path(os.environ['ALLPASS_OUTPUT_DIR'], 'x').write_text('x')\n1 / 0\n"
    run = desired(plane, script)
    plane.want(run)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert ended.exit_code == 1
    assert ended.last_lines.endswith("ZeroDivisionError: division by zero")
    plane.wait_log(run.run_id, "Traceback")
    assert plane.artifacts == {}


def test_last_lines_are_bounded(plane: Plane, start_agent: Start) -> None:
    """At most 40 lines and 8000 characters of the end of the output are in the report; the log has all of it."""
    run = desired(plane, "for n in range(5000): print(n, 'x' * 300)")
    plane.want(run)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert len(ended.last_lines) <= 8000
    assert ended.last_lines.split("\n")[-1].startswith("4999 ")
    log = plane.wait_log(run.run_id, "\n4999 ")
    assert [line.split()[0] for line in log.splitlines() if "xxx" in line] == [str(n) for n in range(5000)]


@pytest.mark.parametrize("newer", [False, True], ids=["server-of-its-release", "server-of-a-newer-release"])
def test_a_job_moves_at_an_exact_step_and_ends_as_if_it_never_had(
    plane: Plane, start_agent: Start, newer: bool
) -> None:
    """Asked to save, the script leaves at a step; resumed on a second machine, it ends with the very same result."""
    plane.says_more = newer
    straight = desired(plane, TRAINING, job_id="job_straight", parameters={"plan": [MANY, 0.0, 0]})
    moving = desired(plane, TRAINING, parameters={"plan": [MANY, 0.02, 0]})
    plane.want(straight)
    plane.want(moving)
    start_agent()
    plane.wait_step(moving.run_id, 5)
    plane.ask(moving.run_id, "checkpoint")
    ended = plane.wait_exit(moving.run_id)
    assert (ended.exit_code, ended.saved_after_stop) == (75, True)
    [stored] = plane.committed(moving.run_id)
    assert stored.step == plane.told(moving.run_id).step < MANY
    assert stored.metrics == {"loss": 1 / stored.step}
    assert [file.path for file in stored.files] == ["big", "deep/state"]
    assert plane.story.index(f"{moving.run_id} checkpoint {stored.step}") < plane.story.index(f"{moving.run_id} exited")
    plane.wait_exit(straight.run_id)

    plane.unlist(moving.run_id)
    plane.unlist(straight.run_id)
    plane.epochs["job_1"] = 2
    again = desired(plane, TRAINING, epoch=2, resume=plane.resume_from(stored), parameters={"plan": [MANY, 0.0, 0]})
    plane.want(again)
    start_agent()
    assert plane.wait_exit(again.run_id).exit_code == 0
    plane.wait_log(again.run_id, f"resumed at {stored.step}")
    assert min(plane.metrics[again.run_id]) == stored.step + 1
    assert result_of(plane, again.run_id) == result_of(plane, straight.run_id)


def test_periodic_checkpoints_are_stored_while_it_runs(plane: Plane, start_agent: Start) -> None:
    """A checkpoint line is uploaded from when it is written; the last one is stored even right before the end."""
    run = desired(plane, TRAINING, parameters={"plan": [40, 0.02, 10, 15]})
    plane.want(run)
    agent = start_agent()
    plane.wait(lambda: plane.committed(run.run_id), "a first checkpoint")
    assert plane.told(run.run_id).phase == "running"
    go_on(agent, run.run_id)
    ended = plane.wait_exit(run.run_id)
    steps = [stored.step for stored in plane.committed(run.run_id)]
    assert steps == sorted(steps)
    assert steps[-1] == 40
    assert (ended.exit_code, ended.saved_after_stop) == (0, False)
    assert "result" in plane.artifacts[run.run_id]


def test_nothing_is_lost_while_the_server_is_away(plane: Plane, start_agent: Start) -> None:
    """The script goes on when every connection breaks; lines, points, checkpoints and the end arrive afterwards."""
    run = desired(plane, TRAINING + "\nprint('said while away')\n", parameters={"plan": [60, 0.03, 10, 5]})
    plane.want(run)
    agent = start_agent()
    plane.wait_step(run.run_id, 1)
    away = Fault(".*", 0)
    plane.faults.append(away)
    go_on(agent, run.run_id)
    metrics = agent.root / "runs" / run.run_id / "metrics.jsonl"
    plane.wait(lambda: '{"step": 60, "checkpoint"' in metrics.read_text(), "the end of the training")
    assert plane.told(run.run_id).phase == "running"
    away.times = 0
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert sorted(plane.metrics[run.run_id]) == list(range(1, 61))
    plane.wait_log(run.run_id, "said while away\n")
    assert plane.committed(run.run_id)[-1].step == 60
    assert "result" in plane.artifacts[run.run_id]


def test_answers_that_say_later_are_waited_out(plane: Plane, start_agent: Start) -> None:
    """503 from the store or the API in the middle of uploads delays them and loses nothing."""
    plane.faults += [
        Fault("PUT ", 503, times=4),
        Fault("POST .*commit", 503, times=1),
        Fault("POST .*logs", 500, times=2),
    ]
    run = desired(plane, TRAINING, parameters={"plan": [4, 0.0, 4]})
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert [stored.step for stored in plane.committed(run.run_id)] == [4]
    assert "result" in plane.artifacts[run.run_id]


def test_expired_links_are_replaced(plane: Plane, start_agent: Start) -> None:
    """A signed URL that the store refuses is asked for again."""
    plane.faults += [Fault("PUT ", 403, times=2), Fault("GET ", 403, times=1)]
    run = desired(plane, TRAINING, parameters={"plan": [4, 0.0, 4]})
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert [stored.step for stored in plane.committed(run.run_id)] == [4]


def test_the_training_helpers_are_there_in_any_environment(plane: Plane, start_agent: Start) -> None:
    """`from allpass import training` works, and comes from what the agent brought."""
    script = "from allpass import training\ntraining.report(3, loss=0.5)\nprint(training.__file__)\n"
    run = desired(plane, script)
    plane.want(run)
    agent = start_agent()
    ended = plane.wait_exit(run.run_id)
    assert ended.last_lines == str(agent.root / "lib" / "allpass" / "training" / "__init__.py")
    assert plane.metrics[run.run_id][3].values == {"loss": 0.5}


def test_output_that_is_not_text_becomes_text(plane: Plane, start_agent: Start) -> None:
    """Invalid UTF-8 is replaced, NUL removed, characters cut by a write are whole, a last line needs no end."""
    script = (
        "import os, time\n"
        "os.write(1, b'a\\xff\\x00b\\n\\xc3')\ntime.sleep(0.1)\n"
        "os.write(1, b'\\xa9\\n')\nos.write(2, b'end\\xe2\\x82')\n"
    )
    run = desired(plane, script)
    plane.want(run)
    start_agent()
    ended = plane.wait_exit(run.run_id)
    assert plane.wait_log(run.run_id, "end\ufffd") == "a\ufffdb\n\u00e9\nend\ufffd"
    assert ended.last_lines.startswith("a\ufffdb\n\u00e9\nend")


def test_the_environment_of_user_code_is_the_contract(plane: Plane, start_agent: Start) -> None:
    """User code finds the contract's variables and nothing else of the machine; the files hold what was submitted."""
    script = (
        "import json, os\nfrom allpass import training\nprint(json.dumps(dict(os.environ)))\n"
        "print(json.dumps(training.plan()._asdict()))\nprint(open(os.environ['ALLPASS_TEMPLATE_FILE']).read())"
    )
    layout = {"gpus": 2, "data_parallel": 2, "micro_batch": 4, "of a later version": 1}
    run = desired(plane, script, template={"name": "t"}, gpu_indices=[1, 3], checkpoint_interval_s=17, layout=layout)
    plane.want(run)
    agent = start_agent()
    first, second, rest = plane.wait_exit(run.run_id).last_lines.split("\n", 2)
    environ, plan = json.loads(first), json.loads(second)
    assert (plan["gpus"], plan["data_parallel"], plan["micro_batch"], plan["accumulation"]) == (2, 2, 4, 1)
    assert json.loads(rest) == {"name": "t"}
    home = agent.root / "runs" / run.run_id
    assert environ.pop("PATH").endswith(os.environ["PATH"])
    environ.pop("LC_CTYPE", None)
    tmp = environ.pop("TMPDIR")  # a short name of it, where sockets in it would have too long ones
    assert tmp == str(home / "tmp") or (len(str(home / "tmp")) > 60 and re.fullmatch(r"/tmp/allpass-[0-9a-f]{16}", tmp))
    assert environ == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "HOME": str(home),
        "ALLPASS_PIECE_BYTES": str(16 * 1024**2),
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{agent.root}/lib/allpass/hooks/startup:{agent.root}/lib",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "1,3",
        "ALLPASS_JOB_ID": "job_1",
        "ALLPASS_PARAMETERS_FILE": str(home / "parameters.json"),
        "ALLPASS_TEMPLATE_FILE": str(home / "template.json"),
        "ALLPASS_PLAN_FILE": str(home / "plan.json"),
        "ALLPASS_CHECKPOINT_DIR": str(home / "checkpoints"),
        "ALLPASS_CODE_DIR": str(home / "code"),
        "ALLPASS_OUTPUT_DIR": str(home / "output"),
        "ALLPASS_METRICS_FILE": str(home / "metrics.jsonl"),
        "ALLPASS_CHECKPOINT_INTERVAL_S": "17",
    }


def test_user_code_is_told_how_long_its_machine_lives(plane: Plane, start_agent: Start) -> None:
    """Where that is known: it saves more often then. An older server says nothing about it."""
    script = "import os; print('lives', os.environ.get('ALLPASS_MEAN_LIFE_S'))"
    start_agent()
    for job_id, life_s in (("job_1", 7_200.0), ("job_2", None)):
        run = desired(plane, script, job_id=job_id, mean_life_s=life_s)
        plane.want(run)
        assert f"lives {life_s}" in plane.wait_exit(run.run_id).last_lines


def test_an_overtaken_wish_never_comes_back(plane: Plane, start_agent: Start) -> None:
    """Replies cross on two connections: one with a lower version than was seen is not acted on."""
    run = desired(plane, TRAINING, parameters={"plan": [60, 0.03, 0]})
    plane.want(run)
    plane.stale_reply = SyncReply(version=1, runs=[])
    start_agent()
    assert plane.wait_exit(run.run_id).exit_code == 0
    assert plane.stale_count > 0
    assert "result" in plane.artifacts[run.run_id]


def test_a_server_that_was_restored_is_heard(plane: Plane, start_agent: Start) -> None:
    """Orders of an older dump count: what it does not know is killed, what it wants is begun, and what both know goes
    on in the process that it has."""
    known = desired(plane, TRAINING, job_id="job_known", parameters={"plan": [100_000, 0.02, 0]})
    ended = desired(plane, TRAINING, job_id="job_ended", parameters={"plan": [3, 0.0, 0]})
    since = desired(plane, TRAINING, job_id="job_since", parameters={"plan": [100_000, 0.02, 0]})
    plane.want(known)
    plane.want(ended)
    start_agent()
    plane.wait_exit(ended.run_id)
    plane.unlist(ended.run_id)
    plane.want(since)
    plane.wait_step(known.run_id, 5)
    plane.wait_step(since.run_id, 5)
    plane.wait(lambda: plane.syncs[-1].seen == plane.version, "the agent has seen all that there is")

    restored = len(plane.reports)
    plane.restore(known, ended)
    plane.wait(lambda: any(one.run_id == ended.run_id for one in plane.reports[restored:]), "it is done again")
    plane.wait_exit(ended.run_id)
    reported = len(plane.reports)
    plane.wait(lambda: sum(one.run_id == known.run_id for one in plane.reports[reported:]) > 2, "steps are told")
    later = plane.reports[reported:]
    assert [one.run_id for one in later if one.run_id == since.run_id] == []
    going_on = [(one.phase, one.step > 5) for one in plane.reports[restored:] if one.run_id == known.run_id]
    assert set(going_on) == {("running", True)}, "its process was not begun again"


def test_two_runs_share_a_machine(plane: Plane, start_agent: Start) -> None:
    """Runs of one machine do not disturb one another: each has its folder, log and end."""
    runs: list[DesiredRun] = [
        desired(plane, f"print('I am {name}'); raise SystemExit({code})", job_id=f"job_{name}")
        for name, code in (("one", 0), ("two", 2))
    ]
    for run in runs:
        plane.want(run)
    start_agent()
    assert [plane.wait_exit(run.run_id).exit_code for run in runs] == [0, 2]
    logs = [plane.wait_log(run.run_id, "I am ") for run in runs]
    assert ["I am one" in log for log in logs] == [True, False]


def test_a_bundle_may_have_folders(plane: Plane, start_agent: Start) -> None:
    """The working directory is the code's root, wherever the entrypoint lies."""
    main = "import beside; print(beside.X, open('data.txt').read())"
    bundle = tar_gz({"src/main.py": main, "src/beside.py": "X = 1", "data.txt": "d"})
    run = desired(plane, bundle, entrypoint="src/main.py")
    plane.want(run)
    start_agent()
    assert plane.wait_exit(run.run_id).last_lines == "1 d"


def test_what_was_measured_up_to_a_checkpoint_is_sent_before_it_counts(
    plane: Plane, start_agent: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on from a checkpoint never measures its steps again: a hole would stay, had the machine died."""
    run = desired(plane, TRAINING, parameters={"plan": [30, 0.01, 10]})
    known: list[tuple[int, set[int]]] = []
    commit = plane.commit

    def watched(checkpoint_id: str, request: CheckpointCommit) -> BaseModel | None:
        step = plane.checkpoints[checkpoint_id].step
        known.append((step, set(plane.metrics.get(run.run_id, {}))))
        return commit(checkpoint_id, request)

    monkeypatch.setattr(plane, "commit", watched)
    plane.want(run)
    start_agent()
    plane.wait_exit(run.run_id)
    assert known
    for step, steps in known:
        assert set(range(1, step + 1)) <= steps
