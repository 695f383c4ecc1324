"""`allpass budget`: what may be spent in an hour, a day or a month."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.group import Group
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect
from allpass.cli.template_options import dollars

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.budgets import Budget

budget = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, invoke_without_command=True)
_NOTHING = re.compile(r"\$?0+(\.0*)?")
_PERIODS = ("hour", "day", "month")
_STYLES = {"open": "green", "near": "yellow", "used_up": "red"}
_Period = Annotated[str, typer.Option("--period", help="hour, day or month, of UTC.")]
_Key = Annotated[str | None, typer.Option("--key", help="Only what jobs of this API key cost: its id, or its name.")]
_Provider = Annotated[str | None, typer.Option("--provider", help="Only what is spent at this provider.")]
_Installation = Annotated[
    bool, typer.Option("--installation", help="What all projects spend together. Needs a key with scope owner.")
]


@budget.callback()
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="An array of budgets, as in GET /v1/budgets.")] = False,
) -> None:
    """Example: allpass budget

    List what may be spent per hour, day or month of UTC, and how much of it is. FORESEEN is what will be spent when the
    period ends, if all that is rented now stays until then. Owners see the budgets of the installation, too.
    """
    if context.invoked_subcommand is not None:
        return
    with connect() as client:
        found = list(client.budgets())
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("FOR", flexible=True), Column("PERIOD"), Column("SPENT", right=True), Column("OF", right=True)]
    columns += [Column("FORESEEN", right=True), Column("UNTIL"), Column("STATE")]
    screen.print_table(
        columns,
        [_row(one) for one in found],
        empty="no budgets. Set one: allpass budget set --period day --amount 20",
    )


@budget.command("set")
def set_(
    period: _Period,
    amount: Annotated[str, typer.Option("--amount", help="The most of a period, in dollars; 0: nothing at all.")],
    key: _Key = None,
    provider: _Provider = None,
    installation: _Installation = False,
    as_json: Annotated[bool, typer.Option("--json", help="The budget object.")] = False,
) -> None:
    """Example: allpass budget set --period day --amount 20 --provider vast

    Set a budget, in the place of an earlier one for the same. When it is used up, the jobs that it covers save and
    pause, or wait, and go on by themselves in the next period. Needs a key with scope admin.
    """
    _check(period)
    usd = _amount(amount)
    with connect() as client:
        whose: dict[str, Any] = {"key_id": _key_id(client, key), "provider": provider}
        scope: Any = "installation" if installation else "project"
        chosen: Any = period
        stored = client.set_budget(chosen, usd, scope=scope, **whose)
    if as_json:
        screen.print_json(stored)
        return
    typer.echo(f"{_whose(stored)}: at most {words.money(stored.amount)} per {stored.period}")
    _tell_state(stored)


@budget.command("remove")
def remove(
    period: _Period,
    key: _Key = None,
    provider: _Provider = None,
    installation: _Installation = False,
    as_json: Annotated[bool, typer.Option("--json", help="The budget object as it was.")] = False,
) -> None:
    """Example: allpass budget remove --period day --provider vast

    Remove a budget, named as it was set. What it alone has held goes on by itself. Needs a key with scope admin.
    """
    _check(period)
    with connect() as client:
        wanted = ("installation" if installation else "project", _key_id(client, key), provider, period)
        every = {(one.scope, one.key_id, one.provider, one.period): one for one in client.budgets()}
        if wanted not in every:
            raise CommandFailed("there is no such budget", hint="allpass budget lists them", code=WRONG_USAGE)
        gone = client.remove_budget(every[wanted].id)
    if as_json:
        screen.print_json(gone)
        return
    typer.echo(f"{_whose(gone)}: {words.money(gone.amount)} per {gone.period}   removed")


def _check(period: str) -> None:
    if period not in _PERIODS:
        raise CommandFailed(
            f"--period: {period!r} is not one of: {', '.join(_PERIODS)}", hint="--period day", code=WRONG_USAGE
        )


def _amount(text: str) -> float:
    """As all amounts are written; here nothing is one, too."""
    return 0.0 if _NOTHING.fullmatch(text.strip()) else dollars("--amount", text)


def _key_id(client: Client, key: str | None) -> str | None:
    """By its id, or by its name where one key alone has it."""
    if key is None or key.startswith("key_"):
        return key
    every = list(client.keys())
    named = [one.id for one in every if one.name == key]
    if len(named) == 1:
        return named[0]
    many = f"{len(named)} keys have the name {key!r}" if named else f"no key has the name {key!r}"
    raise CommandFailed(f"--key: {many}", hint="--key KEY_ID; allpass key list shows them", code=WRONG_USAGE)


def _whose(one: Budget) -> str:
    whose = "all projects" if one.scope == "installation" else "the project"
    key = "" if one.key_id is None else f", {one.key_id}"
    return f"{whose}{key}" + ("" if one.provider is None else f", at {one.provider}")


def _row(one: Budget) -> list[Cell | str]:
    spent, foreseen = words.money(one.spent), words.money(one.foreseen)
    state = Cell(one.state.replace("_", " "), _STYLES.get(one.state))
    return [_whose(one), one.period, spent, words.money(one.amount), foreseen, words.moment(one.ends_at), state]


def _tell_state(one: Budget) -> None:
    if one.state == "used_up":
        until = words.moment(one.ends_at)
        typer.echo(f"{words.money(one.spent)} is spent already: its jobs pause, or wait, until {until}", err=True)
