"""The command that keeps GPUs of a pool for a window, lists what is kept, and gives it up."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect
from allpass.cli.template_options import seconds
from allpass.cli.zones import moment_of, zone_named

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.reservations import Reservation

_SHAPE = re.compile(r"(\d{1,6})\s*[xX*]\s*(\S.*)\Z")
_HOW = 'allpass reserve lab 8xA100 --from "2026-12-01 08:00" --for 8h'
_STYLES = {"open": "green", "planned": "blue", "short": "yellow"}


def reserve(
    args: Annotated[
        list[str],
        typer.Argument(metavar="POOL GPUS | list | show ID | end ID", help="Name of the pool, and 8xA100; or an id."),
    ],
    begins: Annotated[
        str | None, typer.Option("--from", metavar="WHEN", help='"2026-12-01 08:00", or 08:00; left out: from now on.')
    ] = None,
    ends: Annotated[str | None, typer.Option("--to", metavar="WHEN", help="Until when, written as --from.")] = None,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="How long, in place of --to: 8h.")
    ] = None,
    zone: Annotated[
        str | None, typer.Option("--zone", help="Whose clock times are of: Europe/Rome; left out: this computer's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The reservation; of `list` an array.")] = False,
) -> None:
    """Example: allpass reserve lab 8xA100 --from "2026-12-01 08:00" --for 8h

    Keep GPUs of a pool for the project. In that window no guaranteed job of another project begins on them; spot jobs
    use them while they are idle, and leave when a guaranteed job of the project wants them. `allpass reserve list`,
    `show ID` and `end ID` are about those that there are.
    """
    if args[0] in ("list", "show", "end"):
        if begins or ends or lasts or zone:
            raise CommandFailed(f"{args[0]} takes no times", hint=_HOW, code=WRONG_USAGE)
        _about(args[0], args[1:], as_json)
        return
    pool, gpus, gpu_type = _read(args)
    begins_at, ends_at = _window(begins, ends, lasts, zone)
    with connect() as client:
        made = client.reserve(pool, gpu_type, gpus, begins_at=begins_at, ends_at=ends_at)
    _tell(made, as_json)


def _about(verb: str, ids: list[str], as_json: bool) -> None:
    if len(ids) != (verb != "list"):
        what = "takes nothing else" if verb == "list" else "takes the id of one reservation"
        raise CommandFailed(f"{verb} {what}", hint="allpass reserve list", code=WRONG_USAGE)
    with connect() as client:
        if verb == "list":
            _list(client, as_json)
        else:
            _tell(client.reservation(ids[0]) if verb == "show" else client.end_reservation(ids[0]), as_json)


def _list(client: Client, as_json: bool) -> None:
    found = list(client.reservations())
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("RESERVATION"), Column("POOL"), Column("GPUS"), Column("STATE"), Column("FROM"), Column("TO")]
    columns += [Column("USED", right=True), Column("WHY", flexible=True, rank=1)]
    rows: list[list[Cell | str]] = [
        [
            one.id,
            one.pool,
            f"{one.gpus}x{one.gpu_type}",
            Cell(one.state, _STYLES.get(one.state, "")),
            words.moment(one.begins_at),
            words.moment(one.ends_at),
            f"{one.own_gpus + one.spot_gpus} of {one.kept_gpus}" if one.state in ("open", "short") else "-",
            one.why or "",
        ]
        for one in found
    ]
    screen.print_table(columns, rows, empty=f"nothing is reserved: {_HOW}")


def _tell(one: Reservation, as_json: bool) -> None:
    if as_json:
        screen.print_json(one)
        return
    for line in screen.headline(one.id, one.state, one.why or f"{one.gpus} x {one.gpu_type} of {one.pool}"):
        typer.echo(line)
    facts = [
        ("GPUs", f"{one.gpus} x {one.gpu_type} of {one.pool}"),
        ("window", f"{words.moment(one.begins_at)} to {words.moment(one.ends_at)}"),
    ]
    if one.state in ("open", "short"):
        facts.append(("kept", f"{one.kept_gpus}: {one.own_gpus} used by own jobs, {one.spot_gpus} by spot jobs"))
    if one.kept_gpu_hours:
        facts.append(("so far", f"{one.kept_gpu_hours:.6g} GPU hours were kept"))
    screen.print_facts(facts)


def _read(args: list[str]) -> tuple[str, int, str]:
    from allpass.wire.reservations import MOST_RESERVED

    found = _SHAPE.match(args[1].strip()) if len(args) == 2 else None
    if found is None:
        raise CommandFailed("name a pool, and how many GPUs of which kind", hint=_HOW, code=WRONG_USAGE)
    if not 1 <= int(found[1]) <= MOST_RESERVED:
        raise CommandFailed(f"{found[1]} is not from 1 to {MOST_RESERVED} GPUs", hint=_HOW, code=WRONG_USAGE)
    return args[0], int(found[1]), found[2].strip()


def _window(
    begins: str | None, ends: str | None, lasts: str | None, zone: str | None
) -> tuple[datetime | None, datetime]:
    if (ends is None) == (lasts is None):
        raise CommandFailed("say until when, or for how long", hint=_HOW, code=WRONG_USAGE)
    whose = None if zone is None else zone_named(zone)
    now = datetime.now(timezone.utc)
    begins_at = None if begins is None else moment_of("--from", begins, whose, after=now)
    since = begins_at or now
    if lasts is not None:
        return begins_at, since + timedelta(seconds=seconds("--for", lasts))
    assert ends is not None  # one of both is given
    return begins_at, moment_of("--to", ends, whose, after=since)
