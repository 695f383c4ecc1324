"""`allpass reproduce cornucopia`: the evaluation of the Cornucopia paper, on any trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.simulator.reproduction.cornucopia_plays import PlayedCornucopia
    from app.simulator.traces.job import Trace

CSV = "csv"


def cornucopia(
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Played whole; default: generated jobs, which take two or three minutes."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="csv: columns of `allpass trace`. chronus, philly, ...: as published.")
    ] = CSV,
    start: Annotated[float, typer.Option("--start", help="Leave out what is submitted before this second.")] = 0.0,
    most_jobs: Annotated[int | None, typer.Option("--most-jobs", min=1, help="Play the first ones only.")] = None,
    gpus: Annotated[
        list[int] | None,
        typer.Option("--gpus", min=1, max=100_000, help="Of a cluster; again for more. 320, 640, 960."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the draw of kinds, labels and speeds.")] = 0,
    part: Annotated[
        list[str] | None, typer.Option("--part", help="policies, costs, labels, sizes or points; again for more. All.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write the page here; what it has of other traces stays.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object with all figures.")] = False,
) -> None:
    """Example: allpass reproduce cornucopia --gpus 320 --part policies

    Simulate section 5 of the Cornucopia paper (interactive and elastic batch jobs share a cluster) beside its claims.
    Who is interactive is drawn, since no trace says it. cornucopia-literal is the paper's rules to the letter,
    cornucopia is ours. Prints a page in Markdown.
    """
    from allpass.cli import screen
    from app.cli.progress import progress_line
    from app.errors import InvalidInput
    from app.simulator.reproduction import cornucopia_page, cornucopia_plays

    parts = tuple(part or cornucopia_plays.PARTS)
    for one in parts:
        if one not in cornucopia_plays.PARTS:
            raise InvalidInput(f"--part: {one!r} is none of {', '.join(cornucopia_plays.PARTS)}", param="part")
    before = "" if report is None else _page_at(report)
    jobs = _jobs(trace, form, start, most_jobs)
    with progress_line("plays") as line:
        found = cornucopia_plays.reproduce(jobs, tuple(gpus or cornucopia_plays.GPUS), seed, parts, line)
    told = cornucopia_page.page(found, _command(found, trace, form, start, most_jobs))
    if report is not None:
        _write(report, before, found.trace.name, told)
    if as_json:
        screen.print_json(cornucopia_page.as_object(found))
    elif report is None:
        typer.echo(told, nl=False)


def _jobs(path: Path | None, form: str, start_s: float, most_jobs: int | None) -> Trace:
    from app.errors import InvalidInput
    from app.simulator.reproduction.cornucopia_plays import usual_trace
    from app.simulator.traces.importing import READERS, import_trace
    from app.simulator.traces.reading import read_trace

    if form != CSV and form not in READERS:
        raise InvalidInput(f"--format: {form!r} is none of {', '.join((CSV, *READERS))}", param="format")
    if path is None:
        if form != CSV or start_s or most_jobs:
            raise InvalidInput("--format, --start and --most-jobs are of a file; name it with --trace", param="trace")
        return usual_trace()
    if form == CSV:
        return read_trace(path, start_s=start_s, most_jobs=most_jobs)
    if start_s < 0:
        raise InvalidInput(f"--start: {start_s:g} is negative; give seconds from the start of the trace", param="start")
    return import_trace(form, path).cut(start_s=start_s, most_jobs=most_jobs)


def _command(found: PlayedCornucopia, path: Path | None, form: str, start_s: float, most_jobs: int | None) -> str:
    """What makes the same figures again, with the file's name alone."""
    from app.simulator.reproduction.cornucopia_plays import GPUS, PARTS

    words = ["allpass reproduce cornucopia"]
    words += [f"--trace {path.name}"] if path else []
    words += [f"--format {form}"] if form != CSV else []
    words += [f"--start {start_s:g}"] if start_s else []
    words += [f"--most-jobs {most_jobs}"] if most_jobs else []
    words += [f"--gpus {one}" for one in found.gpus] if found.gpus != GPUS else []
    words += [f"--seed {found.seed}"] if found.seed else []
    words += [f"--part {one}" for one in found.parts] if found.parts != PARTS else []
    return " ".join(words)


def _page_at(path: Path) -> str:
    """What is there already. Raises InvalidInput for what is no page, before anything is played."""
    from app.errors import InvalidInput
    from app.simulator.reproduction.cornucopia_page import with_part

    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        with_part(text, "a trace", "")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInput(
            f"--report: {path} cannot be added to ({error}); name a new file, or a page that this command has made",
            param="report",
        ) from None
    return text


def _write(path: Path, before: str, name: str, told: str) -> None:
    from allpass.cli import screen
    from app.errors import InvalidInput
    from app.simulator.reproduction.cornucopia_page import with_part

    try:
        path.write_text(with_part(before, name, told), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--report: {path} cannot be written ({error}); name another file", param="report") from None
    screen.say(f"wrote {path}")
