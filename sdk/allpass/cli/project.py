"""`allpass project`: what is settled for all jobs of the project."""

from __future__ import annotations

from typing import Annotated

import typer

from allpass.cli import screen
from allpass.cli.session import connect


def project(
    ahead: Annotated[
        bool | None,
        typer.Option(
            "--ahead/--no-ahead",
            help="Rent machines before the next job comes, and keep them a while, where jobs come often; or never.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The object of GET /v1/project.")] = False,
) -> None:
    """Example: allpass project --no-ahead

    Show the project, or change what is settled for all of its jobs. With --no-ahead a machine that no job needs is
    given back at once: the bill has less idle time, and the next job waits until a machine has started.
    """
    with connect() as client:
        found = client.project() if ahead is None else client.update_project(ahead=ahead)
    if as_json:
        screen.print_json(found)
        return
    ahead_now, other = ("while jobs come often", "--no-ahead") if found.ahead else ("never", "--ahead")
    facts = [("id", found.id), ("kept ahead", f"{ahead_now}   (change: allpass project {other})")]
    typer.echo(found.name)
    screen.print_facts(facts)
