"""`allpass simulate --search-regret`: cases in which the default policy is a bad choice, worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from allpass.cli import screen
from app.cli import figures
from app.cli.progress import progress_line
from app.errors import InvalidInput
from app.simulator.options import Options
from app.simulator.regret import Regret, search, shrunk
from app.simulator.worlds.known import FRIENDLY

_SHOWN = 10
_COLUMNS = [
    screen.Column("CASE", right=True),
    screen.Column("DEARER", right=True),
    screen.Column("THAN", flexible=True),
    *(screen.Column(heading, right=True) for heading in ("COST", "ITS", "WAIT", "ITS", "LATE", "ITS")),
]


def search_regret(
    many: int, first: int, given: Mapping[str, object], *, world: str | None = None, as_json: bool
) -> None:
    """Draws so many cases, from `first` on, and makes the worst one small."""
    beside = [name for name, value in given.items() if value is not None]
    if beside:
        raise InvalidInput(
            f"--{beside[0]}: means nothing with --search-regret, which draws workloads and worlds by itself; leave it "
            "out, or simulate one case",
            param=beside[0],
        )
    name = Options().having("world", world).world_name if world is not None else FRIENDLY.name
    with progress_line("cases") as line:
        found = search(range(first, first + many), line, name)
    worst = shrunk(found[0]) if found[0].excess else None
    if as_json:
        screen.print_json({"cases": [as_words(one) for one in found], "smallest": worst and as_words(worst)})
    else:
        _show(found, worst)


def as_words(one: Regret) -> dict[str, Any]:
    """A case with what came of it, for programs."""
    return {
        "case": one.case.seed,
        "excess": one.excess,
        "than": one.best or None,
        "allpass": _few(one.ours),
        "other": _few(one.theirs) if one.best else None,
        "commands": list(one.case.commands()),
    }


def _few(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: values[name] for name in ("cost_usd", "mean_wait_s", "deadline_miss_share")}


def _show(found: Sequence[Regret], worst: Regret | None) -> None:
    regretted = [one for one in found if one.excess]
    typer.echo(
        f"In {len(regretted)} of {len(found)} cases a simple policy costs less, and neither waits clearly longer nor "
        "is late clearly more often."
    )
    if worst is None:
        return
    typer.echo()
    screen.print_table(_COLUMNS, [_cells(one) for one in regretted[:_SHOWN]], empty="")
    typer.echo()
    typer.echo(f"The first of them, made small: {figures.share(worst.excess)} dearer than {worst.best}")
    typer.echo()
    for command in worst.case.commands():
        typer.echo(f"  {command}")


def _cells(one: Regret) -> list[str]:
    pairs = [
        (figures.money, "cost_usd"),
        (figures.time, "mean_wait_s"),
        (figures.share, "deadline_miss_share"),
    ]
    cells = [words(values[name]) for words, name in pairs for values in (one.ours, one.theirs)]
    return [str(one.case.seed), figures.share(one.excess), one.best, *cells]
