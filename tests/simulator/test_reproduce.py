"""`allpass reproduce`: the paper's claims beside ours, measured as they say, in tables and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from allpass.cli import main as cli
from app.simulator.reproduction import telling
from app.simulator.reproduction.claims import CLAIMS, ORDERS, READINGS, compare
from app.simulator.reproduction.experiments import (
    BASELINES,
    LIMITED,
    STAND_INS,
    UNLIMITED,
    Reproduced,
    fixed,
    reproduce,
    usual_trace,
)
from app.simulator.traces.reading import write_trace
from tests.simulator.small import small_trace

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reproduction.md"


@pytest.fixture(scope="module")
def small() -> Reproduced:
    return reproduce(small_trace(), [0, 1])


def call(*words: str) -> str:
    result = CliRunner().invoke(cli.app, ["reproduce", *words])
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def figures(**changes: Any) -> dict[str, Any]:
    """Of a policy, some of them given."""
    plain = {
        "mean_jct_s": 600.0, "p50_jct_s": 120.0, "share_within_10_min": 0.5, "mean_queue_s": 30.0, "mean_move_s": 21.0,
        "share_serverless": 0.7, "cost_usd": 100.0,
        "cost_by_provider_usd": {"modal": 21.0, "vast": 74.0, "lambda": 5.0},
        "gpu_hours_by_provider": {"modal": 10.0, "vast": 100.0, "lambda": 5.0}, "peak_nodes": 12, "moves": 10,
    }  # fmt: skip
    return plain | changes


def invented() -> Reproduced:
    """Figures that are easy to reckon with: the stand-ins as they are, each baseline twice as slow and as dear."""
    names = (*BASELINES, fixed(60), fixed(600))
    policies = {name: figures() for name in STAND_INS}
    policies |= {name: figures(mean_jct_s=1200.0, p50_jct_s=480.0, cost_usd=150.0) for name in names}
    return Reproduced(small_trace(40), (0,), {LIMITED: policies, UNLIMITED: policies}, {})


def test_each_claim_is_measured_as_it_says() -> None:
    """From figures whose ratios, shares and differences are known."""
    found = {one.claim.about: one.ours.get("allpass", 0.0) for one in compare(invented())}
    assert found == pytest.approx(
        {
            "jobs done within 10 minutes": 50.0,
            **{
                f"jobs done within 10 minutes, {name}": 0.0
                for name in ("sjf-np", "tiresias-l", "sjf", "tiresias-l-np", "cheapest-first")
            },
            "cost of tiresias-l against it": 1.5,
            "cost of sjf against it": 1.5,
            "part of its cost that is serverless": 21.0,
            "jobs that end without leaving serverless": 70.0,
            "in the queue and starting, mean per job": 0.5,
            "saving and loading, mean per job": 21.0 / 60,
            "saving and loading, per move (84 s are put in)": 21.0 * 40 / 10 / 60,
            "most rented nodes at once": 12,
            "price of rented nodes": 79 / 105,
            "completion time, median": 2.0,
            "median below that of F fixed at 60 s": 75.0,
            "median below that of F fixed at 600 s": 75.0,
            "mean completion of modal-only against it": 2.0,
            "mean completion of hpa against it": 2.0,
            "cost of hpa against it": 1.5,
            "cost of modal-only against it": 1.5,
            "mean completion of hpa-conventional against it": 2.0,
            "cost of hpa-conventional against it": 1.5,
            "cost of cheapest-first against it": 1.5,
            "mean completion of cheapest-first against it": 2.0,
        }
    )


def test_what_the_abstract_may_mean() -> None:
    """Shares below what it is compared with, in the paper and here."""
    found = compare(invented(), READINGS)
    assert [one.ours["allpass"] for one in found] == pytest.approx([75, 100 / 3, 50, 100 / 3, 50, 100 / 3])
    assert [one.claim.paper for one in found] == pytest.approx([71.01, 66.1, 60.47, 47.37, 60.47, 47.37], abs=0.01)


def test_what_the_paper_does_not_say_has_no_figure_of_its_own() -> None:
    """`cheapest-first` stands beside its claims, and what a move takes is put in."""
    silent = [one.about for one in CLAIMS if one.paper is None]
    assert all("cheapest-first" in about or about.startswith("saving and loading, per move") for about in silent)
    rows = telling.rows_of(invented(), UNLIMITED)
    assert ["cost of cheapest-first against it", "-"] in [row[:2] for row in rows]


def test_the_papers_figures() -> None:
    """As printed there: shares in percent, ratios from its dollars, times in minutes."""
    paper = {one.about: one.paper for one in CLAIMS}
    assert paper["jobs done within 10 minutes"] == 68.5
    assert [paper[f"jobs done within 10 minutes, {name}"] for name in ("tiresias-l-np", "tiresias-l")] == [12.5, 48.0]
    assert [paper[f"jobs done within 10 minutes, {name}"] for name in ("sjf-np", "sjf")] == [54.5, 46.5]
    assert paper["cost of tiresias-l against it"] == pytest.approx(1.0923, abs=1e-4)
    assert paper["part of its cost that is serverless"] == pytest.approx(7.613, abs=1e-3)
    assert paper["median below that of F fixed at 60 s"] == 71.01


def test_baselines_have_their_own_figure() -> None:
    """A claim about a baseline alone is not told three times."""
    alone = [one for one in compare(invented()) if one.claim.baseline]
    assert [list(one.ours) for one in alone] == [
        ["sjf-np"],
        ["tiresias-l"],
        ["sjf"],
        ["tiresias-l-np"],
        ["cheapest-first"],
    ]
    assert all(one.ours[one.claim.baseline] == 50.0 for one in alone)


def test_orders_tell_ties_and_differences() -> None:
    """The best comes first; equal figures are told as equal; each stand-in is compared with the paper's place."""
    by_share = ORDERS[0]
    shares = {"allpass-paper": 0.4, "allpass-drain": 0.7, "allpass": 0.9, "sjf-np": 0.6, "tiresias-l": 0.5, "sjf": 0.3,
              "tiresias-l-np": 0.3, "cheapest-first": 0.65}  # fmt: skip
    policies = {name: figures(share_within_10_min=share) for name, share in shares.items()}
    assert by_share.ours(policies)[:4] == ("allpass", "allpass-drain", "cheapest-first", "sjf-np")
    assert [by_share.differs(policies, name) for name in STAND_INS] == [True, False, False]
    lines = list(telling.order_lines(Reproduced(small_trace(), (0,), {LIMITED: policies, UNLIMITED: policies | {
        name: figures() for name in (*BASELINES, fixed(60), fixed(600))}}, {})))  # fmt: skip
    assert lines[0] == "jobs done within 10 minutes, at most 30 rented A100s, best first"
    assert lines[2].endswith("tiresias-l, allpass-paper, sjf = tiresias-l-np")


def test_everything_is_simulated_in_both_settings(small: Reproduced) -> None:
    """Every policy, with and without a limit; a fixed threshold of 600 s keeps more jobs on serverless than 60 s."""
    for found in small.figures.values():
        assert set(found) == {*STAND_INS, *BASELINES, fixed(60), fixed(600)}
        assert found[fixed(600)]["share_serverless"] > found[fixed(60)]["share_serverless"]
    assert all(one["peak_nodes"] <= 30 for one in small.figures[LIMITED].values())


def test_the_object_for_programs(tmp_path: Path, small: Reproduced) -> None:
    """Claims with both figures, orders, and all figures by setting; the command prints the same."""
    path = tmp_path / "small.csv"
    write_trace(small_trace(), path)
    found = json.loads(call("--trace", str(path), "--seeds", "2", "--json"))
    assert found == json.loads(json.dumps(telling.as_object(small)))
    assert list(found) == ["trace", "jobs", "seeds", "claims", "abstract", "orders", "settings"]
    assert [one["about"] for one in found["claims"]] == [one.about for one in CLAIMS]


def test_tables_for_people_and_for_documents(small: Reproduced, tmp_path: Path) -> None:
    """Within 100 columns, each claim once; Markdown tables have as many cells as headings."""
    path = tmp_path / "small.csv"
    write_trace(small_trace(), path)
    text = call("--trace", str(path), "--seeds", "1")
    assert max(len(line) for line in text.splitlines()) <= 100
    for claim in (*CLAIMS, *READINGS):
        assert claim.about in text
    tables = re.findall(r"(?:^\|.*\n)+", telling.markdown(small), re.MULTILINE)
    assert len(tables) == 4
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_pictures_of_both_settings(tmp_path: Path) -> None:
    """--report writes a page for each."""
    path = tmp_path / "small.csv"
    write_trace(small_trace(6), path)
    call("--trace", str(path), "--seeds", "1", "--report", str(tmp_path / "out"))
    for setting in (LIMITED, UNLIMITED):
        assert fixed(600) in (tmp_path / "out" / setting / "report.html").read_text()


def test_the_usual_trace_is_scaled_as_in_the_paper() -> None:
    """200 jobs; the first at 0."""
    trace = usual_trace()
    assert (len(trace.jobs), trace.jobs[0].submit_s) == (200, 0.0)
    assert trace.span_s < 3600


def test_the_document_has_every_claim_of_every_trace() -> None:
    """docs/reproduction.md was made by the command as it is now: the claims, and the paper's figure beside each."""
    text = DOCUMENT.read_text()
    for setting in (LIMITED, UNLIMITED):
        for row in telling.rows_of(invented(), setting) + telling.baseline_rows_of(invented(), setting):
            assert text.count(f"| {row[0]} | {row[1]} |") >= 3
    for row in telling.reading_rows_of(invented()):
        assert text.count(f"| {row[0]} | {row[1]} |") >= 3
