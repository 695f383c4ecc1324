"""The command that takes a decision of the control loop again, on what it saw then."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect
from allpass.errors import InvalidInput

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.pressure import Decision
    from allpass.wire.ticks import PlannedAction, Replay

_LISTED = 20
_FIGURES = {"p": "pressure", "F_s": "F in s", "C": "GPUs", "D_gpu_s": "demand in GPU s", "jobs_waiting": "jobs waiting"}

Rule = Annotated[
    list[str] | None, typer.Option("--set", metavar="RULE=VALUE", help="A rule of the policy allpass, repeatable.")
]


def replay(
    tick: Annotated[int | None, typer.Argument(metavar="TICK", min=1, help="Number of the decision.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Instead: the last one until then, 11:02, 11:02:14 or 2026-12-01T11:02Z.")
    ] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Instead: the last one with an action on JOB.")] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Only name the decisions that this would choose from.")
    ] = False,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="Who decides now; default: who did then.")] = None,
    rules: Rule = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The object of POST /v1/ticks/{id}/replay; with --list, an array.")
    ] = False,
) -> None:
    """Example: allpass replay --job job_01JD9K3W0A4T6Z8X2C5V --policy cheapest-first

    Take a decision of the control loop again on exactly what it saw, and show what comes out differently: with
    another policy, with other rules, or (without either) with the release that runs now. Nothing is enacted.
    """
    from allpass.wire.ticks import ReplayRequest

    if tick is None and at is None and job is None and not listing:
        raise InvalidInput("which decision? Give its number, --at or --job; --list names the newest")
    request = ReplayRequest(policy=policy, rules=_rules(rules or []))
    with connect() as client:
        if listing:
            _list(list(itertools.islice(_chosen(client, tick, at, job), _LISTED)), as_json=as_json)
            return
        number = tick if tick is not None else _newest(_chosen(client, tick, at, job), at, job).id
        found = client.replay_tick(number, request)
    if as_json:
        screen.print_json(found)
    else:
        _show(found)


def _chosen(client: Client, tick: int | None, at: str | None, job: str | None) -> Iterator[Decision]:
    if tick is not None:
        return iter([client.get_tick(tick)])
    return client.ticks(job_id=job, until=None if at is None else moment(at, datetime.now().astimezone()))


def _newest(found: Iterator[Decision], at: str | None, job: str | None) -> Decision:
    newest = next(found, None)
    if newest is None:
        about = f"with an action on {job}" if job is not None else f"until {at}"
        raise InvalidInput(f"no decision {about} is kept")
    return newest


def moment(text: str, now: datetime) -> datetime:
    """An instant, or the last time that it was so late today or yesterday. Raises InvalidInput."""
    for form in ("%H:%M", "%H:%M:%S"):
        try:
            clock = datetime.strptime(text, form)
        except ValueError:
            continue
        seconds = clock.second if form.endswith("S") else 59
        then = now.replace(hour=clock.hour, minute=clock.minute, second=seconds, microsecond=999_999)
        return then if then <= now + timedelta(minutes=1) else then - timedelta(days=1)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        accepted = "11:02, 11:02:14 or 2026-12-01T11:02:00Z"
        raise InvalidInput(f"--at: {text!r} is no time; try {accepted}") from None
    return instant if instant.tzinfo is not None else instant.astimezone()


def _rules(given: Sequence[str]) -> dict[str, float]:
    rules = {}
    for one in given:
        name, equals, value = one.partition("=")
        try:
            rules[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise InvalidInput(f"--set: {one!r} is no rule with a number; try --set move_gain=1.5")
    return rules


def _list(found: Sequence[Decision], *, as_json: bool) -> None:
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("TICK", right=True), Column("AT"), Column("BECAUSE OF"), Column("CHOSE", flexible=True)]
    rows: list[list[Cell | str]] = [
        [
            str(one.id),
            words.moment(one.at),
            one.trigger,
            ", ".join(f"{number} {kind}" for kind, number in one.actions.items()) or "nothing",
        ]
        for one in found
    ]
    screen.print_table(columns, rows, empty="no such decision is kept")


def _show(found: Replay) -> None:
    who = found.policy_then if found.policy_then == found.policy_now else f"{found.policy_then} -> {found.policy_now}"
    typer.echo(f"tick {found.id}   {words.moment(found.at)}   {who}")
    if found.caveat is not None:
        typer.echo(f"not exact: {found.caveat}")
    for mark, colour, actions in (
        ("=", None, found.both),
        ("-", "red", found.only_then),
        ("+", "green", found.only_now),
    ):
        for action in actions:
            _print_action(mark, colour, action)
    for wait in found.waits:
        typer.echo(f"{wait.job_id} waits")
        typer.echo(f"  then  {screen.printable(wait.then or 'it did not')}")
        typer.echo(f"  now   {screen.printable(wait.now or 'it would not')}")
    for name, shown in _FIGURES.items():
        then, now = found.signals_then.get(name), found.signals_now.get(name)
        if then != now:
            typer.echo(f"{shown}: {_figure(then)} -> {_figure(now)}")
    typer.echo(_summary(found))


def _print_action(mark: str, colour: str | None, action: PlannedAction) -> None:
    about = action.job_id or action.node_id or ""
    line = screen.printable(f"{mark} {action.kind:<9} {about}  {action.reason}")
    typer.echo(typer.style(line, fg=colour) if colour and screen.colours_wanted() else line)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _summary(found: Replay) -> str:
    hidden = found.others
    others = hidden.both + hidden.only_then + hidden.only_now + hidden.waits
    told = f"   (and {others} of other projects)" if others else ""
    if found.same:
        return f"decided again, it comes out the same: {len(found.both)} actions, {found.unchanged_waits} waits{told}"
    return (
        f"{len(found.both)} actions the same, {len(found.only_then)} only then (-), {len(found.only_now)} only now (+)"
        f"{told}"
    )
