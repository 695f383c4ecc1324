"""`allpass trace`: traces of jobs for the simulator. Needs no server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen
from allpass.cli.group import make_group
from allpass.cli.screen import Column

if TYPE_CHECKING:
    from app.simulator.traces.describing import Figures
    from app.simulator.traces.job import Trace

trace = make_group()

Out = Annotated[Path | None, typer.Option("--out", "-o", help="csv or csv.gz to write; default: csv to stdout.")]
Start = Annotated[float, typer.Option("--start", help="Leave out what is submitted before this second.")]


@trace.callback()
def traces() -> None:
    """Example: allpass trace generate --like seren --jobs 200 -o seren.csv

    Import, sample, generate and describe traces of jobs.
    """


@trace.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="philly, helios, acme, alibaba or chronus, or what a package reads.")],
    file: Annotated[Path, typer.Argument(help="The file as it was published; may be packed with gzip.")],
    out: Out = None,
) -> None:
    """Example: allpass trace import acme trace_seren.csv -o seren.csv.gz

    Read the published log of a cluster, which you download yourself: cluster_job_log of Philly, cluster_log.csv of
    Helios, trace_seren.csv or trace_kalos.csv of Acme, openb_pod_list_default.csv or pai_task_table.csv of Alibaba,
    trace_job_Philly_MIX1.csv of Chronus.
    What never ran on a GPU is left out.
    """
    from app.simulator.traces.importing import import_trace  # help is listed without loading the simulator

    _give(import_trace(source, file), out)


@trace.command("sample")
def sample_(
    file: Annotated[Path, typer.Argument(help="The trace to take jobs from.")],
    recipe: Annotated[str, typer.Option("--recipe", help="section-5.1: 200 jobs, durations / 5, gaps / 15.")] = (
        "section-5.1"
    ),
    jobs: Annotated[int | None, typer.Option("--jobs", help="How many; default: the recipe's.")] = None,
    durations_by: Annotated[float | None, typer.Option("--durations-by", help="Divide run times by this.")] = None,
    gaps_by: Annotated[float | None, typer.Option("--gaps-by", help="Divide gaps between submissions by this.")] = None,
    mode: Annotated[str, typer.Option("--mode", help="contiguous, or random over the whole trace.")] = "contiguous",
    start: Start = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="For --mode random.")] = 20230301,
    out: Out = None,
) -> None:
    """Example: allpass trace sample philly.csv.gz --recipe section-5.1 --mode random -o philly200.csv

    Take a few jobs of a large trace and scale them.
    """
    from dataclasses import replace

    from app.errors import InvalidInput
    from app.simulator.traces.reading import read_trace
    from app.simulator.traces.sampling import MODES, RECIPES, sample

    if recipe not in RECIPES:
        raise InvalidInput(f"recipe: {recipe!r} is none of {', '.join(RECIPES)}", param="recipe")
    chosen = next((one for one in MODES if one == mode), None)
    if chosen is None:
        raise InvalidInput(f"mode: {mode!r} is none of {', '.join(MODES)}", param="mode")
    usual = RECIPES[recipe]
    changed = replace(
        usual,
        jobs=usual.jobs if jobs is None else jobs,
        durations_by=usual.durations_by if durations_by is None else durations_by,
        gaps_by=usual.gaps_by if gaps_by is None else gaps_by,
    )
    source = read_trace(file, start_s=start if chosen == "random" else 0.0)
    _give(sample(source, changed, mode=chosen, seed=seed, start_s=start), out)


@trace.command("generate")
def generate_(
    like: Annotated[str, typer.Option("--like", help="seren, kalos or philly.")] = "seren",
    jobs: Annotated[int, typer.Option("--jobs", help="How many.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same jobs.")] = 0,
    out: Out = None,
) -> None:
    """Example: allpass trace generate --like seren --jobs 1000 --seed 7 -o seren1000.csv

    Draw jobs from the published distributions of a cluster: run times, GPUs, mean gap, daily cycle and bursts.
    """
    from app.simulator.traces.generating import generate

    _give(generate(like, jobs, seed), out)


@trace.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="csv or csv.gz.")],
    start: Start = 0.0,
    most_jobs: Annotated[int | None, typer.Option("--most-jobs", help="Look at the first ones only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object.")] = False,
) -> None:
    """Example: allpass trace show seren.csv

    Say what a trace holds: jobs, run times, GPUs, load.
    """
    from dataclasses import asdict

    from app.simulator.traces.describing import describe
    from app.simulator.traces.reading import read_trace

    figures = describe(read_trace(file, start_s=start, most_jobs=most_jobs))
    if as_json:
        screen.print_json(asdict(figures))
        return
    columns = [Column("trace"), Column(figures.name, right=True)]
    screen.print_table(columns, _rows(figures), empty="the trace is empty")


def _give(made: Trace, out: Path | None) -> None:
    from app.simulator.traces.reading import text_of, write_trace

    if out is None:
        typer.echo(text_of(made), nl=False)
        return
    write_trace(made, out)
    left = f"; {made.left_out:,} rows left out" if made.left_out else ""
    screen.say(f"{len(made.jobs):,} jobs in {out}{left}")


def _rows(figures: Figures) -> list[tuple[str, str]]:
    rows = [
        ("jobs", f"{figures.jobs:,}"),
        ("rows left out", f"{figures.left_out:,}"),
        ("first to last submission", _time(figures.span_s)),
        ("mean gap", _time(figures.mean_gap_s)),
        ("run time, mean", _time(figures.mean_duration_s)),
        ("run time, median", _time(figures.p50_duration_s)),
        ("run time, 90th percentile", _time(figures.p90_duration_s)),
        ("run time, 99th percentile", _time(figures.p99_duration_s)),
        ("run time, longest", _time(figures.longest_duration_s)),
        ("within 10 minutes", f"{figures.share_within_10_min:.1%}"),
        ("GPU-hours", f"{figures.gpu_hours:,.1f}"),
        ("GPUs busy on average", "-" if figures.load_gpus is None else f"{figures.load_gpus:,.1f}"),
    ]
    rows += [
        (f"jobs on {gpus} GPU{'s' if gpus > 1 else ''}", f"{count:,} ({count / figures.jobs:.1%})")
        for gpus, count in figures.jobs_by_gpus.items()
    ]
    if figures.with_deadline:
        rows.append(("with a deadline", f"{figures.with_deadline:,}"))
    if figures.users:
        rows.append(("users", f"{figures.users:,}"))
    return rows


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"
