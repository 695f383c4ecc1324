"""The command: what it prints for people and for programs, and how it fails."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from allpass.cli.screen import Cell, Column, lay_out, printable
from tests.sdk.fake_service import KEY, NOW, FakeService, served

ALLPASS = [sys.executable, "-c", "from allpass.cli.main import main; main()"]
BOX = {"provider": "vast", "tier": "marketplace", "gpu_type": "A100", "gpu_count": 1, "price_per_hour": 710_000}


@pytest.fixture
def live(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    """A served service that the environment points to, and a folder with a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text("print(1)")
    with served(service) as url:
        monkeypatch.setenv("ALLPASS_URL", url)
        monkeypatch.setenv("ALLPASS_API_KEY", KEY)
        yield service


def call(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, list(words), input=stdin)


def finished(*words: str) -> str:
    result = call(*words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def test_run_prints_the_id_alone_when_piped(live: FakeService) -> None:
    """`JOB=$(allpass run ...)` works: one line, the job's id; options reach the request."""
    Path("t.json").write_text('{"gpu": {"type": "A100"}}')
    options = ["-t", "t.json", "-d", "6h", "-p", "lr=0.1", "-p", "name=x y", "-p", "deep=[1, true]", "--name", "My job"]
    printed = finished("run", "train.py", *options, "--max-cost", "12", "--label", "team=nlp")
    (job,) = live.jobs.values()
    assert printed == job["id"] + "\n"
    assert job["parameters"] == {"lr": 0.1, "name": "x y", "deep": [1, True]}
    assert (job["name"], job["template"]["gpu"]["type"]) == ("My job", "A100")
    assert (job["template"]["caps"]["max_cost_usd"], job["template"]["labels"]) == (12.0, {"team": "nlp"})


def test_run_passes_words_after_two_dashes(live: FakeService) -> None:
    """What follows -- is the script's argv, and the object is printed with --json."""
    printed = json.loads(finished("run", "train.py", "--json", "--", "--lr", "0.1"))
    assert printed["parameters"] == ["--lr", "0.1"]


def test_run_submits_a_sweep_from_a_file(live: FakeService) -> None:
    """A list of objects is one job each; --param goes into every one."""
    Path("sweep.yaml").write_text("- {lr: 0.1}\n- {lr: 0.01}\n")
    printed = finished("run", "train.py", "--params", "sweep.yaml", "-p", "seed=1")
    assert printed.split() == list(live.jobs)
    assert [one["parameters"] for one in live.jobs.values()] == [{"lr": 0.1, "seed": 1}, {"lr": 0.01, "seed": 1}]
    refused = call("run", "train.py", "--params", "sweep.yaml", "--follow")
    assert (refused.exit_code, len(live.jobs)) == (2, 2)
    assert refused.stderr.startswith("error: --follow: a sweep has as many logs as jobs\n  try: ")


def test_run_follow_prints_the_log_and_leaves_with_the_jobs_fate(live: FakeService) -> None:
    """stdout is the job's output alone; exit code 0 for a success, 1 for a failure with its reason."""
    for status, code in (("succeeded", 0), ("failed", 1)):

        def end(job_id: str, status: str = status) -> None:
            live.logs[job_id] = ["step 1\n", "step 2\n"]
            live.jobs[job_id].update(status=status, message="exit code 1", ended_at="2030-01-01T13:00:00Z")

        live.on_wait = end
        result = call("run", "train.py", "--follow")
        assert (result.stdout, result.exit_code) == ("step 1\nstep 2\n", code)
    assert result.stderr.startswith("error: job_")
    assert "failed: exit code 1\n  try: allpass show job_" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "gone.py"], "error: code: there is no file or folder 'gone.py'"),
        (["run", "train.py", "-d", "soon"], "error: --deadline: 'soon' is not a deadline"),
        (["run", "train.py", "-p", "lr"], "error: --param: 'lr' is not key=value\n  try: --param lr=0.1"),
        (["run", "train.py", "-p", "a=1", "-p", "a=2"], "error: --param: 'a' is given twice\n  try: a sweep is a file"),
        (["run", "train.py", "-p", "a=1", "--", "x"], "error: arguments after -- and --param(s) cannot be mixed"),
        (["run", "train.py", "--max-cost", "-1"], "error: --max-cost: '-1' is not more than nothing"),
        (["ps", "--sattus", "x"], "error: No such option: --sattus"),
        (["ps", "-n", "0"], "error: Invalid value for '-n' / '--count'"),
        (["show"], "error: Missing argument 'JOB'"),
        (["lgos"], "error: there is no command 'lgos'\n  try: allpass logs"),
    ],
)
def test_wrong_usage_is_told_with_what_to_try(live: FakeService, words: list[str], message: str) -> None:
    """Exit code 2, `error:` and `try:` on stderr, nothing on stdout, and nothing was sent."""
    result = call(*words)
    assert result.stderr.startswith(message)
    assert "\n  try: " in result.stderr
    assert (result.exit_code, result.stdout, live.requests) == (2, "", [])


def test_a_wrong_template_is_told_field_by_field(live: FakeService) -> None:
    """Each wrong field is one error with its mend, and where the schema is."""
    Path("template.json").write_text('{"training": {"batch_size": -4}, "cpus": 0}')
    result = call("run", "train.py", "-t", "template.json")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: template.json, training.batch_size: -4 is not a positive integer\n"
        '  try: "batch_size": 4\n'
        "error: template.json, cpus: 0 is not a positive integer\n"
        '  try: "cpus": 1\n'
        "  schema: allpass schema template\n"
    )


@pytest.mark.parametrize(
    "words", [["show"], ["logs"], ["events"], ["metrics"], ["checkpoints"], ["download"], ["cancel"]]
)
def test_a_job_that_is_not_there_is_exit_code_1(live: FakeService, words: list[str]) -> None:
    """Failures of the service are code 1, with its message and the request id."""
    result = call(*words, "job_none")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: there is no ")
    assert "(request req_1)" in result.stderr


def test_ps_is_a_table(live: FakeService) -> None:
    """One line per job with place, price, steps, time left and money; missing facts are dashes."""
    now = datetime.now(UTC)
    running = live.add_job(
        status="running", step=1204, total_steps=3120, cost=1_020_000, where={"node_id": "node_1", **BOX},
        soft_deadline=(now + timedelta(hours=4, minutes=51, seconds=30)).isoformat(),
        started_at=(now - timedelta(hours=1)).isoformat(),
    )  # fmt: skip
    waiting = live.add_job(status="waiting", message="renting: vast offer 8841203 boots", name="a\x1b[31m\nb")
    head, first, second = finished("ps").splitlines()
    assert head.split() == ["JOB", "NAME", "STATUS", "WHERE", "STEP", "DEADLINE", "SPENT", "ETA"]
    assert re.split(r" {3,}", first) == [
        running["id"], "Fine-tuning", "running", "vast A100 $0.71/h", "1204/3120", "4h 51m", "$1.02", "1h 35m",
    ]  # fmt: skip
    assert "\x1b" not in second
    assert "renting: vast offer 8841203 boots" in second
    assert second.startswith(waiting["id"])


def test_json_shapes_are_the_wire_models(live: FakeService) -> None:
    """--json of each list is an array of what the API gives, and stays empty without entries."""
    assert json.loads(finished("ps", "--json")) == []
    job = live.add_job(status="running")
    live.add_event(job["id"], "submitted")
    live.metrics[job["id"]] = [{"step": 1, "at": "2030-01-01T00:00:00Z", "values": {"loss": 0.5, "lr": 1.0}}]
    assert json.loads(finished("ps", "--json"))[0]["id"] == job["id"]
    assert set(json.loads(finished("show", job["id"], "--json"))) == {"job", "timeline", "sizes", "last_lines"}
    assert json.loads(finished("events", job["id"], "--json"))[0]["kind"] == "submitted"
    assert json.loads(finished("metrics", job["id"], "-m", "loss", "--json"))[0]["values"] == {"loss": 0.5}
    assert [one["step"] for one in json.loads(finished("checkpoints", job["id"], "--json"))] == [10, 20]
    assert json.loads(finished("nodes", "--json")) == []
    assert json.loads(finished("cancel", job["id"], "--json"))[0]["status"] == "cancelled"
    live.logs[job["id"]] = ["a\n", "b"]
    pieces = [json.loads(line) for line in finished("logs", job["id"], "--json").splitlines()]
    assert [(one["text"], one["next_position"]) for one in pieces] == [("a\n", "1"), ("b", "2")]
    assert finished("logs", job["id"], "--position", "1") == "b"


def test_show_of_a_failed_job_begins_with_its_own_traceback(live: FakeService) -> None:
    """The script's last words come first, from the event that has them, else from the log."""
    trace = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: boom'
    job = live.add_job(status="failed", message="exit code 1", cost=3_200)
    live.logs[job["id"]] = ["epoch 1\n", trace[:30], trace[30:] + "\n"]
    printed = finished("show", job["id"])
    assert printed.startswith(trace + f"\n\n{job['id']}   failed: exit code 1\n")
    assert "$0.0032" in printed
    live.add_event(job["id"], "run_ended", last_lines="other\n" + trace.replace("boom", "bang"))
    assert finished("show", job["id"]).startswith(trace.replace("boom", "bang"))


def test_show_says_what_a_spot_job_has_not_paid(live: FakeService) -> None:
    """Beside what it has, also where that is nothing; nothing of it where there was no discount."""
    job = live.add_job(status="running", cost=3_000_000, spot_discount=7_000_000)
    assert re.search(r"cost +\$3.00, as a spot job \$7.00 less\n", finished("show", job["id"]))
    free = live.add_job(status="succeeded", ended_at="2030-01-01T00:00:00Z", cost=0, spot_discount=1_000_000)
    assert re.search(r"cost +nothing, as a spot job \$1.00 less\n", finished("show", free["id"]))
    other = live.add_job(status="running", cost=3_000_000, spot_discount=None)
    assert re.search(r"cost +\$3.00\n", finished("show", other["id"]))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"leads": True}, "first, then job_2, 31% faster expected"),
        ({"leads": False}, "after job_2, from what that has learned, 31% faster expected"),
        ({"mode": "together"}, "together with job_2, 31% faster expected"),
        ({"mode": "together", "state": "split"}, "together with job_2 (split)"),
    ],
    ids=["leads", "companion", "together", "split"],
)
def test_show_says_with_whom_a_job_is_trained(live: FakeService, facts: dict[str, Any], words: str) -> None:
    """Which way, and what is expected of it, or how it ended; nothing of it for a job that was never merged."""
    merge = {
        "id": "merge_1", "partner_id": "job_2", "leads": True, "mode": "in-turn", "state": "open", "score": 0.8,
        "expected_gain": 0.31, "reason": "they help each other", "begun_at": "2030-01-01T00:00:00Z", **facts,
    }  # fmt: skip
    job, other = live.add_job(status="running", merge=merge), live.add_job(status="running")
    assert re.search(rf"merge +{re.escape(words)}\n", finished("show", job["id"]))
    assert "merge" not in finished("show", other["id"])


def test_download_says_what_arrived(live: FakeService) -> None:
    """Files land in a folder named after the job."""
    job = live.add_job(status="succeeded")
    live.add_artifact(job["id"], "model.bin", b"w" * 2000)
    assert finished("download", job["id"]) == f"1 file, 2.0 kB, in {job['id']}\n"
    assert Path(job["id"], "model.bin").read_bytes() == b"w" * 2000


def test_nodes_are_listed_with_their_price(live: FakeService) -> None:
    """Only machines that are paid for, unless --all."""
    base = {
        **BOX, "gpu_memory_bytes": 1, "region": "eu", "state": "ready", "job_ids": ["job_1"], "ended_at": None,
        "requested_at": "2030-01-01T00:00:00Z", "ready_at": "2030-01-01T00:00:00Z", "cost": 500_000,
    }  # fmt: skip
    live.nodes = [{**base, "id": "node_1"}, {**base, "id": "node_2", "ended_at": "2030-01-01T01:00:00Z"}]
    assert "node_2" not in finished("nodes")
    assert re.search(r"node_2 +vast A100 \$0\.71/h +ready +1h 00m +\$0\.50 +job_1", finished("nodes", "--all"))


def test_pressure_tells_what_was_seen_and_chosen(live: FakeService) -> None:
    """A line per decision, newest first; what a policy does not measure is a dash."""
    assert finished("pressure") == ""  # the remark is for people
    seen = {
        "id": 2, "at": NOW, "policy": "allpass", "trigger": "tick", "pressure": 1.256, "serverless_budget_s": 290.4,
        "capacity_gpus": 2.0, "demand_gpu_s": 4500.0, "jobs_waiting": 3, "nodes": {"serverless": 1},
        "actions": {"start": 2, "release": 1}, "reasons": [], "duration_ms": 7,
    }  # fmt: skip
    blind = {"pressure": None, "serverless_budget_s": None, "capacity_gpus": None, "demand_gpu_s": None, "actions": {}}
    live.decisions = [seen, {**seen, "id": 1, **blind}]
    newest, oldest = finished("pressure").splitlines()[1:]
    assert re.search(r"1\.26 +290 s +4500 GPU s +2 +3 +2 start, 1 release$", newest)
    assert re.search(r"- +- +- +- +3 +nothing$", oldest)
    assert [one["id"] for one in json.loads(finished("pressure", "-n", "1", "--json"))["decisions"]] == [2]


def test_login_checks_and_remembers(live: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is read from stdin, tried, and kept; a wrong one is refused and not kept."""
    monkeypatch.delenv("ALLPASS_API_KEY")
    monkeypatch.delenv("ALLPASS_URL")
    wrong = call("login", live.base, stdin="nonsense\n")
    assert (wrong.exit_code, "this API key is not known" in wrong.stderr) == (1, True)
    assert call("ps").stderr.startswith("error: no Allpass server is configured\n  try: allpass up")
    assert KEY not in call("login", live.base, stdin=f"{KEY}\n").output
    assert json.loads(finished("ps", "--json")) == []


def test_schema_template_is_json_schema() -> None:
    """The printed schema is JSON and names the fields."""
    assert "gpu" in json.loads(finished("schema", "template"))["properties"]


@pytest.mark.parametrize("name", sorted(cli.BUILT_IN))
def test_every_help_opens_with_an_example_that_parses(name: str) -> None:
    """Help begins with an example of that very command, and documents --json where there is one."""
    printed = finished(name, "--help")
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    assert lines[0].startswith("Usage: ")
    assert lines[1].startswith(f"Example: allpass {name}")
    assert all(len(line) <= 100 for line in printed.splitlines())


def test_help_lists_every_command_and_needs_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`allpass` alone is help; an added command that cannot be loaded does not spoil the list."""
    broken = importlib.metadata.EntryPoint("broken", "no.such:thing", cli.ENTRY_POINT_GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: [broken])
    printed = finished()
    assert all(re.search(rf"^  {name} ", printed, re.MULTILINE) for name in cli.BUILT_IN)
    assert re.search(r"^  broken +\(could not be loaded", printed, re.MULTILINE)
    assert isinstance(call("broken").exception, ModuleNotFoundError)


def test_added_commands_are_found_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain function and a Typer from the entry-point group are commands like any other."""
    group = typer.Typer()
    group.callback()(lambda: None)
    group.command("inner")(lambda: typer.echo("inside"))

    def outer(count: int = 1) -> None:
        """Example: allpass outer --count 2

        Say it often. And more.
        """
        typer.echo("out" * count)

    added: dict[str, Any] = {"outer": outer, "group": group}
    points = [importlib.metadata.EntryPoint(name, "m:f", cli.ENTRY_POINT_GROUP) for name in added]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: added[self.name])
    assert finished("outer", "--count", "2") == "outout\n"
    assert finished("group", "inner") == "inside\n"
    assert re.search(r"^  outer +Say it often$", finished("--help"), re.MULTILINE)


@pytest.mark.parametrize("name", ["up", "demo"])
def test_without_the_server_its_commands_say_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Only the client is installed: the error names the package."""
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    result = call(name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: `allpass {name}` is part of the server, which is not installed here\n"
        "  try: pip install allpass-server\n"
    )


def test_version_is_printed() -> None:
    """--version names the version."""
    assert finished("--version") == f"allpass {importlib.metadata.version('allpass')}\n"


def test_tables_fit_and_text_is_harmless() -> None:
    """Flexible columns give way first, then those with a rank, which fold; control characters reach no terminal."""
    columns = [Column("A"), Column("B", flexible=True), Column("C", flexible=True, rank=1, fold=True)]
    rows = [[Cell("x" * 24), Cell("y" * 80), Cell("z" * 30)]]
    for widest in (150, 100, 72, 45):
        layout = lay_out(columns, rows, widest)
        assert layout.widths[0] == 24
        assert sum(layout.widths) + len(layout.gap) * (len(layout.widths) - 1) <= widest
        assert layout.below == (() if widest > 45 else (2,))
    assert lay_out(columns, rows, 150).widths == (24, 80, 30)
    assert lay_out(columns, rows, 10).widths == (24, 6), "an id is never cut"
    assert printable("a\x1b]0;x\x07\nb\u202e") == "a ]0;x  b"


def test_a_terminal_gets_colours_unless_it_said_no(live: FakeService) -> None:
    """On a terminal the status is coloured and the table fits it; NO_COLOR and pipes get plain text, one line a job,
    with long names cut (--json has them whole)."""
    live.add_job(status="running", name="n" * 200, where={"node_id": "node_1", **BOX})
    coloured, plain = on_a_terminal(["ps"]), on_a_terminal(["ps"], NO_COLOR="1")
    assert "\x1b[32mrunning\x1b[0m" in coloured
    assert "\x1b" not in plain
    assert max(len(line) for line in plain.splitlines()) <= 120
    assert "\x1b" not in finished("ps")
    assert "n" * 39 + "…" in finished("ps")
    assert "n" * 200 in finished("ps", "--json")


def on_a_terminal(words: list[str], **extra: str) -> str:
    import pty

    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", **extra}
    with subprocess.Popen([*ALLPASS, *words], stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        parts = []
        while True:
            try:
                part = os.read(controller, 65536)
            except OSError:  # the terminal's other end is gone: all was read
                break
            if not part:
                break
            parts.append(part)
        process.wait(30)
    os.close(controller)
    assert process.returncode == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_ctrl_c_ends_cleanly(live: FakeService) -> None:
    """An interrupted follow leaves with 130, without a traceback, and the job is not touched."""
    job = live.add_job(status="running")
    live.logs[job["id"]] = ["step 1\n"]
    live.on_wait = lambda job_id: time.sleep(0.05)
    with subprocess.Popen(
        [*ALLPASS, "logs", "-f", job["id"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "step 1\n"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=30)
    assert (process.returncode, complaint.strip(), job["status"]) == (130, "", "running")


def test_a_reader_that_leaves_is_no_error(live: FakeService) -> None:
    """`allpass logs | head -1` ends quietly."""
    job = live.add_job(status="succeeded")
    live.logs[job["id"]] = ["x" * 60_000 + "\n"] * 8
    command = f"{sys.executable} -c 'from allpass.cli.main import main; main()' logs {job['id']} | head -c 5"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("xxxxx", "")


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import allpass.training", {"httpx", "pydantic", "typer", "rich", "yaml", "allpass.wire"}),
        ("import allpass", {"httpx", "pydantic", "typer"}),
        ("import sys; sys.argv = ['allpass', 'ps', '--help']; import allpass.cli.main as m", {"app", "httpx", "rich"}),
    ],
)
def test_what_is_not_needed_is_not_loaded(statement: str, forbidden: set[str]) -> None:
    """Training helpers work without any package, and help loads neither the client nor the server."""
    script = (
        f"{statement}\n"
        "import sys\n"
        "try:\n"
        "    'm' in globals() and m.main()\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        f"print(sorted({forbidden!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.stdout.splitlines()[-1:]) == ("", ["[]"])


def test_training_parses_on_python_3_9(repository_root: Path) -> None:
    """The helpers and the package's front door are valid for Python 3.9."""
    package = repository_root / "sdk/allpass"
    for path in [package / "__init__.py", package / "__main__.py", *(package / "training").rglob("*.py")]:
        ast.parse(path.read_text(), filename=str(path), feature_version=(3, 9))


def test_an_older_python_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's libraries are not installed there: the version says why, not the first module that is missing."""
    import allpass

    monkeypatch.setattr(allpass, "LEAST_PYTHON", (99, 1))
    with pytest.raises(ImportError, match=r"needs Python 99\.1 or newer, and this is 3\."):
        _ = allpass.build
    script = "import allpass; allpass.LEAST_PYTHON = (99, 1); from allpass.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "ps"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: Allpass needs Python 99.1 or newer")


def test_names_stay_functions_after_their_modules_are_loaded() -> None:
    """`allpass.build` is the function, also after every module of the package has been imported."""
    import allpass
    import allpass.app

    assert callable(allpass.build)
    assert all(getattr(allpass, name) is not None for name in allpass.__all__)
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        _ = allpass.biuld
