"""`allpass limits`: what the installation may rent from companies that ask for real money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.group import Group
from allpass.cli.session import connect
from allpass.cli.template_options import dollars

if TYPE_CHECKING:
    from allpass.wire.limits import Limits

limits = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, invoke_without_command=True)
NONE = "none"


@limits.callback()
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="The object of GET /v1/limits.")] = False,
) -> None:
    """Example: allpass limits

    Show how many machines the installation may rent at real providers, what it may spend there in a day of UTC, and how
    much of that is used up. Needs a key with scope owner.
    """
    if context.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.limits()
    _tell(found, as_json=as_json)


@limits.command("set")
def set_(
    machines: Annotated[str | None, typer.Option("--machines", help='Most at once; "none" for no limit.')] = None,
    per_day: Annotated[
        str | None, typer.Option("--per-day", help='Most in a day of UTC, in dollars; "none" for no limit.')
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The limits object.")] = False,
) -> None:
    """Example: allpass limits set --machines 10 --per-day 200

    Change the limits. What is not named stays as it is. Needs a key with scope owner.
    """
    change: dict[str, Any] = {}
    if machines is not None:
        change["machines"] = None if machines == NONE else _number(machines)
    if per_day is not None:
        change["per_day_usd"] = None if per_day == NONE else dollars("--per-day", per_day)
    if not change:
        raise CommandFailed("nothing is to be changed", hint="--machines 10, or --per-day 200", code=WRONG_USAGE)
    with connect() as client:
        found = client.update_limits(**change)
    _tell(found, as_json=as_json)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise CommandFailed(
            f"--machines: {text!r} is not a number of machines", hint="--machines 10, or none", code=WRONG_USAGE
        )
    return int(text)


def _tell(found: Limits, *, as_json: bool) -> None:
    if as_json:
        screen.print_json(found)
        return
    most = "no limit" if found.machines is None else f"at most {found.machines}"
    day = "no limit" if found.per_day is None else f"at most {words.money(found.per_day)}"
    where = ", ".join(found.providers) or "none is configured: nothing is limited"
    facts = [
        ("machines", f"{found.machines_rented}, {most}   (allpass limits set --machines N)"),
        ("today", f"{words.money(found.spent_today)}, {day}   (allpass limits set --per-day DOLLARS)"),
        ("day ends", words.moment(found.day_ends_at)),
        ("counted at", where),
    ]
    screen.print_facts(facts)
