"""`allpass trace`: from a published log, or from nothing, to a file that the simulator reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from allpass.cli.faults import exit_code_of
from allpass.cli.main import app
from app.simulator.traces.generating import generate
from app.simulator.traces.reading import read_trace

S240 = Path(__file__).parent / "data" / "s240.csv"


def trace(*words: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, words)])


def test_generate_to_a_file_and_to_stdout(tmp_path: Path) -> None:
    """The same jobs either way, and the same again with the same seed."""
    words = ("generate", "--like", "kalos", "--jobs", 30, "--seed", 4)
    to_file = trace(*words, "--out", tmp_path / "k.csv.gz")
    assert (to_file.exit_code, to_file.stdout) == (0, "")
    assert read_trace(tmp_path / "k.csv.gz").jobs == generate("kalos", 30, 4).jobs
    printed = trace(*words)
    (tmp_path / "p.csv").write_text(printed.stdout)
    assert read_trace(tmp_path / "p.csv").jobs == generate("kalos", 30, 4).jobs


def test_sample_by_the_recipe_and_with_changes(tmp_path: Path) -> None:
    """200 jobs by default; options replace parts of the recipe."""
    assert trace("sample", S240, "--recipe", "section-5.1", "-o", tmp_path / "a.csv").exit_code == 0
    usual = read_trace(tmp_path / "a.csv")
    assert len(usual.jobs) == 200
    assert usual.jobs[0].duration_s == 950 / 5
    changed = ("--jobs", 10, "--durations-by", 1, "--gaps-by", 2, "--start", 90)
    assert trace("sample", S240, *changed, "-o", tmp_path / "b.csv").exit_code == 0
    few = read_trace(tmp_path / "b.csv")
    assert [(job.job_id, job.submit_s) for job in few.jobs[:2]] == [("1", 0), ("2", 27.5)]
    assert few.jobs[0].duration_s == 1072
    assert trace("sample", S240, "--mode", "random", "--seed", 3, "-o", tmp_path / "c.csv").exit_code == 0
    assert read_trace(tmp_path / "c.csv").jobs != usual.jobs


def test_import_a_published_log(tmp_path: Path) -> None:
    """Its GPU jobs, in the columns of the simulator."""
    log = tmp_path / "cluster_log.csv"
    log.write_text(
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "7,u,v,2,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:31,2020-06-09 18:42:31,60,30\n"
    )
    assert trace("import", "helios", log, "-o", tmp_path / "out.csv").exit_code == 0
    (job,) = read_trace(tmp_path / "out.csv").jobs
    assert (job.job_id, job.submit_s, job.duration_s, job.gpus) == ("7", 0, 60, 2)


def test_show_as_a_table_and_as_json() -> None:
    """The table has the figures with their units, the object has them as numbers."""
    table = " ".join(trace("show", S240).stdout.split())
    assert "trace s240 jobs 240" in table
    assert "run time, median 16.2 min" in table
    assert "jobs on 1 GPU 138 (57.5%) jobs on 2 GPUs 36 (15.0%)" in table
    told = json.loads(trace("show", S240, "--json").stdout)
    assert (told["jobs"], told["jobs_by_gpus"]["16"], told["gpu_hours"]) == (240, 5, pytest.approx(421.8, abs=0.1))
    assert json.loads(trace("show", S240, "--json", "--start", 100, "--most-jobs", 3).stdout)["jobs"] == 3


def test_show_leaves_out_what_is_not_there(tmp_path: Path) -> None:
    """Deadlines and users are told if there are any; a trace of one job has no load."""
    plain = trace("show", S240).stdout
    assert "deadline" not in plain
    assert "users" not in plain
    file = tmp_path / "one.csv"
    file.write_text("job_id,submit_time_s,duration_s,num_gpus,user,deadline_s\na,0,9000,1,ann,99\nb,0,,1,,\n")
    table = " ".join(trace("show", file).stdout.split())
    assert "rows left out 1" in table
    assert "run time, longest 2.5 h" in table
    assert "GPUs busy on average -" in table
    assert "with a deadline 1 users 1" in table


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("generate", "--like", "borg"), "like: 'borg' is none of seren, kalos, philly"),
        (("sample", S240, "--recipe", "mine"), "recipe: 'mine' is none of section-5.1"),
        (("sample", S240, "--mode", "first"), "mode: 'first' is none of contiguous, random"),
        (("sample", S240, "--jobs", 500), "jobs: s240 has 240 jobs that run for any time, fewer than 500"),
        (("import", "borg", S240), "source: 'borg' is none of philly, helios, acme, alibaba"),
        (("import", "acme", S240), "line 1: there is no column user"),
        (("show", "none.csv"), "none.csv: there is no such file; check the path"),
    ],
)
def test_mistakes_are_told(words: tuple[object, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As one line that names the value and what is accepted, with the exit code of wrong usage."""
    code = exit_code_of(lambda: app(["trace", *map(str, words)], standalone_mode=False))
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert f"error: {told}" in printed.err.replace(f"{S240} ", "")
