"""The helpers for training scripts, on a session of the test's own: no process, no signal, no waiting."""

from __future__ import annotations

import ast
import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allpass.training.checkpoints import link_tree
from allpass.training.session import EXIT_STOPPED, Resume, Session
from tests.training.scripts import REPOSITORY, files_of


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time_s() -> Time:
    return Time()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "ALLPASS_JOB_ID": "job_1",
        "ALLPASS_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "ALLPASS_OUTPUT_DIR": str(tmp_path / "output"),
        "ALLPASS_METRICS_FILE": str(tmp_path / "metrics.jsonl"),
        "ALLPASS_CHECKPOINT_INTERVAL_S": "60",
    }


@pytest.fixture
def session(environment: dict[str, str], time_s: Time) -> Session:
    return Session(environment, time_s)


def _lines(tmp_path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def _write(text: str = "weights"):  # type: ignore[no-untyped-def]  # what training code is like
    return lambda folder: (folder / "state").write_text(text)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**53 - 1))
def test_a_reported_float_reads_back_as_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, value: float, step: int
) -> None:
    """No digit of a metric is lost on its way through the metrics file."""
    path = tmp_path_factory.getbasetemp() / "floats.jsonl"
    path.unlink(missing_ok=True)
    Session({"ALLPASS_METRICS_FILE": str(path)}).report(step, loss=value)
    line = json.loads(path.read_text())
    assert (line["step"], line["loss"].hex()) == (step, value.hex())


def test_numbers_that_json_cannot_say_are_left_out_and_told_once(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN and infinities never reach the file; the other values of the step do; each name is warned about once."""
    session.report(1, loss=math.nan, norm=1.5)
    session.report(2, loss=math.inf)
    session.report(3, loss=-math.inf, norm=math.nan)
    assert _lines(tmp_path) == [{"step": 1, "norm": 1.5}, {"step": 2}, {"step": 3}]
    assert capsys.readouterr().err.splitlines() == [
        "allpass: loss is nan: left out of the metrics, as JSON cannot say it",
        "allpass: norm is nan: left out of the metrics, as JSON cannot say it",
    ]


def test_what_converts_to_a_number_is_reported_as_one(session: Session, tmp_path: Path) -> None:
    """Scalars of numpy and the like arrive as plain numbers, integers stay integers."""
    import numpy as np

    session.report(1, a=np.float32(0.1), b=np.int64(7), c=2**60, d=True, e=np.array([0.5]))
    assert _lines(tmp_path) == [{"step": 1, "a": float(np.float32(0.1)), "b": 7, "c": 2**60, "d": 1, "e": 0.5}]


@pytest.mark.parametrize("value", ["0.5", b"1", None, [1.0, 2.0], {}])
def test_what_is_no_number_is_refused_by_name(session: Session, value: object) -> None:
    """The error names the metric, so that the line in the script is found."""
    with pytest.raises(TypeError, match="'accuracy'"):
        session.report(1, accuracy=value)


def test_reserved_names_are_refused(session: Session) -> None:
    """A metric cannot pretend to be a checkpoint line."""
    with pytest.raises(TypeError, match="'checkpoint'"):
        session.report(1, checkpoint=1.0)


def test_a_saved_checkpoint_is_complete_announced_and_returned(session: Session, tmp_path: Path) -> None:
    """save returns the folder of that step with what was written, and then announces its name with the metrics."""
    folder = session.save(40, _write(), metrics={"loss": 1.25})
    assert folder == tmp_path / "checkpoints" / "step-00000040"
    assert files_of(tmp_path / "checkpoints") == {"step-00000040/state": b"weights"}
    assert _lines(tmp_path) == [{"step": 40, "checkpoint": "step-00000040", "loss": 1.25}]


def test_a_checkpoint_appears_only_when_it_is_whole(session: Session, tmp_path: Path) -> None:
    """While write runs, and when it fails, no step folder is visible and nothing is announced."""
    seen: list[list[str]] = []

    def write(folder: Path) -> None:
        (folder / "half").write_text("half")
        seen.append([path.name for path in (tmp_path / "checkpoints").glob("step-*")])
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        session.save(1, write)
    assert seen == [[]]
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert not (tmp_path / "metrics.jsonl").exists()
    assert session.save(1, _write()).is_dir()


def test_an_empty_checkpoint_is_refused(session: Session) -> None:
    """A write function that creates no file is a mistake, told at once."""
    with pytest.raises(ValueError, match="must create files"):
        session.save(1, lambda folder: None)


def test_the_newest_two_are_kept(session: Session, tmp_path: Path) -> None:
    """Older checkpoints and the leavings of a killed process go; what else is in the folder stays."""
    folder = tmp_path / "checkpoints"
    (folder / ".partial-step-00000003").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    for step in (10, 20, 30, 40):
        session.save(step, _write())
    assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "step-00000030", "step-00000040"]


def test_a_folder_of_an_earlier_experiment_gives_way(
    session: Session, environment: dict[str, str], time_s: Time
) -> None:
    """Another process saving the same step replaces what it finds; the same process does not write it twice."""
    session.save(5, _write("old"))
    later = Session(environment, time_s)
    assert (later.save(5, _write("new")) / "state").read_text() == "new"
    assert (later.save(5, _write("never written")) / "state").read_text() == "new"


def test_checkpoints_are_due_at_the_interval(session: Session, time_s: Time) -> None:
    """A checkpoint is due when the interval has passed since the start or the last save, and not before."""
    assert not session.should_checkpoint(1)
    time_s.now_s += 60
    assert session.should_checkpoint(2)
    session.save(2, _write())
    assert not session.should_checkpoint(2)
    assert not session.should_checkpoint(3)
    time_s.now_s += 59.9
    assert not session.should_checkpoint(4)
    time_s.now_s += 0.1
    assert session.should_checkpoint(5)


def test_a_stop_is_served_at_the_next_saved_step(session: Session) -> None:
    """After a request to stop a checkpoint is due at once, and the process leaves with 75 once that step is saved."""
    session.exit_if_stopping(1)
    session.request_stop()
    session.exit_if_stopping(1)  # not saved: a stop that came too late for this step waits for the next
    assert session.should_checkpoint(2)
    session.save(2, _write())
    assert not session.should_checkpoint(2)
    with pytest.raises(SystemExit) as leaving:
        session.exit_if_stopping(2)
    assert leaving.value.code == EXIT_STOPPED == 75


def test_resume_tells_folder_and_step(tmp_path: Path, environment: dict[str, str], time_s: Time) -> None:
    """The checkpoint to resume from is named by the environment, and is not due to be saved again."""
    folder = tmp_path / "resume"
    folder.mkdir()
    session = Session({**environment, "ALLPASS_RESUME_DIR": str(folder), "ALLPASS_RESUME_STEP": "40"}, time_s)
    assert session.resume() == Resume(folder, 40)
    session.request_stop()
    assert not session.should_checkpoint(40)
    assert session.should_checkpoint(41)


def test_a_stop_before_the_first_step_after_resuming_leaves_at_once(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """What was resumed from is saved: a script that checks before its first step may leave without saving again."""
    folder = tmp_path / "resume"
    folder.mkdir()
    session = Session({**environment, "ALLPASS_RESUME_DIR": str(folder), "ALLPASS_RESUME_STEP": "40"})
    session.resume()
    session.request_stop()
    with pytest.raises(SystemExit):
        session.exit_if_stopping(40)


def test_the_resumed_folder_is_never_pruned(tmp_path: Path, environment: dict[str, str]) -> None:
    """A checkpoint that lies among the new ones is kept as long as the process that resumed from it."""
    folder = tmp_path / "checkpoints" / "step-00000001"
    folder.mkdir(parents=True)
    session = Session({**environment, "ALLPASS_RESUME_DIR": str(folder)})
    resume = session.resume()
    assert resume is not None
    assert resume.step == 1
    for step in (2, 3, 4):
        session.save(step, _write())
    assert sorted(path.name[-1] for path in folder.parent.iterdir()) == ["1", "3", "4"]


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"ALLPASS_RESUME_DIR": "/no/such/folder"}, FileNotFoundError),
        ({"ALLPASS_RESUME_DIR": "."}, ValueError),
        ({"ALLPASS_RESUME_DIR": ".", "ALLPASS_RESUME_STEP": "many"}, ValueError),
    ],
)
def test_a_resume_that_cannot_be_is_never_a_fresh_start(
    variables: dict[str, str], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing folder or step is an error: starting from zero would lose work without a word."""
    here = tmp_path / "no-number"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(error, match="ALLPASS_RESUME"):
        Session(variables).resume()


def test_parameters_are_laid_over_defaults(tmp_path: Path, session: Session) -> None:
    """Given parameters win; without a file the defaults stand; a list of words is refused with what to do."""
    path = tmp_path / "parameters.json"
    given = Session({"ALLPASS_PARAMETERS_FILE": str(path), "ALLPASS_TEMPLATE_FILE": str(path)})
    path.write_text('{"lr": 0.5, "extra": null}')
    assert given.parameters(lr=1.0, steps=3) == {"lr": 0.5, "steps": 3, "extra": None}
    assert given.template() == {"lr": 0.5, "extra": None}
    assert session.parameters(lr=1.0) == {"lr": 1.0}
    assert session.template() == {}
    path.write_text('["--lr", "0.5"]')
    with pytest.raises(TypeError, match=r"sys\.argv"):
        given.parameters()


def test_a_plan_is_told_where_there_is_one(tmp_path: Path, session: Session) -> None:
    """What is in the file, without what a later version adds; None without one."""
    path = tmp_path / "plan.json"
    path.write_text('{"micro_batch": 4, "accumulation": 2, "batch": 8, "a later field": []}')
    told = Session({"ALLPASS_PLAN_FILE": str(path)}).plan()
    assert told is not None
    assert (told.micro_batch, told.accumulation, told.batch, told.zero_stage) == (4, 2, 8, 0)
    assert session.plan() is None


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_an_interval_that_is_none_is_refused(text: str) -> None:
    """The variable and its value are named."""
    with pytest.raises(ValueError, match="ALLPASS_CHECKPOINT_INTERVAL_S"):
        Session({"ALLPASS_CHECKPOINT_INTERVAL_S": text})


def test_sigterm_is_noticed_and_an_earlier_handler_still_called(session: Session) -> None:
    """The handler asks for a stop and passes the signal on to whoever listened before."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        session.listen()
        assert not session.stop_requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert session.stop_requested()
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_it_says_what_it_cannot_do(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python delivers signals to the main thread: elsewhere a warning is given instead of an error."""
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=session.listen)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    assert "main thread" in capsys.readouterr().err


def test_a_script_runs_unchanged_without_allpass(tmp_path: Path) -> None:
    """With no environment at all, the loop of the documentation works in the current folder, and tells how to go on."""
    script = (
        "import os, signal\n"
        "from allpass import training\n"
        "resume = training.resume()\n"
        "for step in range(resume.step + 1 if resume else 1, 6):\n"
        "    training.report(step, loss=1 / step)\n"
        "    if step == 3 and not resume: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    if training.should_checkpoint(step):\n"
        "        training.save(step, lambda folder: (folder / 'x').write_text(str(step)))\n"
        "    training.exit_if_stopping(step)\n"
        "(training.output_dir() / 'result').write_text('done')\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ALLPASS_")}

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script]
        return subprocess.run(
            command, cwd=tmp_path, env=clean | variables, capture_output=True, text=True, timeout=60, check=False
        )

    first = run()
    folder = tmp_path / "allpass-checkpoints" / "step-00000003"
    assert (first.returncode, first.stdout) == (75, "")
    assert first.stderr == f"allpass: stopped; go on with ALLPASS_RESUME_DIR={folder}\n"
    second = run(ALLPASS_RESUME_DIR=str(folder))
    assert (second.returncode, second.stderr) == (0, "")
    lines = (tmp_path / "allpass-checkpoints" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 3, 4, 5]
    assert (tmp_path / "allpass-output" / "result").read_text() == "done"


def test_linking_a_tree_shares_its_files(tmp_path: Path) -> None:
    """A linked tree has the same files, names and bytes, and survives the removal of the original."""
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "a").write_text("1")
    (source / "deep" / "er" / "b").write_text("2")
    link_tree(source, tmp_path / "target")
    assert files_of(tmp_path / "target") == files_of(source)
    assert (tmp_path / "target" / "a").stat().st_ino == (source / "a").stat().st_ino


def test_the_helpers_are_standard_library_only_and_run_on_python_3_9() -> None:
    """No module is imported at the top that a bare Python 3.9 lacks, and no newer syntax is used."""
    files = sorted((REPOSITORY / "sdk" / "allpass" / "training").rglob("*.py"))
    assert len(files) >= 5
    for path in files:
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        if path.name == "transformers.py" or path.parent.name == "elastic":  # for code that has torch
            assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
            continue
        for node in tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names or name.startswith("allpass.training"), f"{path.name}: {name}"


# Saying that it saves when asked


def test_whoever_asks_whether_to_save_has_said_that_it_does(environment: dict[str, str], tmp_path: Path) -> None:
    """Once, and only where SIGTERM is heard: a script that merely reports has promised nothing."""
    before = signal.getsignal(signal.SIGTERM)
    session = Session(environment)
    try:
        session.listen()
        session.report(1, loss=1.0)
        assert _lines(tmp_path) == [{"step": 1, "loss": 1.0}]
        assert not session.should_checkpoint(1)
        assert not session.stop_requested()
        assert _lines(tmp_path)[1:] == [{"step": 1, "training": {"saves": True}}]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_link_is_told_once_it_can_be_shown(session: Session, tmp_path: Path) -> None:
    session.link("wandb", "https://wandb.ai/ada/runs/1")
    line = {"step": 0, "training": {"link": {"name": "wandb", "url": "https://wandb.ai/ada/runs/1"}}}
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == line
    for name, url in (("W B", "https://wandb.ai"), ("wandb", "file:///etc/passwd"), ("wandb", "https://a:b@wandb.ai")):
        with pytest.raises(ValueError, match="expected a name such as 'wandb'"):
            session.link(name, url)


def test_a_session_that_hears_no_stop_promises_nothing_unless_told_to(session: Session, tmp_path: Path) -> None:
    """A script with a handler of its own says so itself, as often as it likes."""
    session.should_checkpoint(1)
    assert not (tmp_path / "metrics.jsonl").exists()
    session.announce_saves()
    session.announce_saves()
    assert _lines(tmp_path) == [{"step": 0, "training": {"saves": True}}]


def test_on_a_laptop_nothing_is_announced(environment: dict[str, str], tmp_path: Path) -> None:
    """Nobody is there to ask."""
    before = signal.getsignal(signal.SIGTERM)
    session = Session({name: value for name, value in environment.items() if name != "ALLPASS_JOB_ID"})
    try:
        session.listen()
        session.should_checkpoint(1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "metrics.jsonl").exists()
