"""`allpass simulate`: what people and programs get, what is written, what is refused, and how it is stopped."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from allpass.cli import main as cli
from app.simulator.traces.reading import read_trace, write_trace
from tests.documents import blocks_of
from tests.simulator.small import small_trace

S240 = Path(__file__).parent / "data" / "s240.csv"
ORIGINAL = Path(__file__).parent / "data" / "s240_tiresias.csv"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "simulate.md"
ALLPASS = [sys.executable, "-c", "from allpass.cli.main import main; main()"]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a small trace, in an empty folder to write to."""
    monkeypatch.chdir(tmp_path)
    write_trace(small_trace(), tmp_path / "small.csv")
    return "small.csv"


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["simulate", *words])


def printed(*words: str) -> str:
    result = call(*words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def objects(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(*words, "--json"))
    return found


def refused(*words: str) -> str:
    result = call(*words)
    assert (result.exit_code, result.stdout) in ((1, ""), (2, "")), result.output
    return result.stderr


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open() as file:
        return list(csv.DictReader(file))


def test_the_table_is_for_people(jobs: str) -> None:
    """What is simulated, a row for each policy, what columns mean, a comparison in words; within 100 columns."""
    text = printed("--trace", jobs, "--policy", "allpass", "--policy", "hpa-conventional", "--policy", "clairvoyant")
    assert max(len(line) for line in text.splitlines()) <= 100
    assert text.startswith("small: 20 jobs on one GPU each, 7.6 GPU-hours of work, submitted within 12m 40s\n")
    assert [line.split()[0] for line in text.splitlines()[4:8]] == [
        "POLICY",
        "allpass",
        "hpa-conventional",
        "clairvoyant",
    ]
    sentence = " ".join(text.split("\n\n")[-1].split())
    assert sentence.startswith("allpass costs $")
    assert "for all 20 jobs:" in sentence
    assert "less than hpa-conventional" in sentence
    assert "more than the bound clairvoyant; its jobs end after" in sentence
    assert sentence.endswith("sooner than hpa-conventional.")


def test_without_a_trace_jobs_are_generated(jobs: str) -> None:
    """200 like Seren's, which the first line says, in a world in which jobs move; the usual policies and the bound."""
    text = printed("--startup", "mean")
    assert text.startswith("seren-200-0: 200 jobs")
    assert "knowledge after:60:0.2, deadlines 1-10,\nmove-seconds 5" in text
    told = re.search(r"for all 200 jobs \((\d+) moves\):", " ".join(text.split()))
    assert told is not None
    assert int(told[1]) > 10
    assert [line.split()[0] for line in text.splitlines()[5:9]] == [
        "allpass",
        "allpass-drain",
        "modal-only",
        "clairvoyant",
    ]


def test_a_world_with_moves_is_for_generated_jobs_alone(jobs: str) -> None:
    """A trace is simulated under the paper's assumptions, as a program's is; what is said goes over both, in an option
    or in a file."""
    assert "knowledge submit:0.2" in printed("--trace", jobs, "--policy", "modal-only")
    assert "move-seconds 84" in printed("--trace", jobs, "--policy", "modal-only")
    words = ("--most-jobs", "5", "--policy", "modal-only")
    text = printed(*words, "--knowledge", "none", "--config", _config("moves: {save_ms: 1000}\n"))
    assert "knowledge none" in text
    assert "moves.save_ms 1000" in " ".join(text.split())


def test_where_prices_move_the_usual_policies_come_without_the_bound(jobs: str) -> None:
    """It would be none."""
    assert list(objects("--trace", jobs, "--market", "calm")["policies"]) == ["allpass", "allpass-drain", "modal-only"]
    (_, calm) = objects("--trace", jobs, "--sweep", "market=flat,calm")["values"]
    assert list(calm["policies"]) == ["allpass", "allpass-drain", "modal-only"]


def test_json_is_one_object_of_means(jobs: str) -> None:
    """Exactly trace, jobs and policies, and over two seeds how they differ; each figure is the mean of both."""
    words = ("--trace", jobs, "--policy", "modal-only", "--policy", "sjf")
    both = objects(*words, "--seeds", "2")
    assert list(both) == ["trace", "jobs", "policies", "spread", "against"]
    assert list(objects(*words)) == ["trace", "jobs", "policies"]
    assert (both["trace"], both["jobs"], list(both["policies"])) == ("small", 20, ["modal-only", "sjf"])
    each = [objects(*words, "--seed", str(seed))["policies"]["sjf"]["mean_jct_s"] for seed in (0, 1)]
    assert both["policies"]["sjf"]["mean_jct_s"] == pytest.approx(sum(each) / 2)


def test_over_several_seeds_a_table_says_how_sure_the_differences_are(jobs: str) -> None:
    """One row for each other policy, with its intervals; none for a single seed, or a single policy."""
    words = ("--trace", jobs, "--policy", "allpass", "--policy", "modal-only")
    text = printed(*words, "--seeds", "3")
    assert max(len(line) for line in text.splitlines()) <= 100
    heading, row = next((one, row) for one, row in pairwise(text.splitlines()) if one.startswith("AGAINST"))
    assert heading.split() == ["AGAINST", "COST", "MEAN", "WAIT", "LATE"]
    assert re.match(r"modal-only +-\$\d+\.\d\d \+-\$\d+\.\d\d", row)
    assert "allpass less each other one, seed by seed: the mean over 3 seeds" in text
    assert "AGAINST" not in printed(*words)
    assert "AGAINST" not in printed(*words[:4], "--seeds", "3")


def test_machines_of_one_s_own_are_filled_first(jobs: str) -> None:
    """Named once or several times; the bound is none then, and is left out; what they cost is told apart."""
    words = ("--trace", jobs, "--pool", "4xA100", "--pool", "lab:2x2xH100@0.40")
    found = objects(*words)["policies"]
    assert list(found) == ["allpass", "allpass-drain", "modal-only"]
    assert found["allpass"]["gpu_hours_by_provider"]["joined"] > 4
    assert 0 < found["allpass"]["cost_by_provider_usd"]["joined"] < 3
    assert (
        found["allpass"]["cost_usd"]
        < objects("--trace", jobs, "--policy", "allpass")["policies"]["allpass"]["cost_usd"]
    )
    text = " ".join(printed(*words, "--policy", "allpass", "--per-job", "out.csv", "--report", "out").split())
    assert "pool 4xA100+lab:2x2xH100@0.40" in text
    assert {row["tiers"].split(">")[0] for row in rows("out.csv")} >= {"own"}
    assert "began on a machine of one's own" in Path("out/report.html").read_text().replace("&#x27;", "'")
    (_, pooled) = objects("--trace", jobs, "--sweep", "pool=none,4xA100", "--policy", "allpass")["values"]
    assert pooled["policies"]["allpass"]["gpu_hours_by_provider"]["joined"] > 4


def test_a_pool_that_is_none_is_refused(jobs: str) -> None:
    assert "--pool: '8' is no pool; write [NAME:][HOSTSx]GPUSxTYPE[@USD]" in refused("--trace", jobs, "--pool", "8")
    assert "take --pool none" in refused("--trace", jobs, "--pool", "8xA100", "--policy", "clairvoyant")


def test_options_reach_the_simulation(jobs: str) -> None:
    """GPUs as in the trace cost more; a limit of one node holds; a part of the trace has fewer jobs."""
    words = ("--trace", jobs, "--policy", "clairvoyant", "--policy", "sjf")
    plain, wide = objects(*words), objects(*words, "--gpus", "trace")
    assert wide["policies"]["clairvoyant"]["cost_usd"] > plain["policies"]["clairvoyant"]["cost_usd"] * 1.1
    tight = objects(*words, "--serverful-limit", "1", "--config", _config("budget: {first_ms: 1000}\n"))
    assert tight["policies"]["sjf"]["peak_nodes"] == 1 < plain["policies"]["sjf"]["peak_nodes"]
    assert objects(*words, "--start", "100", "--most-jobs", "7")["jobs"] == 7


def _config(text: str) -> str:
    Path("settings.yaml").write_text(text)
    return "settings.yaml"


def test_what_became_of_each_job(jobs: str) -> None:
    """One line a job with what it took; the figures follow from the lines."""
    found = objects("--trace", jobs, "--policy", "fixed-threshold", "--per-job", "out.csv")["policies"]
    lines = rows("out.csv")
    assert list(lines[0]) == ["job_id", "submit_s", "finish_s", "jct_s", "cost_usd", "tiers", "missed"]
    assert [line["job_id"] for line in lines] == [job.job_id for job in small_trace().jobs]
    figures = found["fixed-threshold"]
    times = [float(line["jct_s"]) for line in lines]
    assert sum(times) / 20 == pytest.approx(figures["mean_jct_s"])
    assert times == pytest.approx([float(line["finish_s"]) - float(line["submit_s"]) for line in lines])
    assert sum(int(line["missed"]) for line in lines) == figures["deadline_misses"]
    assert {line["tiers"] for line in lines} == {"serverless", "serverless>marketplace"}
    assert sum(line["tiers"] == "serverless" for line in lines) == figures["share_serverless"] * 20
    assert 0 < sum(float(line["cost_usd"]) for line in lines) <= figures["cost_usd"]


def test_several_policies_write_a_file_each(jobs: str) -> None:
    """Named after the policy."""
    printed("--trace", jobs, "--policy", "modal-only", "--policy", "clairvoyant", "--per-job", "out.csv")
    assert sorted(path.name for path in Path().glob("out*")) == ["out.clairvoyant.csv", "out.modal-only.csv"]
    assert {line["tiers"] for line in rows("out.clairvoyant.csv")} == {"marketplace"}


def test_a_sweep_is_one_table(jobs: str) -> None:
    """A row for each value (and policy), of an option or of a setting; programs get a list."""
    text = printed("--trace", jobs, "--policy", "sjf", "--sweep", "serverful-limit=1,2,none")
    assert [line.split()[0] for line in text.splitlines() if line and line.split()[0] in ("1", "2", "none")] == [
        "1",
        "2",
        "none",
    ]
    assert max(len(line) for line in text.splitlines()) <= 100
    found = objects("--trace", jobs, "--policy", "fixed-threshold", "--sweep", "serverless_budget_ms=1000,10000000")
    assert list(found) == ["trace", "jobs", "sweep", "values"]
    assert found["sweep"] == "serverless_budget_ms"
    first, last = (one["policies"]["fixed-threshold"]["share_serverless"] for one in found["values"])
    assert [one["value"] for one in found["values"]] == ["1000", "10000000"]
    assert first == 0.0
    assert last == 1.0


@pytest.mark.parametrize("schedule", ["fifo", "dlas-gpu"])
def test_compat_replays_as_the_original(jobs: str, schedule: str) -> None:
    """Each line of --per-job is what the public Tiresias simulator says of the job; the figures follow from them."""
    words = ("--compat", "tiresias", "--gpus", "128", "--trace", str(S240), "--policy", schedule)
    found = objects(*words, "--per-job", "out.csv")
    expected = {row["job_id"]: row for row in rows(str(ORIGINAL)) if row["schedule"] == schedule}
    lines = rows("out.csv")
    assert {line["job_id"]: (line["finish_s"], line["jct_s"]) for line in lines} == {
        job_id: (row["end_time"], row["JCT"]) for job_id, row in expected.items()
    }
    mean = sum(int(row["JCT"]) for row in expected.values()) / len(expected)
    assert found["policies"][schedule]["mean_jct_s"] == pytest.approx(mean)
    assert found["jobs"] == len(read_trace(S240).jobs) == len(lines)


def test_compat_plays_all_schedules_and_tells_what_never_ends(jobs: str) -> None:
    """On two GPUs most jobs of that trace never end; the table says how many."""
    text = printed("--compat", "tiresias", "--gpus", "2", "--trace", jobs)
    assert [line.split()[0] for line in text.splitlines()[3:]] == [
        "fifo",
        "fjf",
        "shortest",
        "shortest-gpu",
        "dlas-gpu",
    ]
    one = objects("--compat", "tiresias", "--gpus", "1", "--trace", jobs, "--policy", "fifo", "--per-job", "o.csv")
    figures = one["policies"]["fifo"]
    assert figures["unfinished"] == sum(line["finish_s"] == "" for line in rows("o.csv")) > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "alpass"], "'alpass' is not known; the nearest is allpass"),
        (["--gpus", "128"], "with --compat a number"),
        (["--compat", "tiresias"], "--gpus: with --compat it is how many GPUs the cluster has, not left out"),
        (["--compat", "tiresias", "--gpus", "one"], "not one; give for instance --gpus 128"),
        (["--compat", "tiresias", "--gpus", "8", "--market", "calm"], "--market: means nothing with --compat"),
        (["--compat", "tiresias", "--gpus", "8", "--policy", "allpass"], "'allpass' is none of fifo"),
        (["--compat", "slurm", "--gpus", "8"], "'slurm' is not known; there is tiresias"),
        (["--market", "calm", "--policy", "clairvoyant"], "clairvoyant: is a bound for flat prices only"),
        (["--policy", "sjf", "--serverful-limit", "0"], "policy sjf: 20 jobs wait for something that never comes"),
        (["--sweep", "tick_ms"], "'tick_ms' is not KEY=a,b,c"),
        (["--sweep", "tick_ms=1000,0"], "tick_ms: '0' does not do"),
        (["--sweep", "tick_ms=1000", "--per-job", "o.csv"], "--per-job: cannot go with --sweep"),
        (["--sweep", "tick_ms=1000", "--report", "o"], "--report: cannot go with --sweep"),
        (["--per-job", "nowhere/o.csv"], "--per-job nowhere/o.csv: the folder nowhere is not there"),
        (["--per-job", "."], "--per-job .: is a folder"),
        (["--report", "small.csv"], "--report small.csv: cannot be made"),
        (["--config", "small.csv"], "--config small.csv: holds no object"),
        (["--deadlines", "trace"], "job job-00 of line 2 has no deadline_s"),
        (["--trace", "none.csv"], "none.csv: there is no such file"),
    ],
)
def test_what_is_refused(jobs: str, words: list[str], said: str) -> None:
    """Before anything is simulated, with the option, its value and what would do."""
    given = words if "--trace" in words else ["--trace", jobs, *words]
    assert said in refused(*given)


def test_the_guide_can_be_followed(jobs: str) -> None:
    """Every command of it works, on fewer jobs and cases; the settings that it shows are some."""
    text = "".join(one.text for one in blocks_of(GUIDE, "sh"))
    text = text.replace("--jobs 200", "--jobs 20").replace("--search-regret 20", "--search-regret 2")
    (settings,) = re.findall(r"cat > settings.yaml <<'END'\n(.*?)^END$", text, re.DOTALL | re.MULTILINE)
    Path("settings.yaml").write_text(settings)
    (measured,) = re.findall(r"cat > measured.json <<'END'\n(.*?)^END$", text, re.DOTALL | re.MULTILINE)
    Path("measured.json").write_text(measured)
    (ranges,) = re.findall(r"cat > ranges.csv <<'END'\n(.*?)^END$", text, re.DOTALL | re.MULTILINE)
    Path("ranges.csv").write_text(ranges)
    Path("prices.csv").write_text("time_s,usd_per_gpu_hour,provider,gpu_type\n0,0.8,runpod,A100\n0,0.9,other,A100\n")
    commands = re.findall(r"^allpass (.*)$", text, re.MULTILINE)
    assert len(commands) >= 9
    for command in commands:
        result = CliRunner().invoke(cli.app, shlex.split(command))
        assert result.exit_code == 0, f"{command}: {result.output}"
    assert (Path("out") / "report.html").exists()


def test_exit_codes(jobs: str) -> None:
    """2 for wrong usage, 1 for a simulation that has no end; the error is on stderr and stdout stays empty."""
    for words, code in ((["--policy", "nobody"], 2), (["--policy", "sjf", "--serverful-limit", "0"], 1)):
        done = subprocess.run(
            [*ALLPASS, "simulate", "--trace", jobs, *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith("error: ")


def test_progress_for_a_person_and_a_clean_stop(jobs: str) -> None:
    """At a terminal the share that is done is told with a rate and an estimate; Ctrl-C ends it at once with 130, no
    traceback, and no process left."""
    ours, theirs = pty.openpty()
    words = ["simulate", "--trace", jobs, "--policy", "hpa", "--seeds", "3000"]
    process = subprocess.Popen([*ALLPASS, *words], stdout=subprocess.PIPE, stderr=theirs, start_new_session=True)
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 90
    while b"left" not in seen and time.monotonic() < deadline:
        seen += os.read(ours, 4096)
    assert b" of 3000 simulations (" in seen
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    stdout, _ = process.communicate(timeout=90)
    seen += _rest_of(ours)
    assert (process.returncode, stdout) == (130, b"")
    assert b"Traceback" not in seen
    while _is_anybody_in(process.pid):  # the pool's own bookkeeper sees the pipe closed and leaves
        assert time.monotonic() < deadline + 90
        time.sleep(0.02)


def _rest_of(terminal: int) -> bytes:
    """What is still to be read of it, now that nobody writes."""
    found = b""
    while True:
        try:
            found += os.read(terminal, 4096)
        except OSError:  # the other side is closed
            os.close(terminal)
            return found


def _is_anybody_in(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
