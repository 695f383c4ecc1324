"""`allpass context`: the servers that `allpass login` remembered, and which one is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen
from allpass.cli.group import make_group
from allpass.cli.screen import Cell, Column

if TYPE_CHECKING:
    from allpass.config import Context

context = make_group()
Name = Annotated[str, typer.Argument(metavar="NAME", help="As given to allpass login --context.")]
AsJson = Annotated[bool, typer.Option("--json", help='{"name", "url", "current"}.')]


@context.callback()
def contexts() -> None:
    """Example: allpass context use prod

    Choose between the servers that allpass login remembered. ALLPASS_CONTEXT=NAME chooses one for one command.
    """


@context.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help='An array of {"name", "url", "current"}.')] = False,
) -> None:
    """Example: allpass context list

    List the remembered servers. The current one (*) is used unless the environment or a stack in this folder says else.
    """
    from allpass.config import list_contexts

    known = list_contexts()
    if as_json:
        screen.print_json([_plain(one) for one in known])
        return
    columns = [Column(""), Column("CONTEXT"), Column("SERVER", flexible=True)]
    rows: list[list[Cell | str]] = [["*" if one.current else " ", one.name, one.url] for one in known]
    screen.print_table(columns, rows, empty="no server is remembered. Remember one: allpass login URL")
    _say_what_is_used()


@context.command("use")
def use(name: Name, as_json: AsJson = False) -> None:
    """Example: allpass context use prod

    Make a remembered server the current one.
    """
    from allpass.config import use_context

    _tell(use_context(name), as_json, "is the current context")
    _say_what_is_used()


@context.command("remove")
def remove(name: Name, as_json: AsJson = False) -> None:
    """Example: allpass context remove staging

    Forget a server and the key to it. The key itself stays usable: allpass key revoke KEY ends it.
    """
    from allpass.config import remove_context

    _tell(remove_context(name), as_json, "is forgotten")


def _tell(chosen: Context, as_json: bool, what: str) -> None:
    if as_json:
        screen.print_json(_plain(chosen))
        return
    typer.echo(f"{chosen.name} ({chosen.url}) {what}")


def _plain(one: Context) -> dict[str, str | bool]:
    return {"name": one.name, "url": one.url, "current": one.current}


def _say_what_is_used() -> None:
    """To people: the current context is not the last word."""
    from allpass.config import find_connection
    from allpass.errors import ConfigurationError

    try:
        used = find_connection()
    except ConfigurationError as error:
        screen.say(f"here: {error.message}")
    else:
        screen.say(f"here: {used.url} ({used.origin})")
