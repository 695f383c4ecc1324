"""`allpass smoke`: the first paid machine, below a ceiling and with an end that is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def smoke(
    provider: Annotated[str, typer.Argument(help="where to rent, as `allpass providers` names it")],
    most_dollars: Annotated[float, typer.Option(min=0.01, max=1000, help="most that all of it may cost")],
    most_minutes: Annotated[int, typer.Option(min=2, max=240, help="longest time until all is ended")] = 30,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask before spending")] = False,
    data_dir: Annotated[Path, typer.Option(help="of `allpass up`, where it is another")] = Path(".allpass"),
    report: Annotated[Path, typer.Option(help="folder for the report")] = Path(),
    quick: Annotated[
        bool, typer.Option("--quick", help="without the half minute that an idle connection takes")
    ] = False,
) -> None:
    """Example: allpass smoke vast --most-dollars 2

    Rent one machine, train a few steps with the image that jobs get, save, go on at that step on a second machine, end
    both, and read the bill. COSTS MONEY, at most --most-dollars: says each step before it happens, and asks first.
    Looks at all that `allpass doctor` does before, and rents nothing when something is wrong. Ctrl-C ends the machines,
    too.

    Exit code 0: it worked. 1: it did not, or nothing was rented; no machine is left. 3: something may be left, and the
    last lines name it.
    """
    from app.smoke.session import SmokeOptions, run

    code = run(SmokeOptions(provider, most_dollars, most_minutes, yes, data_dir, report, quick), say=_say, asks=_asks)
    raise typer.Exit(code)


def _say(line: str) -> None:
    typer.echo(line)


def _asks(question: str) -> bool:
    import sys

    return sys.stdin.isatty() and typer.confirm(question, default=False)
