"""`allpass calibrations`: what runs taught the prediction of memory, to be seen and switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.group import make_group
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.calibrations import Calibration

calibrations = make_group()
Id = Annotated[str, typer.Argument(metavar="ID", help="As listed, e.g. cal_01j9zk.")]
AsJson = Annotated[bool, typer.Option("--json", help="The calibration object.")]


@calibrations.callback()
def about() -> None:
    """Example: allpass calibrations list

    See how far predicted memory was off for this project's runs, and switch a correction off.
    """


@calibrations.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="An array, as in GET /v1/calibrations.")] = False,
) -> None:
    """Example: allpass calibrations list

    List them. RATIO is measured over predicted memory, WEIGHT how much that counts against the model.
    """
    with connect() as client:
        found = list(client.calibrations())
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("CALIBRATION"), Column("OF", flexible=True), Column("GPU"), Column("RUNS", right=True)]
    columns += [Column("RATIO", right=True), Column("WEIGHT", right=True), Column("STATE")]
    rows: list[list[Cell | str]] = [
        [one.id, _of(one), one.gpu_type, str(one.runs), f"{one.ratio:.2f}", f"{one.weight:.0%}", _state(one)]
        for one in found
    ]
    screen.print_table(columns, rows, empty="no calibrations yet: runs that report their peak memory make them")


@calibrations.command("show")
def show(calibration: Id, as_json: AsJson = False) -> None:
    """Example: allpass calibrations show cal_01j9zk

    Show one, with what it does to a prediction.
    """
    with connect() as client:
        found = client.get_calibration(calibration)
    if as_json:
        screen.print_json(found)
        return
    effect = found.ratio**found.weight
    typer.echo(f"{found.id}   {_of(found)} on {found.gpu_type}   {_state(found)}")
    typer.echo(f"  libraries      {found.versions or 'not told'}")
    typer.echo(f"  runs           {found.runs}, the last one on {words.moment(found.updated_at)}")
    typer.echo(f"  measured       {found.ratio:.2f} x what was predicted, of which {found.weight:.0%} counts")
    typer.echo(f"  fragmentation  {found.fragmentation:.0%} beside what tensors take")
    typer.echo(f"  overhead       {words.size(found.overhead_bytes)} of the process beside that")
    if not found.enabled:
        typer.echo("  switched off: predictions go by the model alone")
    elif effect < 1 and not found.lowers:
        typer.echo("  too few runs to let a job on less memory than the model says")
    else:
        typer.echo(f"  predictions of this kind are taken times {effect:.2f}")


@calibrations.command("disable")
def disable(calibration: Id, as_json: AsJson = False) -> None:
    """Example: allpass calibrations disable cal_01j9zk

    Predictions of its kind go by the model alone, from the next plan and the next submission on. It goes on learning.
    """
    _switch(calibration, as_json, enabled=False)


@calibrations.command("enable")
def enable(calibration: Id, as_json: AsJson = False) -> None:
    """Example: allpass calibrations enable cal_01j9zk

    Have it correct predictions again.
    """
    _switch(calibration, as_json, enabled=True)


def _switch(calibration: str, as_json: bool, *, enabled: bool) -> None:
    with connect() as client:
        found = client.switch_calibration(calibration, enabled=enabled)
    if as_json:
        screen.print_json(found)
        return
    other = "disable" if enabled else "enable"
    typer.echo(f"{found.id}   {_state(found)}   undo: allpass calibrations {other} {found.id}")


def _of(one: Calibration) -> str:
    return f"{one.family} {one.method}, {one.kernel}"


def _state(one: Calibration) -> str:
    if not one.enabled:
        return "off"
    return "on" if one.lowers else "on, raises only"
