"""The command that tells how hard the deadlines press."""

from __future__ import annotations

from typing import Annotated

import typer

from allpass.cli import screen, words
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect


def pressure(
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=200, help="So many decisions.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="The object of GET /v1/pressure.")] = False,
) -> None:
    """Example: allpass pressure -n 20

    Show what the control loop saw and chose, newest first: the pressure of the deadlines (above 1, the rented GPUs
    alone cannot keep them), how long jobs may stay on serverless (F), and what it did.
    """
    with connect() as client:
        found = client.pressure(limit=count)
    if as_json:
        screen.print_json(found)
        return
    columns = [Column("AT"), Column("PRESSURE", right=True), Column("F", right=True), Column("DEMAND", right=True)]
    columns += [Column("GPUS", right=True), Column("WAITING", right=True), Column("CHOSE", flexible=True)]
    rows: list[list[Cell | str]] = [
        [
            words.moment(one.at),
            "-" if one.pressure is None else Cell(f"{one.pressure:.2f}", "red" if one.pressure > 1 else None),
            "-" if one.serverless_budget_s is None else f"{one.serverless_budget_s:.0f} s",
            "-" if one.demand_gpu_s is None else f"{one.demand_gpu_s:.0f} GPU s",
            "-" if one.capacity_gpus is None else f"{one.capacity_gpus:.0f}",
            str(one.jobs_waiting),
            ", ".join(f"{number} {kind}" for kind, number in one.actions.items()) or "nothing",
        ]
        for one in found.decisions
    ]
    if found.policy is not None:
        screen.say(f"policy {found.policy}")
    screen.print_table(columns, rows, empty="nothing was decided yet")
