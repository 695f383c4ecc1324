"""`allpass simulate --world`, the same from a program, and figures from benchmarks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from allpass import simulate
from allpass.cli import main as cli
from app.errors import InvalidInput
from app.simulator.regret import Case
from app.simulator.traces.reading import write_trace
from app.simulator.worlds.known import FRIENDLY
from benchmarks import calibration
from tests.simulator.small import small_trace

BESIDE = {"failed_starts", "mean_fetch_s", "mean_saving_s", "storage_usd", "traffic_usd"}


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


def test_without_a_world_it_is_the_friendly_one(jobs: str) -> None:
    """To the byte, for people and for programs; no figure has come up in it."""
    for words in (("--seeds", "2", "--json"), ("--policy", "allpass")):
        assert printed("--trace", jobs, *words) == printed("--trace", jobs, "--world", "friendly", *words)
    figures = json.loads(printed("--trace", jobs, "--json"))["policies"]["allpass"]
    assert not BESIDE & set(figures)


def test_a_world_is_told_and_has_figures_of_its_own(jobs: str) -> None:
    assert "world harsh, serverful-limit none" in printed("--trace", jobs, "--world", "harsh", "--policy", "allpass")
    words = ("--trace", jobs, "--world", "harsh", "--seeds", "2", "--json", "--policy", "allpass", "--policy", "hpa")
    found = json.loads(printed(*words))
    assert set(found["policies"]["allpass"]) >= BESIDE
    assert set(found["spread"]["allpass"]) >= BESIDE
    assert set(found["against"]) == {"hpa"}
    assert printed(*words) == printed(*words)


def test_all_worlds_in_one_table(jobs: str) -> None:
    """Each is dearer than the one before."""
    words = ("--trace", jobs, "--policy", "allpass", "--sweep", "world=friendly,measured,harsh", "--json")
    found = {one["value"]: one["policies"]["allpass"]["cost_usd"] for one in json.loads(printed(*words))["values"]}
    assert list(found) == ["friendly", "measured", "harsh"]
    assert sorted(found.values()) == list(found.values())


def test_measured_figures_are_played(jobs: str) -> None:
    Path("own.json").write_text('{"marketplace": {"usd": 7.0}, "conventional": {"usd": 9.0}}')
    words = ("--trace", jobs, "--policy", "cheapest-first", "--json")
    dear, usual = (json.loads(printed(*words, *more))["policies"] for more in (("--calibrate", "own.json"), ()))
    assert dear["cheapest-first"]["cost_usd"] > 5 * usual["cheapest-first"]["cost_usd"]
    assert "calibrate own.json" in printed("--trace", jobs, "--policy", "allpass", "--calibrate", "own.json")


def test_what_is_not_known_is_told(jobs: str) -> None:
    result = call("--trace", jobs, "--world", "real")
    assert result.exit_code in (1, 2)
    assert "--world: 'real' is none of friendly, measured, harsh" in result.stderr


def test_a_program_asks_for_it_by_name(jobs: str) -> None:
    Path("own.json").write_text('{"save_s": 30}')
    ours = simulate.run(small_trace(), ["allpass"], world="measured", calibrate="own.json").policies["allpass"]
    words = ("--world", "measured", "--calibrate", "own.json", "--policy", "allpass", "--json", "--trace", jobs)
    assert ours == json.loads(printed(*words))["policies"]["allpass"]
    with pytest.raises(InvalidInput, match="--world: 'rough' is none of"):
        simulate.run(small_trace(), ["allpass"], world="rough")


def test_jobs_may_merge_in_every_world(jobs: str) -> None:
    words = ("--trace", jobs, "--policy", "allpass", "--merge-able", "1", "--merging", "on", "--json")
    for world in ("measured", "harsh"):
        figures = json.loads(printed(*words, "--world", world))["policies"]["allpass"]
        assert figures["deadline_misses"] <= 20


def test_bad_cases_are_looked_for_in_a_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same cases as in the friendly one; the world is in the command that repeats one, and stays there."""
    friendly, harsh = Case.drawn(7), Case.drawn(7, "harsh")
    assert harsh.words == {"world": "harsh", **friendly.words}
    assert (harsh.like, harsh.jobs, harsh.most_jobs) == (friendly.like, friendly.jobs, friendly.most_jobs)
    assert "--world harsh" in harsh.commands()[-1] + harsh.commands()[1]
    assert harsh.options().world.name == "harsh"
    assert Case.drawn(7, FRIENDLY.name) == friendly
    found = json.loads(printed("--search-regret", "1", "--world", "measured", "--json"))
    assert all("--world measured" in command for one in found["cases"] for command in one["commands"][-1:])


def test_benchmarks_say_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What they print becomes a file that a simulation takes; machines of a company become those of its tier."""
    report: dict[str, Any] = {"provider": "vast", "machines": [{"ready_after_s": s} for s in (40.0, 50.0, 90.0, None)]}
    pauses = {"pause_s": {"make_before_break": [1.0, 2.0, 9.0], "stop_and_go": [7.0]}}
    files = {
        "migration.txt": "phases\n" + json.dumps({"name": "migration", "detail": pauses}) + "\n",
        "switch.txt": json.dumps({"name": "switch", "detail": {"cached_s": 4.5, "warm_s": 0.3}}),
        "allpass-smoke-vast.json": json.dumps(report, indent=2),
        "other.txt": "nothing of use\n[1]\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    sys_argv = ["calibration", *(str(tmp_path / name) for name in files)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys_argv)
        assert calibration.main() == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("about") == "from allpass-smoke-vast.json, migration.txt, other.txt, switch.txt"
    assert told == {
        "move_s": 2.0,
        "begin_s": 4.5,
        "marketplace": {"startup_mean_s": 60.0, "startup_sd_s": 26.46},
    }
    (tmp_path / "measured.json").write_text(json.dumps(told))
    played = simulate.run(small_trace(), ["allpass"], calibrate=str(tmp_path / "measured.json"))
    assert played.policies["allpass"]["mean_fetch_s"] >= 4.5


def test_files_without_a_figure_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.txt").write_text('{"name": "pressure", "value": 1}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["calibration", str(tmp_path / "other.txt")])
        assert calibration.main() == 1
    assert "no file has anything that a world consists of" in capsys.readouterr().err
