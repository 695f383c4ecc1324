"""`allpass reproduce spotgpu`: the claims of the SpotGPU paper that can be played."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.simulator.placing import PlacementWorkload
    from app.simulator.reproduction.spotgpu.experiments import SpotReproduced


def spotgpu(
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Jobs of the pool, played whole; default: 1,500 generated ones.")
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option("--workload", help="Pods to place (openb_pod_list), with --nodes; default: generated."),
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option("--nodes", help="Where they are placed (openb_node_list), with --workload.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Figures are means over the seeds from 1 on.")] = 5,
    report: Annotated[Path | None, typer.Option("--report", help="Write the page into this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Tables as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One object with all figures.")] = False,
) -> None:
    """Example: allpass reproduce spotgpu --seeds 1

    Play what can be played of the SpotGPU paper's claims and put its figures beside ours.
    Whole nodes by chains of moves, two months of a pool with and without them, switches for a gang, placing, whom to
    end for a guaranteed job, how much of a pool is used. Takes some minutes on two cores.
    """
    from allpass.cli import screen
    from app.cli.progress import progress_line
    from app.simulator.reproduction.spotgpu import experiments, telling
    from app.simulator.traces.reading import read_trace

    jobs = experiments.usual_jobs() if trace is None else read_trace(trace)
    pods = _workload(workload, nodes)
    if report is not None:
        _check_writable(report)
    with progress_line("plays") as line:
        found = experiments.reproduce_spot(jobs, pods, range(1, seeds + 1), line)
    if report is not None:
        report.write_text(telling.page(found, _command(trace, workload, nodes, seeds, report)), encoding="utf-8")
        screen.say(f"wrote {report}")
    if as_json:
        screen.print_json(telling.as_object(found))
    elif as_markdown:
        typer.echo(telling.markdown(found), nl=False)
    else:
        _show(found)


def _workload(pods: Path | None, nodes: Path | None) -> PlacementWorkload:
    from app.errors import InvalidInput
    from app.simulator.placing import PlacementWorkload, read_nodes, read_pods
    from app.simulator.reproduction.spotgpu.experiments import usual_workload

    if pods is None and nodes is None:
        return usual_workload()
    if pods is None or nodes is None:
        missing = "workload" if pods is None else "nodes"
        raise InvalidInput(f"--{missing}: is missing; give --workload and --nodes together, or neither", param=missing)
    return PlacementWorkload(pods.name, read_nodes(nodes), read_pods(pods))


def _check_writable(report: Path) -> None:
    """Before minutes are spent."""
    from app.errors import InvalidInput

    if report.is_dir() or not report.parent.is_dir():
        why = "is a folder" if report.is_dir() else f"there is no folder {report.parent}"
        raise InvalidInput(f"--report {report}: {why}; name a file in a folder that is there", param="report")


def _command(trace: Path | None, workload: Path | None, nodes: Path | None, seeds: int, report: Path) -> str:
    """What was called. Files are told by their name alone: a page is read elsewhere than where it was made."""
    words = ["allpass", "reproduce", "spotgpu"]
    for option, path in (("--trace", trace), ("--workload", workload), ("--nodes", nodes)):
        words += [] if path is None else [option, path.name]
    return shlex.join([*words, "--seeds", str(seeds), "--report", str(report)])


def _show(found: SpotReproduced) -> None:
    from allpass.cli import screen
    from allpass.cli.screen import Column
    from app.simulator.reproduction.spotgpu import claims, telling

    typer.echo(telling.about(found))
    columns = [Column(telling.HEADINGS[0]), *(Column(one, right=True) for one in telling.HEADINGS[1:])]
    for part in claims.parts_of(found):
        typer.echo(f"\n{part.title}")
        screen.print_table(columns, [telling.row_of(one) for one in part.claims], empty="")
        typer.echo(textwrap.fill(f"Why: {part.why}", screen.WIDEST, break_on_hyphens=False))
    typer.echo(f"\n{telling.NOT_PLAYED_TITLE}")
    for about, why in claims.NOT_PLAYED:
        typer.echo(textwrap.fill(f"{about}: {why}", screen.WIDEST, subsequent_indent="  ", break_on_hyphens=False))
