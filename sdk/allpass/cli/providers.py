"""`allpass providers`: the rental companies, how each is doing, and whether it takes the service's credentials."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.dated_prices import tell_dates
from allpass.cli.faults import CommandFailed
from allpass.cli.group import Group
from allpass.cli.prices import prices
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.providers import BarredHost, ImageBuild, Provider, ProviderCheck, ReachFinding

providers = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False, invoke_without_command=True)
_COLOURS = {"ok": "green", "failing": "yellow", "paused": "yellow", "refused": "red"}
_MOST_HOSTS = 5
_SETTLED = {"ready", "failed"}
_LOOK_S = 2.0
_NOTHING = timedelta(0)
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
    tell_dates((one.name, one.price_list.oldest, one.price_list.is_old) for one in found if one.price_list is not None)
    for one in found:
        if one.why:
            screen.say(f"{one.name}: {screen.printable(one.why)}")
        for build in one.images:
            if build.state != "ready":
                screen.say(f"{one.name}: {_built(build, now)}")
        if one.barred_hosts:
            screen.say(f"{one.name}: {_barred(one.barred_hosts, now)}")


@providers.command("check")
def check(
    as_json: Annotated[
        bool, typer.Option("--json", help="An array of check objects; with --reach an object of checks and reach.")
    ] = False,
    reach: Annotated[
        bool, typer.Option("--reach", help="also go to API and object store as a rented machine would: half a minute")
    ] = False,
) -> None:
    """Example: allpass providers check --reach

    Try the server's credentials at every provider, without renting anything. Fails when one does not take them, or
    when the server does not reach itself through its public addresses.
    """
    with connect() as client:
        answer = client.check_service() if reach else None
        found = client.check_providers() if answer is None else answer.checks
    if as_json:
        screen.print_json(found if answer is None else answer)
    else:
        columns = [Column("PROVIDER"), Column("CREDENTIALS"), Column("MACHINES", right=True)]
        columns += [Column("OFFERS", right=True), Column("TOOK", right=True), Column("MESSAGE", flexible=True)]
        screen.print_table(columns, [_checked(one) for one in found], empty=_EMPTY)
    if answer is not None and not as_json:
        _print_reach(answer.reach)
    wrong = [one.name for one in found if one.code is not None]
    wrong += [one.name for one in (answer.reach if answer else []) if one.verdict == "fail"]
    if wrong:
        raise CommandFailed(f"not usable now: {', '.join(wrong)}", hint="allpass providers")


@providers.command("prepare")
def prepare(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="As an app or template names it.")],
    provider: Annotated[str | None, typer.Option("--provider", help="Only there.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the build to its end.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="An array of build objects, at the end.")] = False,
) -> None:
    """Example: allpass providers prepare docker.io/lab/train:7

    Have an image built ahead at providers that build images before they run them, so that no job waits for that. Tries
    one again that failed. Fails when it cannot be built.
    """
    with connect() as client:
        found = client.prepare_image(image, provider=provider)
        names = {one.provider for one in found}
        told: dict[str, str] = {}
        while True:
            if not as_json:
                _tell_news(found, told)
            if not wait or all(one.state in _SETTLED for one in found):
                break
            time.sleep(_LOOK_S)
            found = [one for one in client.image_builds(image) if one.provider in names]
    if as_json:
        screen.print_json(found)
    elif not found:
        screen.say("no provider here builds images ahead: machines fetch them when they start")
    _fail_if_any(found)


def _tell_news(found: list[ImageBuild], told: dict[str, str]) -> None:
    """Each provider's state, when it has changed."""
    for one in found:
        if told.get(one.provider) != one.state:
            told[one.provider] = one.state
            screen.say(f"{one.provider}: {_built(one, datetime.now(timezone.utc))}")


def _fail_if_any(found: list[ImageBuild]) -> None:
    failed = [one for one in found if one.state == "failed"]
    for one in failed:
        for line in (one.log or "").splitlines():
            screen.say(f"  {screen.printable(line)}")
    if failed:
        where = ", ".join(one.provider for one in failed)
        hint = f"correct the image, then: allpass providers prepare {failed[0].image}"
        raise CommandFailed(f"cannot be built now: {screen.printable(failed[0].image)} at {where}", hint=hint)


def _built(one: ImageBuild, now: datetime) -> str:
    name = screen.printable(one.image)
    if one.state == "failed":
        again = "" if one.again_at is None else f"; tried again in {words.duration(max(_NOTHING, one.again_at - now))}"
        return f"could not build {name}: {screen.printable(one.why or '')}{again}"
    if one.state == "ready":
        return f"has built {name}: machines can run it"
    if one.state == "wanted":
        return f"is about to build {name}"
    left = "" if one.ready_at is None else f", about {words.duration(max(_NOTHING, one.ready_at - now))} to go"
    return f"builds {name}{left}"


def _print_reach(reach: list[ReachFinding]) -> None:
    columns = [Column("WAY"), Column("FOUND"), Column("MESSAGE", flexible=True)]
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    rows: list[list[Cell | str]] = [
        [one.name, Cell(one.verdict, colours[one.verdict]), " -> ".join(filter(None, (one.message, one.fix)))]
        for one in reach
    ]
    screen.print_table(columns, rows, empty="this server is of a release that does not look at the way to it")
    screen.say("seen from the server itself: a rented machine may meet another firewall (allpass smoke shows that)")


providers.command("prices")(prices)


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
