"""The command that lends a job's GPUs for a while, and calls it back."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.session import connect
from allpass.cli.zones import zone_here, zone_named

if TYPE_CHECKING:
    from allpass.wire.standby import Standby, Window

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\Z")
_END = "end"
_WINDOW = "stbw_"
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SETS = {"daily": _DAYS, "day": _DAYS, "weekday": _DAYS[:5], "weekend": _DAYS[5:]}
_HOW = "allpass standby JOB --every weekday --from 20:00 --until 08:00 --zone Europe/Rome"
_STATES = {
    "leaving": "its code saves, then its GPUs are lent",
    "lent": "its GPUs are lent",
    "called_back": "it is called back",
    "ending": "it does not come back to its machine, which ends",
    "over": "it stands by no more",
}


def standby(
    args: Annotated[
        list[str], typer.Argument(metavar="[end] JOB", help="Id of the job; `end` calls it back, or ends a window.")
    ],
    until: Annotated[
        str | None,
        typer.Option(
            "--until", help='Until when: 08:00 (of this computer\'s clock), "8h" from now, or an instant with its zone.'
        ),
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", help="Again and again: daily, weekday, weekend, or mon,wed. With --from.")
    ] = None,
    begins: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="When such a window begins: 20:00.")
    ] = None,
    zone: Annotated[
        str | None, typer.Option("--zone", help="Whose clock --every is of: Europe/Rome; left out: this computer's.")
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
    there by itself when the window is over, or at `allpass standby end JOB`. With --every, --from and --until (a time
    of day) it does so again and again; `allpass standby end WINDOW` ends that. Without any of them: when it stood by,
    and what that has cost.
    """
    job_id, ends = _read(args)
    repeated = (every, begins, zone)
    if ends and (until is not None or lose_steps or any(repeated)):
        raise CommandFailed(
            "end takes a job, or a window, alone", hint=f"allpass standby end {job_id}", code=WRONG_USAGE
        )
    if any(repeated) or (ends and job_id.startswith(_WINDOW)):
        _repeat(job_id, until, every, begins, zone, lose_steps=lose_steps, as_json=as_json)
        return
    with connect() as client:
        if ends:
            shown = [client.end_standby(job_id)]
        elif until is not None:
            shown = [
                client.begin_standby(job_id, instant_of(until, datetime.now().astimezone()), lose_steps=lose_steps)
            ]
        else:
            shown = client.list_standbys(job_id)
        windows = [] if as_json or ends or until is not None else client.list_standby_windows(job_id)
    if as_json:
        screen.print_json(shown if until is None and not ends else shown[0])
        return
    for one in shown:
        _print(one)
    for window in windows:
        _print_window(window)
    if not shown and not windows:
        typer.echo(f"{job_id} has never stood by: allpass standby {job_id} --until 08:00")


def _repeat(
    job_id: str,
    until: str | None,
    every: str | None,
    begins: str | None,
    zone: str | None,
    *,
    lose_steps: bool,
    as_json: bool,
) -> None:
    """Agree on a window that comes again, or end one."""
    if not job_id.startswith(_WINDOW) and (every is None or begins is None or until is None):
        raise CommandFailed("a window that comes again has --every, --from and --until", hint=_HOW, code=WRONG_USAGE)
    with connect() as client:
        if every is None or begins is None or until is None:
            made = client.end_standby_window(job_id)
        else:
            where = zone or zone_here()
            zone_named(where)
            times = _time_of_day("--from", begins), _time_of_day("--until", until)
            made = client.repeat_standby(job_id, _days(every), *times, where, lose_steps=lose_steps)
    if as_json:
        screen.print_json(made)
    else:
        _print_window(made)


def _days(text: str) -> list[str]:
    named = [one.strip().lower() for one in text.split(",")]
    found = list(_SETS.get(named[0], ())) if len(named) == 1 else []
    found = found or [day for day in _DAYS if day in named]
    if not found or any(one not in _DAYS and one not in _SETS for one in named):
        raise CommandFailed(
            f"--every: {text!r:.80} names no days", hint="--every weekday, daily, or mon,wed,fri", code=WRONG_USAGE
        )
    return found


def _time_of_day(option: str, text: str) -> str:
    found = _CLOCK.match(text.strip())
    if found is None:
        raise CommandFailed(f"{option}: {text!r:.80} is no time of day", hint=_HOW, code=WRONG_USAGE)
    return f"{int(found[1]):02d}:{found[2]}"


def _print_window(one: Window) -> None:
    state = "repeats" if one.ended_at is None else "over"
    for line in screen.headline(one.id, state, one.why or f"{one.job_id} stands by again and again"):
        typer.echo(line)
    facts = [("window", f"{', '.join(one.days)} from {one.begins} to {one.ends}, {one.zone}")]
    if one.next_at is not None and one.next_until is not None:
        facts.append(("next", f"{words.moment(one.next_at)} to {words.moment(one.next_until)}"))
    screen.print_facts(facts)


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
