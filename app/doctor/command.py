"""`allpass doctor`: what stands between this set-up and a first real job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from app.core.model.finding import Finding
    from app.doctor.visit import Visit

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="One object: healthy, next, and findings with name, verdict, code, message.")
    ] = False,
    data_dir: Annotated[Path, typer.Option(help="of `allpass up`, where it is another")] = Path(".allpass"),
    quick: Annotated[bool, typer.Option("--quick", help="without half a minute for an idle connection")] = False,
) -> None:
    """Example: allpass doctor

    Check all that a first job on a real machine needs, without renting anything: accounts, addresses, object store,
    clock, image, database, disk, limits. Looks at the settings of this shell, at the stack that runs on --data-dir, or
    at the one that `allpass up --real` would start. Says what to do next; exit code 1 when something is wrong.
    """
    import asyncio
    import logging
    import os

    from app.core.model.finding import without_secrets
    from app.doctor.situation import Situation, look_around
    from app.doctor.visit import Visit, visit

    logging.disable(logging.CRITICAL)  # what libraries log may hold addresses with signatures
    around = look_around(data_dir, os.environ)
    if isinstance(around, Situation):
        seen = asyncio.run(visit(around, quick=quick))
    else:
        secrets = [value for name, value in os.environ.items() if name.startswith("ALLPASS_") and _is_secret(name)]
        found = [without_secrets(one, secrets) for one in around]
        seen = Visit(found, f"{found[0].fix}; then: allpass doctor")
    _print_json(seen) if as_json else _print(seen)
    raise typer.Exit(0 if seen.healthy else 1)


def _is_secret(name: str) -> bool:
    return name.endswith(("_KEY", "_SECRET", "_TOKEN", "_KEYS", "DATABASE_URL"))


def _print_json(seen: Visit) -> None:
    from app.core.model.finding import as_object

    told = {"healthy": seen.healthy, "next": seen.next_command, "findings": [as_object(one) for one in seen.findings]}
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def _print(seen: Visit) -> None:
    for one in seen.findings:
        print_finding(one)
    typer.echo(f"\nnext: {seen.next_command}")


def print_finding(one: Finding) -> None:
    """A line, and below it what to do."""
    from allpass.cli.screen import colours_wanted

    colour = _COLOURS[one.verdict.value] if colours_wanted(sys.stdout) else None
    typer.secho(f"{one.verdict.value:<5}", fg=colour, nl=False)
    typer.echo(f"{one.name:<16} {one.message}")
    if one.fix:
        typer.echo(f"{'':<21} -> {one.fix}")
