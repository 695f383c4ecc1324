"""`allpass providers`: the rental companies, how each is doing, and whether it takes the service's credentials."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.faults import CommandFailed
from allpass.cli.group import Group
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.providers import BarredHost, Provider, ProviderCheck

providers = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, invoke_without_command=True)
_COLOURS = {"ok": "green", "failing": "yellow", "paused": "yellow", "refused": "red"}
_MOST_HOSTS = 5
_EMPTY = "no provider is configured: give the server the credentials of one"


@providers.callback()
def table(
    context: typer.Context,
    as_json: Annotated[
        bool, typer.Option("--json", help="An array of provider objects, as in GET /v1/providers.")
    ] = False,
) -> None:
    """Example: allpass providers

    List the rental companies that the server has credentials for: state, prices seen, last failure.
    """
    if context.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.providers()
    if as_json:
        screen.print_json(found)
        return
    now = datetime.now(timezone.utc)
    columns = [Column("PROVIDER"), Column("STATE"), Column("MACHINES", right=True), Column("OFFERS", right=True)]
    columns += [Column("PER GPU", flexible=True), Column("ANSWERED", right=True), Column("QUOTA ERRORS", right=True)]
    columns += [Column("LAST FAILURE", flexible=True)]
    screen.print_table(columns, [_row(one, now) for one in found], empty=_EMPTY)
    for one in found:
        if one.why:
            screen.say(f"{one.name}: {screen.printable(one.why)}")
        if one.barred_hosts:
            screen.say(f"{one.name}: {_barred(one.barred_hosts, now)}")


@providers.command("check")
def check(
    as_json: Annotated[bool, typer.Option("--json", help="An array of check objects.")] = False,
) -> None:
    """Example: allpass providers check

    Try the server's credentials at every provider, without renting anything. Fails when one does not take them.
    """
    with connect() as client:
        found = client.check_providers()
    if as_json:
        screen.print_json(found)
    else:
        columns = [Column("PROVIDER"), Column("CREDENTIALS"), Column("MACHINES", right=True)]
        columns += [Column("OFFERS", right=True), Column("TOOK", right=True), Column("MESSAGE", flexible=True)]
        screen.print_table(columns, [_checked(one) for one in found], empty=_EMPTY)
    wrong = [one.name for one in found if one.code is not None]
    if wrong:
        raise CommandFailed(f"not usable now: {', '.join(wrong)}", hint="allpass providers")


def _row(one: Provider, now: datetime) -> list[Cell | str]:
    failure = one.last_failure
    return [
        one.name,
        Cell(one.state, _COLOURS.get(one.state)),
        str(one.machines),
        str(one.offers),
        "  ".join(f"{price.gpu_type} {_range(price.lowest, price.highest)}" for price in one.prices) or "-",
        "never" if one.last_success_at is None else f"{words.duration(now - one.last_success_at)} ago",
        str(one.quota_errors),
        "-" if failure is None else f"{failure.call} {failure.code}, {words.duration(now - failure.at)} ago",
    ]


def _barred(hosts: list[BarredHost], now: datetime) -> str:
    """The first few by name, and how many there are."""
    told = [f"{screen.printable(host.host)} for {words.duration(host.until - now)}" for host in hosts[:_MOST_HOSTS]]
    more = ["..."] if len(hosts) > _MOST_HOSTS else []
    subject = "1 host that failed is" if len(hosts) == 1 else f"{len(hosts)} hosts that failed are"
    return f"{subject} left alone: {', '.join(told + more)}"


def _range(lowest: int, highest: int) -> str:
    return words.price(lowest) if lowest == highest else f"{words.price(lowest)} to {words.price(highest)}"


def _checked(one: ProviderCheck) -> list[Cell | str]:
    taken = Cell("taken", "green") if one.code is None else Cell(one.code, "red")
    counts = ["-" if count is None else str(count) for count in (one.machines, one.offers)]
    return [one.name, taken, *counts, words.duration(one.took_ms / 1000), one.message]
