"""`allpass reproduce`: the evaluations of papers, each on any trace; the Allpass paper's where none is named."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli.group import Group
from app.cli.reproduce_cornucopia import cornucopia
from app.cli.reproduce_spotgpu import spotgpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allpass.cli.screen import Column
    from app.simulator.reproduction.experiments import Reproduced


USUAL = "allpass"


class PapersGroup(Group):
    """`allpass reproduce --trace FILE` is the Allpass paper, as it was when there was no other."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and (not args or (args[0].startswith("-") and args[0] != "--help")):
            args = [USUAL, *args]
        return super().parse_args(ctx, args)


reproduce = typer.Typer(cls=PapersGroup, rich_markup_mode=None, add_completion=False, no_args_is_help=True)


@reproduce.callback()
def papers() -> None:
    """Example: allpass reproduce --trace philly200.csv

    Play a paper's evaluation and put its figures beside ours: the Allpass paper unless another is named.
    """


@reproduce.command(USUAL)
def allpass_paper(
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="csv or csv.gz, taken as it is; default: generated jobs, scaled as in the paper."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Figures are means over so many.")] = 5,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a page with pictures for each setting into this folder.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Tables as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One object with all figures.")] = False,
) -> None:
    """Example: allpass reproduce allpass --trace philly200.csv

    Simulate section 5 of the Allpass paper and put its figures beside ours.
    Three policies stand for its Allpass: allpass-paper is its algorithms to the letter, allpass-drain also rents a node
    for every queued job (as its curves suggest), allpass is ours.
    """
    from allpass.cli import screen
    from app.cli.progress import progress_line
    from app.simulator.report.page import make_folder
    from app.simulator.reproduction import experiments, telling
    from app.simulator.traces.reading import read_trace

    if report is not None:
        make_folder(report)
    jobs = experiments.usual_trace() if trace is None else read_trace(trace)
    with progress_line("simulations") as line:
        found = experiments.reproduce(jobs, range(seeds), line, keeps=report is not None)
    if report is not None:
        _write(found, report)
    if as_json:
        screen.print_json(telling.as_object(found))
    elif as_markdown:
        typer.echo(telling.markdown(found), nl=False)
    else:
        _show(found)


reproduce.command("cornucopia")(cornucopia)
reproduce.command("spotgpu")(spotgpu)


def _show(found: Reproduced) -> None:
    from allpass.cli import screen
    from app.simulator.reproduction import telling

    seeds = len(found.seeds)
    typer.echo(f"{found.trace.name}: {len(found.trace.jobs):,} jobs, means of {seeds} seed{'s' if seeds > 1 else ''}")
    for setting, title in telling.TITLES.items():
        typer.echo(f"\n{title}")
        screen.print_table(_columns(telling.HEADINGS), telling.rows_of(found, setting), empty="")
        baselines = telling.baseline_rows_of(found, setting)
        if baselines:
            typer.echo()
            screen.print_table(_columns(telling.BASELINE_HEADINGS), baselines, empty="")
    typer.echo(f"\n{telling.READINGS_TITLE}")
    screen.print_table(_columns(telling.HEADINGS), telling.reading_rows_of(found), empty="")
    typer.echo("\nThe order of the policies")
    for told in telling.order_lines(found):
        typer.echo(textwrap.fill(f"  {told}", screen.WIDEST, subsequent_indent=" " * 12, break_on_hyphens=False))


def _columns(headings: Sequence[str]) -> list[Column]:
    from allpass.cli.screen import Column

    return [Column(headings[0]), *(Column(one, right=True) for one in headings[1:])]


def _write(found: Reproduced, folder: Path) -> None:
    from allpass.cli import screen
    from app.simulator.report.page import write_report
    from app.simulator.reproduction.experiments import options

    for setting, figures in found.figures.items():
        told = {"trace": found.trace.name, **options(setting).told(), "seeds": f"0 to {found.seeds[-1]}"}
        about = {"trace": f"{found.trace.name}, {setting}", "jobs": len(found.trace.jobs), "policies": figures}
        screen.say(f"wrote {write_report(folder / setting, about, found.played[setting], told)}")
