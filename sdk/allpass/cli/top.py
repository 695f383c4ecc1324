"""`allpass top`: what runs now, on what, and what it costs an hour, again and again."""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.live import redraw
from allpass.cli.overview import print_jobs, print_nodes
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.jobs import Job, Node
    from allpass.wire.pressure import Pressure

_MOST_JOBS = 500  # the newest of those that are not over
NOT_OVER = ("queued", "starting", "running", "checkpointing", "waiting", "paused")
_HOLDING = frozenset({"requested", "booting", "ready", "draining", "unreachable", "unknown"})


def top(
    every: Annotated[float, typer.Option("--every", min=0.5, metavar="SECONDS", help="How often it is drawn.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Draw it once, also where no terminal is.")] = False,
) -> None:
    """Example: allpass top

    Watch jobs that are not over, the machines that are paid for, dollars an hour, and how hard the deadlines press.
    Ctrl-C leaves.
    """
    with connect() as client:
        if once:
            _draw(client)
        else:
            redraw(lambda: _draw(client), every)


def _draw(client: Client) -> None:
    jobs = list(islice(client.jobs(status=",".join(NOT_OVER)), _MOST_JOBS + 1))
    nodes = list(client.nodes())
    more, jobs = len(jobs) > _MOST_JOBS, jobs[:_MOST_JOBS]
    for line in screen.prose(_headline(jobs, nodes, more=more), rest="  "):
        typer.echo(line)
    typer.echo(_pressure(client.pressure(limit=1)))
    typer.echo("")
    if jobs:
        print_jobs(jobs)
        typer.echo("")
    if nodes:
        print_nodes(nodes)


def _headline(jobs: list[Job], nodes: list[Node], *, more: bool) -> str:
    """`more`: jobs than these are not over."""
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.status] = counts.get(job.status, 0) + 1
    told = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none"
    told = f"the newest {_MOST_JOBS:,}: {told}" if more else told
    paid = [node for node in nodes if node.state in _HOLDING]
    price = words.price(sum(node.price_per_hour for node in paid))
    at = clock()
    spent = words.money(sum(job.cost for job in jobs))
    return f"{at}   jobs: {told}, {spent} so far   machines: {len(paid)} at {price}"


def clock() -> str:
    """The time of this frame."""
    return f"{datetime.now(timezone.utc).astimezone():%H:%M:%S}"


def _pressure(seen: Pressure) -> str:
    if not seen.decisions:
        return "nothing was decided yet"
    newest = seen.decisions[0]
    pressure = "-" if newest.pressure is None else f"{newest.pressure:.2f}"
    budget = "-" if newest.serverless_budget_s is None else words.duration(newest.serverless_budget_s)
    return f"policy {newest.policy}: pressure {pressure}, time on serverless {budget}"
