"""`allpass reproduce cornucopia`: each experiment is what the paper says, its claims beside what comes out here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from allpass.cli import main as cli
from app.core.elastic.kinds import ElasticKind
from app.errors import InvalidInput
from app.simulator.elastic.comparing import ONE_LITERAL, POLICIES
from app.simulator.elastic.workload import MixedOptions, mixed_jobs
from app.simulator.reproduction import cornucopia_page
from app.simulator.reproduction.cornucopia_claims import CLAIMS, claims_of
from app.simulator.reproduction.cornucopia_plays import (
    COSTS,
    GPUS,
    LITERAL,
    MENDED,
    PAPER_GPU_MIN,
    PAPER_JOBS,
    PARTS,
    RESIZED,
    ElasticPlay,
    PlayedCornucopia,
    drawn_of,
    plays_of,
    reproduce,
    usual_trace,
)
from app.simulator.traces.job import Trace, TraceJob
from app.simulator.traces.reading import write_trace

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reproduction-cornucopia.md"


def few(count: int = 40) -> Trace:
    """Jobs of one to four GPUs that come faster than 16 GPUs do them."""
    jobs = [
        TraceJob(f"j{place:03}", place * 20.0, 30.0 + place * 137 % 3000, (1, 1, 2, 4)[place % 4])
        for place in range(count)
    ]
    return Trace.of("few", jobs)


@pytest.fixture(scope="module")
def small() -> PlayedCornucopia:
    return reproduce(few(), (16, 24), seed=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_trace(few(), tmp_path / "few.csv")
    return tmp_path / "few.csv"


def call(*words: str, fails: bool = False) -> str:
    result = CliRunner().invoke(cli.app, ["reproduce", "cornucopia", *words])
    assert (result.exit_code == 0) is not fails, result.output
    return " ".join(result.output.split()) if fails else result.output


def invented(**changes: dict[str, Any]) -> PlayedCornucopia:
    """Every play of one cluster with figures that are easy to reckon with; some policies have others."""
    plain: dict[str, Any] = {
        "mean_jct_s": 1000.0, "mean_slowdown": 2.0, "resizes": 10, "pauses_gpu_h": 1.0, "makespan_s": 5000.0,
        "interactive": {
            "jobs": 4, "mean_jct_s": 100.0, "at_once": 0.75, "mean_first_gpu_s": 20.0, "p99_first_gpu_s": 60.0,
            "mean_full_size_s": 30.0, "p95_full_size_s": 50.0, "mean_slowdown": 1.5,
        },
        "batch": {"jobs": 16, "mean_jct_s": 1200.0},
    }  # fmt: skip
    figures = {one: plain | changes.get(one.policy, {}) for part in PARTS for one in plays_of(part, 320, 0)}
    return PlayedCornucopia(few(), (320,), 0, PARTS, drawn_of(mixed_jobs(few(), MixedOptions())), figures)


# What is played


def test_the_experiments_are_the_papers() -> None:
    """320, 640 and 960 GPUs; all policies without costs; wrong labels and inelastic jobs at 5 and 10 %, literal rules
    beside the mended ones; interactive jobs alone as the floor."""
    assert GPUS == (320, 640, 960)
    policies = list(plays_of("policies", 320, 0))
    assert [one.policy for one in policies if not one.alone] == list(POLICIES)
    assert [one.policy for one in policies if one.alone] == ["fifo"]
    assert {one.costs for one in policies} == {"free"}
    assert {(one.policy, one.options.mislabelled) for one in plays_of("labels", 320, 0)} == both((0.0, 0.05, 0.10))
    assert {(one.policy, one.options.inelastic) for one in plays_of("sizes", 320, 0)} == both((0.0, 0.05, 0.10))
    assert {(one.policy, one.costs) for one in plays_of("costs", 320, 0)} == {
        (policy, costs) for policy in RESIZED for costs in COSTS
    }
    assert COSTS == ("free", "measured", "10 s", "8B LoRA")
    assert {one.policy for one in plays_of("points", 320, 0)} == {LITERAL, MENDED, *ONE_LITERAL}


def both(shares: Iterable[float]) -> set[tuple[str, float]]:
    return {(policy, share) for policy in (LITERAL, MENDED) for share in shares}


def test_a_part_that_there_is_not_is_told() -> None:
    with pytest.raises(InvalidInput, match="part: 'figures' is none of policies, costs, labels, sizes, points"):
        list(plays_of("figures", 320, 0))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_draw_has_the_shares_of_table_three(seed: int) -> None:
    """22 % of the jobs exactly; 0.8 % of the GPU time to 0.3 points, since one long job weighs as much as that."""
    jobs = mixed_jobs(usual_trace(), MixedOptions(seed))
    drawn = drawn_of(jobs)
    assert drawn["share_of_jobs"] == pytest.approx(6829 / 30_940, abs=0.5 / len(jobs))
    assert drawn["share_of_gpu_time"] == pytest.approx(187_421 / PAPER_GPU_MIN, abs=0.003)
    assert drawn["longer_than_the_median_job"] > 0
    assert drawn["interactive"] == drawn["labelled"] == sum(one.label is ElasticKind.INTERACTIVE for one in jobs)


def test_labels_do_not_follow_durations_where_they_are_wrong() -> None:
    """Of the batch jobs that are labelled interactive by mistake, long and short ones are as likely."""
    jobs = mixed_jobs(usual_trace(), MixedOptions(mislabelled=0.10))
    batch = [one for one in jobs if not one.is_interactive]
    wrong = [one for one in batch if one.label is ElasticKind.INTERACTIVE]
    middle = sorted(one.duration_s for one in batch)[len(batch) // 2]
    assert len(wrong) == round(0.10 * len(batch))
    assert sum(one.duration_s > middle for one in wrong) / len(wrong) == pytest.approx(0.5, abs=0.1)


def test_the_usual_trace_has_the_papers_rate_and_work() -> None:
    """A tenth of its jobs in a tenth of its fourteen days, with its mean GPU time; none longer than that."""
    trace = usual_trace()
    assert (len(trace.jobs), trace.jobs[0].submit_s) == (3094, 0.0)
    assert trace.span_s == pytest.approx(14 * 86_400 / 10, rel=1e-3)
    work_min = sum(one.gpu_seconds for one in trace.jobs) / 60
    assert work_min / len(trace.jobs) == pytest.approx(PAPER_GPU_MIN / PAPER_JOBS, rel=1e-3)
    assert max(one.duration_s for one in trace.jobs) <= 14 * 86_400 / 10
    assert usual_trace() == trace


def test_the_same_seed_gives_the_same_figures(small: PlayedCornucopia) -> None:
    again = reproduce(few(), (16, 24), seed=3)
    assert again == small
    assert reproduce(few(), (16, 24), seed=4).figures.keys() != small.figures.keys()


def test_parts_share_plays_and_leave_out_what_nobody_asked_for(small: PlayedCornucopia) -> None:
    """Each play is made once; of one part there is nothing of the others."""
    assert len(small.figures) == 2 * len({one for part in PARTS for one in plays_of(part, 16, 3)})
    labels = reproduce(few(), (16,), seed=3, parts=("labels",))
    assert set(labels.figures) == set(plays_of("labels", 16, 3))
    assert all(small.figures[one] == figures for one, figures in labels.figures.items())


def test_interactive_jobs_alone_wait_for_nobody_else(small: PlayedCornucopia) -> None:
    alone = small.figures[ElasticPlay(16, "fifo", MixedOptions(3), alone=True)]
    assert alone["batch"]["jobs"] == 0
    assert alone["interactive"]["jobs"] == small.drawn["interactive"]


def test_a_workload_without_interactive_jobs_has_no_floor() -> None:
    """Two jobs are too few for one to be drawn; the page says nothing of what there is not."""
    found = reproduce(few(2), (8,), parts=("policies",))
    assert found.drawn["interactive"] == 0
    assert "interactive jobs alone" not in cornucopia_page.page(found, "command")


def test_jobs_of_no_length_are_left_out_and_counted() -> None:
    jobs = [replace(one, duration_s=0.0) if place < 5 else one for place, one in enumerate(few().jobs)]
    found = reproduce(Trace("some", tuple(jobs), 7), (16,), parts=("points",))
    assert (len(found.trace.jobs), found.trace.left_out) == (35, 12)
    with pytest.raises(InvalidInput, match="holds no job that runs for any time"):
        reproduce(Trace.of("none", [replace(one, duration_s=0.0) for one in few().jobs]))


def test_a_job_larger_than_the_smallest_cluster_is_named() -> None:
    """Before anything is played; a huge one as well."""
    for size in (17, 10**9):
        jobs = [*few().jobs, TraceJob("large", 5.0, 10.0, size)]
        with pytest.raises(
            InvalidInput, match=f"16 are fewer than the {size} of job large; give --gpus {size} or more"
        ):
            reproduce(Trace.of("large", jobs), (32, 16))


# What is told


def test_each_claim_is_measured_as_it_says() -> None:
    """From figures whose ratios and differences are known."""
    short = {"at_once": 0.5, "mean_first_gpu_s": 200.0}
    found = invented(tiresias={"mean_jct_s": 4000.0, "interactive": short})
    ours = {one.about: one.measure(found, 320, MENDED) for one in claims_of(found)}
    assert list(ours.values()) == pytest.approx([20.0, 75.0, 90.0, 75.0, 2.0, 20.0, 20.0, 1.0, 1.0])
    nobody_waits = invented(tiresias={"interactive": short | {"mean_first_gpu_s": 0.0}})
    assert CLAIMS[2].measure(nobody_waits, 320, MENDED) is None


def test_claims_whose_plays_were_not_made_are_left_out() -> None:
    found = reproduce(few(), (16,), parts=("labels",))
    assert {one.part for one in claims_of(found)} == {"labels"}


def test_the_page_has_every_table_and_says_what_was_drawn(small: PlayedCornucopia) -> None:
    """Each table has as many cells as headings, each claim once, and the shares and the seed are told."""
    text = cornucopia_page.page(small, "allpass reproduce cornucopia --seed 3")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 1 + 2 + 4
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    for claim in CLAIMS:
        assert text.count(f"| {claim.about} |") == 1
    assert "with seed 3: 9 interactive jobs, 22.5% of the jobs" in text
    assert "```sh\nallpass reproduce cornucopia --seed 3\n```" in text


def test_times_are_told_in_a_unit_that_fits() -> None:
    seconds = (0.0, 0.25, 90.0, 300.0, 60_000.0, 3.6e6)
    assert [cornucopia_page.time_of(one) for one in seconds] == [
        "0 s", "0.2 s", "90 s", "5.0 min", "16.7 h", "1,000.0 h",
    ]  # fmt: skip


def test_a_part_of_a_page_is_replaced_and_all_else_stays() -> None:
    """Words around it and what is told of another trace; a second part goes to the end."""
    first = cornucopia_page.with_part("", "a", "one\n")
    page = f"# Title\n\nwords\n\n{first}\nmore words\n"
    two = cornucopia_page.with_part(page, "b", "two\n")
    assert cornucopia_page.with_part(two, "a", "new\n") == two.replace("one\n", "new\n")
    assert two.index("more words") < two.index("two")
    assert cornucopia_page.with_part(two, "a", "one\n") == two


@pytest.mark.parametrize(
    "text",
    [
        "a letter\n",
        "<!-- figures of a -->\n",
        "<!-- end of a -->\n<!-- figures of a -->\n",
        2 * "<!-- figures of a -->\n<!-- end of a -->\n",
    ],
)
def test_what_is_no_page_is_not_written_over(text: str) -> None:
    with pytest.raises(ValueError, match=r"no figures of a trace|do not come once and in order"):
        cornucopia_page.with_part(text, "a", "part")


# The command


def test_the_command_plays_a_file_whole(path: Path) -> None:
    """The object for programs has all plays, and the claims by rules and cluster; another call says the same."""
    words = ("--trace", str(path), "--gpus", "16", "--gpus", "24", "--seed", "3", "--json")
    found = json.loads(call(*words))
    assert (found["trace"], found["jobs"], found["gpus"], found["seed"]) == ("few", 40, [16, 24], 3)
    assert [one["about"] for one in found["claims"]] == [one.about for one in CLAIMS]
    assert set(found["claims"][0]["ours"]) == {LITERAL, MENDED}
    assert set(found["claims"][0]["ours"][MENDED]) == {"16", "24"}
    assert found == json.loads(call(*words))


def test_a_file_of_chronus_is_read_by_its_format(tmp_path: Path) -> None:
    """The command that a page tells has the file's name and none of its folders."""
    path = tmp_path / "mix.csv"
    rows = [f"{one},vc,1,{one},1,vgg16,{20 + one},5,1,10,0,strict" for one in range(12)]
    head = "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,"
    path.write_text("\n".join([f"{head}expect_value_list,best_effort,job_type", *rows]) + "\n")
    words = ("--format", "chronus", "--gpus", "8", "--part", "points", "--start", "60", "--most-jobs", "9")
    text = call("--trace", str(path), *words)
    assert f"allpass reproduce cornucopia --trace mix.csv {' '.join(sorted_words(words))}" in text
    assert "9 jobs submitted within 8.0 min" in text
    assert str(tmp_path) not in text


def sorted_words(words: tuple[str, ...]) -> list[str]:
    """As a page has them: the file first, then what is played with it."""
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    order = ("--format", "--start", "--most-jobs", "--gpus", "--part")
    return [word for name in order for word in (name, pairs[name])]


def test_the_report_is_written_beside_what_is_there(path: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    usual = ("--trace", str(path), "--gpus", "16", "--part", "points", "--report", str(page))
    call(*usual)
    words = f"# Mine\n\n{page.read_text()}\nand an end\n"
    page.write_text(words)
    call(*usual)
    assert page.read_text() == words
    call(*usual[:-2], "--seed", "1", "--report", str(page))
    assert page.read_text().startswith("# Mine")
    assert page.read_text().endswith("and an end\n")
    assert "with seed 1" in page.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--part", "figures"), "--part: 'figures' is none of policies, costs, labels, sizes, points"),
        (("--format", "helios2"), "--format: 'helios2' is none of csv, philly"),
        (("--format", "chronus"), "name it with --trace"),
        (("--start", "5"), "name it with --trace"),
        (("--trace", "nowhere.csv"), "there is no such file"),
    ],
)
def test_bad_words_are_told(words: tuple[str, ...], told: str) -> None:
    assert told in call(*words, fails=True)


def test_a_bad_row_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    path, page = tmp_path / "bad.csv", tmp_path / "page.md"
    rows = [f"j{one},{one},{-5 if one == 300 else 5},1" for one in range(600)]
    path.write_text("\n".join(["job_id,submit_time_s,duration_s,num_gpus", *rows]) + "\n")
    assert "line 302, column duration_s: '-5' is below 0" in call(
        "--trace", str(path), "--report", str(page), fails=True
    )
    assert not page.exists()


def test_a_report_that_cannot_be_written_is_told_before_anything_is_played(path: Path, tmp_path: Path) -> None:
    """A folder, a letter and a picture: none is touched."""
    letter, picture = tmp_path / "letter.md", tmp_path / "picture.png"
    letter.write_text("Dear all")
    picture.write_bytes(b"\x89PNG\xff")
    for one in (tmp_path, letter, picture):
        assert "cannot be added to" in call("--trace", str(path), "--report", str(one), fails=True)
    assert letter.read_text() == "Dear all"


def test_the_allpass_paper_is_played_where_no_paper_is_named() -> None:
    """As before there was another; and a paper that is not known is told."""
    runner = CliRunner()
    assert "allpass-paper" in runner.invoke(cli.app, ["reproduce", "allpass", "--help"]).output
    usual = runner.invoke(cli.app, ["reproduce", "--trace", "nowhere.csv"])
    assert "nowhere.csv: there is no such file" in usual.output
    unknown = runner.invoke(cli.app, ["reproduce", "cornucopa"])
    assert unknown.exit_code == 2
    assert "cornucopa" in unknown.output


# The page that is committed


def test_the_document_was_made_by_the_command_as_it_is_now() -> None:
    """Two traces and the generated jobs; of each the claims of the parts that were played, with the paper's words, and
    all three clusters. The generated jobs have every part."""
    told = re.findall(r"<!-- figures of (\S+) -->\n(.*?)<!-- end of \1 -->", DOCUMENT.read_text(), re.DOTALL)
    assert [name for name, _ in told] == ["chronus", "philly", usual_trace().name]
    for _, text in told:
        command = re.search(r"```sh\n(.*)\n```", text)
        assert command is not None
        parts = re.findall(r"--part (\w+)", command[1]) or PARTS
        for claim in CLAIMS:
            assert text.count(f"| {claim.about} | {claim.paper or '-'} |") == (claim.part in parts)
        assert all(f"{gpus} GPUs, resizes for free:" in text for gpus in GPUS)
        assert ("What resizes cost" in text) == ("costs" in parts)
        assert ("One point at a time" in text) == ("points" in parts)
    assert "--part" not in told[-1][1]
