"""The command that lends a job's GPUs for a while, and calls it back."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.standby import Standby

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\Z")
_END = "end"
_STATES = {
    "leaving": "its code saves, then its GPUs are lent",
    "lent": "its GPUs are lent",
    "called_back": "it is called back",
    "ending": "it does not come back to its machine, which ends",
    "over": "it stands by no more",
}


def standby(
    args: Annotated[list[str], typer.Argument(metavar="[end] JOB", help="Id of the job; `end` calls it back.")],
    until: Annotated[
        str | None,
        typer.Option(
            "--until", help='Until when: 08:00 (of this computer\'s clock), "8h" from now, or an instant with its zone.'
        ),
    ] = None,
    lose_steps: Annotated[
        bool, typer.Option("--lose-steps", help="Also a job that does not save when it is asked to: it begins again.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The standby object; without --until and end, an array.")
    ] = False,
) -> None:
    """Example: allpass standby job_01JD9K3W0A4T6Z8X2C5V --until 08:00

    Lend the GPUs of a job that runs on hosts of a pool: it saves and leaves, spot jobs have its GPUs, and it goes on
    there by itself when the window is over, or at `allpass standby end JOB`. Without --until: when it stood by, and
    what that has cost.
    """
    job_id, ends = _read(args)
    if ends and (until is not None or lose_steps):
        raise CommandFailed("end takes a job alone", hint=f"allpass standby end {job_id}", code=WRONG_USAGE)
    with connect() as client:
        if ends:
            shown = [client.end_standby(job_id)]
        elif until is not None:
            shown = [
                client.begin_standby(job_id, instant_of(until, datetime.now().astimezone()), lose_steps=lose_steps)
            ]
        else:
            shown = client.list_standbys(job_id)
    if as_json:
        screen.print_json(shown if until is None and not ends else shown[0])
        return
    for one in shown:
        _print(one)
    if not shown:
        typer.echo(f"{job_id} has never stood by: allpass standby {job_id} --until 08:00")


def instant_of(text: str, now: datetime) -> str:
    """A time of day as the next such instant of the clock that `now` is of; anything else as it is."""
    found = _CLOCK.match(text.strip())
    if found is None:
        return text
    at = now.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0)
    at = at if at > now else at + timedelta(days=1)
    return at.replace(tzinfo=None).astimezone().isoformat() if _is_local(now) else at.isoformat()


def _is_local(now: datetime) -> bool:
    """Then the zone's offset is asked for again: it may be another one tomorrow."""
    return now.replace(tzinfo=None).astimezone().utcoffset() == now.utcoffset()


def _read(args: list[str]) -> tuple[str, bool]:
    ends = args[0] == _END
    jobs = args[1:] if ends else args
    if len(jobs) != 1:
        raise CommandFailed("name one job", hint="allpass standby JOB --until 08:00", code=WRONG_USAGE)
    return jobs[0], ends


def _print(one: Standby) -> None:
    why = f"{_STATES.get(one.state, one.state)}" + (f": {one.why}" if one.why else "")
    for line in screen.headline(one.job_id, one.state.replace("_", " "), why):
        typer.echo(line)
    facts = [
        ("window", f"until {words.moment(one.until)}"),
        ("GPUs", f"{one.gpus}, of which others have {one.used_gpus}"),
    ]
    facts.append(("costs", f"{words.price(one.price_per_hour)}, that is {_share(one)} of its price"))
    facts.append(("so far", f"{words.spent(one.paid)} paid, {words.spent(one.rebate)} rebate"))
    if one.slack_ms is not None:
        side = "before" if one.slack_ms >= 0 else "after"
        facts.append(
            ("deadline", f"done about {words.duration(abs(one.slack_ms) / 1000)} {side} it, if it comes back then")
        )
    if one.called_at is not None and one.back_at is not None:
        facts.append(("back", f"{words.duration(one.back_at - one.called_at)} after its call"))
    screen.print_facts(facts)


def _share(one: Standby) -> str:
    return f"{100 * (1 - one.rebate_share):.6g} %"
