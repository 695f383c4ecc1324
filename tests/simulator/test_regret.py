"""The search for cases in which the default policy is a bad choice: what counts as one, and what is shown of it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from allpass.cli import main as cli
from app.simulator import regret
from app.simulator.regret import OURS, SIMPLE, Case, Regret, regret_of, search, shrunk

SMALL = Case("seren", 12, 3, 12)


def figures(cost_usd: float = 10.0, mean_wait_s: float = 100.0, deadline_miss_share: float = 0.1) -> dict[str, Any]:
    return {"cost_usd": cost_usd, "mean_wait_s": mean_wait_s, "deadline_miss_share": deadline_miss_share}


def judged(monkeypatch: pytest.MonkeyPatch, ours: dict[str, Any], **others: dict[str, Any] | None) -> Regret:
    """What comes of these figures; policies that are not named never end."""
    known = {OURS: ours, **{name.replace("_", "-"): its for name, its in others.items()}}
    monkeypatch.setattr(regret, "_figures", lambda _case, name: known.get(name))
    return regret_of(SMALL)


def test_what_is_dearer_and_no_better_is_regretted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, figures(12), hpa=figures(10), modal_only=figures(11))
    assert (found.best, found.excess) == ("hpa", pytest.approx(0.2))


@pytest.mark.parametrize(
    ("ours", "is_better"),
    [
        (figures(12, mean_wait_s=89.9), True),
        (figures(12, mean_wait_s=90), False),
        (figures(12, deadline_miss_share=0.08), True),
        (figures(12, deadline_miss_share=0.091), False),
        (figures(9, mean_wait_s=200), True),
    ],
    ids=["waits clearly less", "waits a little less", "late clearly less", "late a little less", "cheaper"],
)
def test_what_it_buys_is_no_regret(monkeypatch: pytest.MonkeyPatch, ours: dict[str, Any], is_better: bool) -> None:
    found = judged(monkeypatch, ours, hpa=figures(10))
    assert (found.excess == 0) is is_better
    assert (found.best == "") is is_better


def test_a_few_seconds_are_not_clearly_less(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, figures(12, mean_wait_s=1), hpa=figures(10, mean_wait_s=6)).excess > 0


def test_a_policy_whose_jobs_never_end_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, figures(12), hpa=None).excess == 0


def test_a_case_is_its_number() -> None:
    """The same number draws the same case, everywhere; different ones draw different ones, all of them valid."""
    drawn = [Case.drawn(number) for number in range(60)]
    assert drawn == [Case.drawn(number) for number in range(60)]
    assert len({str(case) for case in drawn}) == 60
    for case in drawn:
        assert len(case.trace().jobs) == case.jobs
        case.options()
    assert {name for case in drawn for name in case.words} == set(regret._DRAWN)


def test_cases_come_worst_first() -> None:
    found = search((6, 18))
    assert [one.excess for one in found] == sorted((one.excess for one in found), reverse=True)
    assert {one.case.seed for one in found} == {6, 18}


def test_a_found_case_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs and options go while at least half of the regret stays; what matters stays."""

    def played(case: Case) -> Regret:
        counts = case.words.get("knowledge") == "none" and case.most_jobs >= 5
        return Regret(case, 0.2 if counts else 0.0, "hpa" if counts else "", figures(), figures())

    monkeypatch.setattr(regret, "regret_of", played)
    large = Case("seren", 80, 7, 80, {"knowledge": "none", "gpus": "trace", "market": "calm"})
    least = shrunk(played(large))
    assert least.case == Case("seren", 80, 7, 5, {"knowledge": "none"})


def test_what_is_shown_can_be_typed(tmp_path: Path) -> None:
    """The commands of a case give the very figures of the search."""
    case = Case("seren", 15, 3, 10, {"move-seconds": "5", "market.mean_life_s.marketplace": "600"})
    found = regret_of(case)
    *before, last = case.commands()
    for command in before:
        subprocess.run(["sh", "-c", command.replace("allpass ", f"{_allpass()} ", 1)], cwd=tmp_path, check=True)
    shown = subprocess.run(
        ["sh", "-c", f"{last.replace('allpass ', f'{_allpass()} ', 1)} --json"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    policies = json.loads(shown.stdout)["policies"]
    assert set(policies) == {OURS, *SIMPLE}
    assert policies[OURS]["cost_usd"] == pytest.approx(found.ours["cost_usd"])


def _allpass() -> str:
    return f"{shlex.quote(sys.executable)} -c 'from allpass.cli.main import main; main()'"


def test_the_command_shows_what_it_found() -> None:
    result = CliRunner().invoke(cli.app, ["simulate", "--search-regret", "2", "--seed", "11"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("In ")
    assert "of 2 cases a simple policy costs less" in result.stdout
    told = json.loads(
        CliRunner().invoke(cli.app, ["simulate", "--search-regret", "2", "--seed", "11", "--json"]).stdout
    )
    assert {one["case"] for one in told["cases"]} == {11, 12}


@pytest.mark.parametrize(
    "words", [["--trace", "x.csv"], ["--policy", "hpa"], ["--market", "calm"], ["--most-jobs", "3"]]
)
def test_what_it_draws_by_itself_cannot_be_given(words: list[str]) -> None:
    result = CliRunner().invoke(cli.app, ["simulate", "--search-regret", "2", *words])
    assert result.exit_code == 2
    assert f"{words[0]}: means nothing with --search-regret" in result.stderr
