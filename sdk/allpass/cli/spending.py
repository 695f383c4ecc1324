"""Commands about money: what was spent, and what could be rented."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.dated_prices import tell_dates
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.wire.usage import Offer, Usage, UsageLine

_MS_PER_HOUR = 3_600_000
_NOBODY = {"boot": "(booting)", "idle": "(idle machines)", "orphan": "(orphans)", "run": "(no label)"}


def cost(
    by: Annotated[
        str, typer.Option("--by", help="job, app, label:NAME, key (who submitted), day, provider, tier, size (GPUs).")
    ] = "job",
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only what this job cost, by its id.")] = None,
    since: Annotated[str | None, typer.Option(help="7d, 12h, or an instant: 2026-12-01T00:00Z.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many lines, the dearest first.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="The object of GET /v1/usage.")] = False,
) -> None:
    """Example: allpass cost --by app --since 7d

    Say what was spent and on what, to the micro-dollar (by size: on how many GPUs), and how much of it was for machines
    that stood idle: after a job had left them, or before any came. That counts for that job; what was rented ahead is
    a line of its own.
    """
    start = None if since is None else _instant(since, datetime.now(timezone.utc))
    with connect() as client:
        used = client.usage(by, since=start, job_id=job)
    if as_json:
        screen.print_json(used)
        return
    _print_usage(used, by, count)
    if used.idle_cost:
        typer.echo(
            f"  of that {words.money(used.idle_cost)} ({used.idle_cost / used.cost:.0%}) for machines that stood idle"
        )
        with connect() as client:
            about_idle = words.about_idle(client.project())
        for line in screen.prose(about_idle, first="  "):
            screen.say(line)


def offers(
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only this type of GPU, e.g. A100.")] = None,
    tier: Annotated[str | None, typer.Option(help="serverless, own, marketplace or conventional.")] = None,
    provider: Annotated[str | None, typer.Option(help="Only this provider.")] = None,
    max_price: Annotated[str | None, typer.Option(help="At most so many dollars per GPU and hour.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many, the cheapest first.")] = 30,
    as_json: Annotated[bool, typer.Option("--json", help="An array of offer objects, as in GET /v1/offers.")] = False,
) -> None:
    """Example: allpass offers --gpu A100 --max-price 1.20

    List what could be rented now, the cheapest per GPU first.
    """
    most = None if max_price is None else _micros(max_price)
    with connect() as client:
        found = list(islice(client.offers(gpu_type=gpu, tier=tier, provider=provider, max_price=most), count + 1))
    more, found = len(found) > count, found[:count]
    if as_json:
        screen.print_json(found)
        return
    now = datetime.now(timezone.utc)
    with_spot = any(one.spot_price_per_hour is not None for one in found)
    columns = [Column("GPU"), Column("PER GPU", right=True), Column("IN ALL", right=True, rank=1), Column("TIER")]
    columns += [Column("PROVIDER"), Column("OFFER", flexible=True), Column("REGION", flexible=True, rank=2)]
    columns += [
        *([Column("AS SPOT", right=True)] if with_spot else []),
        Column("STARTS IN", right=True),
        Column("LIVES", right=True, rank=4),
        Column("PER GB", right=True, rank=5),
        Column("SEEN", right=True, rank=3),
    ]
    rows: list[list[Cell | str]] = [
        [
            words.gpus(one.gpu_type, one.gpu_count),
            words.price(one.price_per_gpu_hour),
            words.price(one.price_per_hour),
            f"{one.tier}, bid" if one.interruptible else one.tier,
            one.provider,
            one.offer_id,
            one.region or "-",
            *([_as_spot(one)] if with_spot else []),
            words.duration(one.startup_ms / 1000),
            "-" if one.mean_life_ms is None else words.duration(one.mean_life_ms / 1000),
            "-" if one.traffic_per_gb is None else words.money(one.traffic_per_gb),
            f"{words.duration(now - one.seen_at)} ago",
        ]
        for one in found
    ]
    screen.print_table(columns, rows, empty="no provider offers that now")
    tell_dates((one.provider, one.price_as_of, one.price_is_old) for one in found)
    if more:
        screen.say(f"more: allpass offers -n {count * 2}")


def _as_spot(one: Offer) -> str:
    return "-" if one.spot_price_per_hour is None else words.price(one.spot_price_per_hour)


def _print_usage(used: Usage, by: str, count: int) -> None:
    columns = [Column("GPUS" if by == "size" else by.upper()), Column("NAME", flexible=True), Column("PAYER", rank=1)]
    columns += [Column("COST", right=True), Column("IDLE", right=True), Column("GPU-HOURS", right=True)]
    lines = _folded(used.lines, by)
    idle = {line.key: line.cost for line in used.lines if line.payer == "idle"}
    rows: list[list[Cell | str]] = [
        [
            _NOBODY[line.payer] if line.key is None else line.key,
            line.name or "-",
            line.payer,
            words.money(line.cost),
            words.spent(idle.get(line.key, 0) if "idle" in line.payer.split("+") else 0),
            _hours(line.gpu_ms),
        ]
        for line in lines[:count]
    ]
    hidden = lines[count:]
    if hidden or used.rest.lines:
        cost = used.rest.cost + sum(line.cost for line in hidden)
        gpu_ms = used.rest.gpu_ms + sum(line.gpu_ms for line in hidden)
        rows.append([f"({len(hidden) + used.rest.lines} more)", "-", "-", words.money(cost), "-", _hours(gpu_ms)])
    screen.print_table(columns, rows, empty="nothing was spent")
    so_far = ""
    if used.so_far:
        machines = "1 machine runs" if used.open_nodes == 1 else f"{used.open_nodes} machines run"
        so_far = f" so far ({machines})"
    typer.echo(f"  total {words.money(used.cost)} for {_hours(used.gpu_ms)} GPU-hours{so_far}")


def _folded(lines: Sequence[UsageLine], by: str) -> list[UsageLine]:
    """One line for each job (or app, label, day ...), whoever paid; the dearest first, sizes by their number. What is
    nobody's stays apart."""
    found: dict[tuple[str | None, str], UsageLine] = {}
    for line in lines:
        same = line.key, line.payer if line.key is None else ""
        known = found.get(same)
        found[same] = line if known is None else _together(known, line)
    if by == "size":
        return sorted(found.values(), key=lambda line: (line.key is None, int(line.key or 0)))
    return sorted(found.values(), key=lambda line: -line.cost)


def _together(one: UsageLine, other: UsageLine) -> UsageLine:
    payers = dict.fromkeys([*one.payer.split("+"), other.payer])
    cost, gpu_ms = one.cost + other.cost, one.gpu_ms + other.gpu_ms
    changed = {"payer": "+".join(payers), "cost": cost, "gpu_ms": gpu_ms, "name": one.name or other.name}
    return one.model_copy(update=changed)


def _hours(gpu_ms: int) -> str:
    return f"{gpu_ms / _MS_PER_HOUR:,.2f}"


def _instant(text: str, now: datetime) -> datetime:
    from allpass.wire.deadlines import parse_past

    try:
        return parse_past(text, now=now)
    except ValueError as error:
        raise CommandFailed(f"--since: {error}", hint="allpass cost --since 7d", code=WRONG_USAGE) from error


def _micros(dollars: str) -> int:
    try:
        micros = Decimal(dollars.strip().lstrip("$")) * words.MICROS
        known = 0 <= micros < 2**53
    except InvalidOperation:
        known = False
    if not known:
        hint = "allpass offers --max-price 1.20"
        raise CommandFailed(f"--max-price: {dollars!r} is no amount in dollars", hint=hint, code=WRONG_USAGE)
    return int(micros)
