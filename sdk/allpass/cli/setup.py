"""Commands about the client itself: login, schema."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from allpass.cli import screen
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.group import make_group


def login(
    url: Annotated[str, typer.Argument(help="Address of the server, e.g. https://allpass.example.com")],
    context: Annotated[str, typer.Option(help="Name to keep it under; ALLPASS_CONTEXT chooses one.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help='{"url", "context", "file"}.')] = False,
) -> None:
    """Example: allpass login https://allpass.example.com

    Check an API key and remember it (readable by you only). The key is asked for, or read from a pipe; it is never an
    argument, where others could see it.
    """
    import os

    from allpass.client import Client
    from allpass.config import save_context

    asked = sys.stdin.isatty()
    key = (typer.prompt("API key", hide_input=True, err=True) if asked else sys.stdin.readline()).strip()
    if not key:
        raise CommandFailed("no API key was given", hint=f"allpass login {url} < key.txt", code=WRONG_USAGE)
    with Client(url, key) as client:
        next(client.apps(), None)
    file = save_context(context, url, key)
    if as_json:
        screen.print_json({"url": client.url, "context": context, "file": os.fspath(file)})
        return
    typer.echo(f"{client.url} is now the server of these commands (context {context}, kept in {file})")


schema = make_group()


@schema.callback()
def schemas() -> None:
    """Example: allpass schema template > template.schema.json

    Print the JSON Schema of a file that Allpass reads.
    """


@schema.command("template")
def template() -> None:
    """Example: allpass schema template > template.schema.json

    Print the JSON Schema of template.json: every field, its type, bounds and default.
    """
    from allpass.templates import template_schema

    screen.print_json(template_schema())
