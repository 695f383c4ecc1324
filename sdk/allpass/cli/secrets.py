"""`allpass secret`: values that jobs may have and nobody may read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.group import make_group
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

secret = make_group()
Name = Annotated[str, typer.Argument(metavar="NAME", help="As the script finds it in its environment, e.g. HF_TOKEN.")]


@secret.callback()
def secrets() -> None:
    """Example: allpass secret set HF_TOKEN < token.txt

    Keep values (a Hugging Face token, a W&B key) for jobs that name them.
    """


@secret.command("set")
def set_(
    name: Name,
    from_file: Annotated[Path | None, typer.Option("--from-file", "-f", help="Read the value from this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The secret object (never its value).")] = False,
) -> None:
    """Example: allpass secret set HF_TOKEN < token.txt

    Store a value under NAME; an earlier one is replaced. The value is asked for, read from a pipe or from --from-file
    (one newline at its end is dropped). It is never an argument, where others could see it.
    """
    from allpass.wire.access import secret_name_problem

    problem = secret_name_problem(name)
    if problem is not None:
        raise CommandFailed(problem, hint="allpass secret set HF_TOKEN", code=WRONG_USAGE)
    value = _read(name, from_file)
    with connect() as client:
        stored = client.set_secret(name, value)
    if as_json:
        screen.print_json(stored)
        return
    typer.echo(f"{stored.name}   set   use it: allpass run --secret {stored.name} ...")


@secret.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="An array of secret objects, as in GET /v1/secrets.")] = False,
) -> None:
    """Example: allpass secret list

    List the names of the project's secrets. JOBS is how many unfinished jobs name each.
    """
    with connect() as client:
        found = list(client.secrets())
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("SECRET", flexible=True), Column("CREATED"), Column("CHANGED"), Column("JOBS", right=True)]
    rows: list[list[Cell | str]] = [
        [one.name, words.moment(one.created_at), words.moment(one.changed_at), str(one.used_by_jobs)] for one in found
    ]
    screen.print_table(columns, rows, empty="no secrets. Set one: allpass secret set HF_TOKEN < token.txt")


@secret.command("delete")
def delete(
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="The secret object as it was.")] = False,
) -> None:
    """Example: allpass secret delete HF_TOKEN

    Delete it at once. Runs that have it keep it until they end; jobs that name it and start later fail, and say so.
    """
    with connect() as client:
        gone = client.delete_secret(name)
    if as_json:
        screen.print_json(gone)
        return
    typer.echo(f"{gone.name}   deleted")
    if gone.used_by_jobs:
        typer.echo(
            f"{gone.used_by_jobs} unfinished jobs name it: their next run fails unless it is set again", err=True
        )


def _read(name: str, file: Path | None) -> str:
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise CommandFailed(f"--from-file {file}: cannot be read: {why}", code=WRONG_USAGE) from None
    elif sys.stdin.isatty():
        text = typer.prompt(f"Value of {name}", hide_input=True, err=True)
    else:
        text = sys.stdin.read()
    value = text.removesuffix("\n").removesuffix("\r")
    if not value:
        raise CommandFailed(
            "the value is empty", hint=f"allpass secret set {name} < file, or --from-file file", code=WRONG_USAGE
        )
    return value
