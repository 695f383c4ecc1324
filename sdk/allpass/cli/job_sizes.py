"""How many GPUs a job has had over time, as `allpass show` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import typer

from allpass.cli import screen, words
from allpass.cli.screen import Cell, Column

if TYPE_CHECKING:
    from allpass.client import Client
    from allpass.wire.jobs import JobSize

_MOST = 12


def read(client: Client, job_id: str) -> list[JobSize]:
    """Empty where the server is older than they are."""
    from allpass.errors import NotFound

    try:
        return list(client.sizes(job_id))
    except NotFound:
        return []


def print_table(sizes: Sequence[JobSize]) -> None:
    """Of a job whose GPUs have changed while it ran, the newest of them."""
    if all(one.gpus_before is None for one in sizes):
        return
    typer.echo("")
    columns = [
        Column("FROM"),
        Column("FOR", right=True),
        Column("GPUS", right=True),
        Column("STEP", right=True),
        Column("WHY", flexible=True),
    ]
    now = datetime.now(timezone.utc)
    rows: list[list[Cell | str]] = [
        [
            words.moment(one.from_at),
            words.duration((one.to_at or now) - one.from_at),
            str(one.gpus),
            _step(one),
            one.text,
        ]
        for one in sizes[-_MOST:]
    ]
    screen.print_table(columns, rows, empty="")
    if len(sizes) > _MOST:
        screen.say(f"  {len(sizes) - _MOST} before these: allpass show JOB --json")


def _step(size: JobSize) -> str:
    """E.g. "0.213 s ±2%"."""
    if size.step_s is None:
        return "-"
    noise = "" if size.noise is None else f" ±{100 * size.noise:.0f}%"
    return f"{size.step_s:.3g} s{noise}"
