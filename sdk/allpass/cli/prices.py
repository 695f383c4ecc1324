"""`allpass providers prices`: prices of companies that have no interface for them, and how to correct them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.dated_prices import exact, tell_list
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.price_files import EXAMPLE, prices_in, typed_prices
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.price_lists import ListPrice, PriceList
    from allpass.wire.providers import PriceRefresh

_SOURCES = {"owner": "yours", "setting": "setting", "list": "list"}
_FAR_OFF = "price_far_off"


def prices(
    provider: Annotated[str | None, typer.Argument(metavar="PROVIDER", help="Only this one's.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=DOLLARS", help="What it costs per hour. With --clear: NAME alone."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="DATE", help="The day of these prices; today unless given.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--from", metavar="FILE", help="Prices by name, as JSON or CSV.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take back what was set: these names, or all.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Ask every company that can be asked, now.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Also prices more than three times those in use, or under a third.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The price list, or an object of lists by provider.")] = False,
) -> None:
    """Example: allpass providers prices modal H100=3.65 cpu=0.1415 --as-of 2026-11-20

    Show the prices of companies that have no interface for them: as published, as you have set them, and what is used.
    With NAME=DOLLARS (per hour), set them for the whole installation, from the next listing on. Setting needs a key
    with scope owner, --refresh one with scope admin.
    """
    setting = bool(changes or file) and not clear
    if refresh and (provider or file or clear):
        raise _wrong("--refresh asks all companies, and changes nothing")
    if ((clear or setting) and not provider) or "=" in (provider or ""):
        raise _wrong("whose prices? Name the provider")
    if clear and file:
        raise _wrong("--clear takes prices back, and --from sets some")
    if as_of is not None and not setting:
        raise _wrong("--as-of: no price is given")
    if refresh:
        _refresh(as_json=as_json)
    elif provider is None:
        _show_all(as_json=as_json)
    elif setting:
        _set(provider, changes or [], file, as_of, yes=yes, as_json=as_json)
    else:
        _clear_or_show(provider, changes or None, clear=clear, as_json=as_json)


def _wrong(message: str) -> CommandFailed:
    return CommandFailed(message, hint=EXAMPLE, code=WRONG_USAGE)


def _show_all(*, as_json: bool) -> None:
    with connect() as client:
        found = client.providers()
    lists = {one.name: one.price_list for one in found}
    if as_json:
        screen.print_json({name: None if one is None else one.model_dump(mode="json") for name, one in lists.items()})
        return
    _print({name: one for name, one in lists.items() if one is not None})
    asked = [screen.printable(name) for name, one in lists.items() if one is None]
    if asked:
        screen.say(f"prices that come with every listing: {', '.join(asked)}   (allpass offers)")


def _set(provider: str, changes: list[str], file: Path | None, as_of: str | None, *, yes: bool, as_json: bool) -> None:
    from allpass.errors import Conflict

    given = typed_prices(changes)
    if file is not None:
        read, day = prices_in(file)
        twice = sorted(given.keys() & read.keys())
        if twice:
            raise _wrong(f"{twice[0]} has two prices: here, and in {file}")
        given, as_of = given | read, as_of or day
    with connect() as client:
        try:
            found = client.set_prices(provider, given, as_of=as_of, confirm=yes)
        except Conflict as error:
            if error.code != _FAR_OFF:
                raise
            told = error.message.partition("; send it again")[0]
            raise CommandFailed(told, hint="the same with --yes, if it is meant") from None
    _tell(provider, found, as_json=as_json)
    screen.say("in force from the next listing on; at once: allpass providers prices --refresh")


def _clear_or_show(provider: str, names: list[str] | None, *, clear: bool, as_json: bool) -> None:
    with connect() as client:
        found = client.remove_prices(provider, names) if clear else client.price_list(provider)
    _tell(provider, found, as_json=as_json)


def _refresh(*, as_json: bool) -> None:
    with connect() as client:
        found = client.refresh_prices()
    if as_json:
        screen.print_json(found)
    else:
        columns = [Column("PROVIDER"), Column("PRICES"), Column("OFFERS", right=True), Column("TOOK", right=True)]
        columns.append(Column("MESSAGE", flexible=True))
        screen.print_table(columns, [_refreshed(one) for one in found], empty="no provider is configured")
        for one in found:
            if one.price_list is not None:
                screen.say(f"to correct its prices: allpass providers prices {one.name} NAME=DOLLARS")
                tell_list(one.name, one.price_list)
    wrong = [one.name for one in found if one.code is not None]
    if wrong:
        raise CommandFailed(f"not asked: {', '.join(wrong)}", hint="allpass providers")


def _refreshed(one: PriceRefresh) -> list[Cell | str]:
    state = Cell("asked", "green") if one.code is None else Cell(one.code, "red")
    message = one.message
    if one.price_list is not None and one.code is None:
        state = Cell(f"of {one.price_list.as_of}", "yellow" if one.price_list.is_old else None)
        message = "has no interface to ask for prices"
    offers = "-" if one.offers is None else str(one.offers)
    return [one.name, state, offers, words.duration(one.took_ms / 1000), message]


def _tell(provider: str, found: PriceList, *, as_json: bool) -> None:
    if as_json:
        screen.print_json(found)
    else:
        _print({provider: found})


def _print(lists: dict[str, PriceList]) -> None:
    columns = [Column("PROVIDER"), Column("NAME"), Column("PUBLISHED", right=True), Column("YOURS", right=True)]
    columns += [Column("USED PER HOUR", right=True), Column("FROM"), Column("AS OF")]
    rows = [_row(name, one) for name, listed in lists.items() for one in listed.prices]
    screen.print_table(columns, rows, empty="no provider has a price list: all tell their prices with every listing")
    for name, listed in lists.items():
        screen.say(f"{screen.printable(name)}: published prices of {listed.as_of}")
        tell_list(name, listed)


def _row(provider: str, one: ListPrice) -> list[Cell | str]:
    published, own, used = ("-" if each is None else exact(each) for each in (one.published, one.own, one.used))
    source = "not in use" if one.source is None else _SOURCES[one.source]
    day = Cell("-" if one.as_of is None else str(one.as_of), "yellow" if one.is_old else None)
    return [provider, one.name, published, own, used, source, day]
