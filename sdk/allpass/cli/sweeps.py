"""`allpass sweep`: many parameter sets of one app, seen, cancelled and compared together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allpass.cli import screen, words
from allpass.cli.faults import WRONG_USAGE, CommandFailed
from allpass.cli.group import make_group
from allpass.cli.screen import Cell, Column
from allpass.cli.session import connect

if TYPE_CHECKING:
    from allpass.sweep import SweepRow
    from allpass.wire.jobs import Job

sweep = make_group()
SweepId = Annotated[str, typer.Argument(metavar="SWEEP", help="Id of the sweep, as allpass run gave it.")]
Metrics = Annotated[list[str] | None, typer.Option("--metric", "-m", help="Only this metric; repeat for more.")]
_ROW = '{"job_id", "parameters", "status", "step", "total_steps", "cost", "metrics"}'


@sweep.callback()
def sweeps() -> None:
    """Example: allpass sweep show swp_01JD9K3W0A4T6Z8X2C5V

    Look at the jobs of a sweep together: one table, the best one, or cancel all of them.
    """


@sweep.command("list")
def list_(
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Among so many of the newest jobs.")] = 1000,
    as_json: Annotated[
        bool, typer.Option("--json", help='An array of {"id", "name", "jobs", "statuses", "cost", "submitted_at"}.')
    ] = False,
) -> None:
    """Example: allpass sweep list

    List sweeps, newest first, with how many of their jobs are over and what they have cost.
    """
    with connect() as client:
        told = _sweeps(islice(client.jobs(), count))
    if as_json:
        screen.print_json(told)
        return
    columns = [Column("SWEEP"), Column("NAME", flexible=True)]
    columns += [Column(heading, right=True) for heading in ("JOBS", "DONE", "FAILED", "SPENT")]
    columns.append(Column("SUBMITTED"))
    rows: list[list[Cell | str]] = []
    for one in told:
        statuses = one["statuses"]
        done, failed = statuses.get("succeeded", 0), statuses.get("failed", 0)
        row: list[Cell | str] = [one["id"], one["name"], str(one["jobs"]), str(done)]
        row += [Cell(str(failed), "red" if failed else None), words.money(one["cost"])]
        rows.append([*row, words.moment(datetime.fromisoformat(one["submitted_at"]))])
    screen.print_table(columns, rows, empty="no sweeps. Submit one: allpass run train.py --params sweep.json")


def _sweeps(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job.sweep_id is None:
            continue
        one = found.setdefault(
            job.sweep_id, {"id": job.sweep_id, "name": job.name, "jobs": 0, "statuses": {}, "cost": 0}
        )
        one["jobs"] += 1
        one["statuses"][job.status] = one["statuses"].get(job.status, 0) + 1
        one["cost"] += job.cost
        one["submitted_at"] = job.submitted_at.isoformat()
    return list(found.values())


@sweep.command("show")
def show(
    sweep_id: SweepId,
    only: Metrics = None,
    as_json: Annotated[bool, typer.Option("--json", help=f"An array of {_ROW}.")] = False,
) -> None:
    """Example: allpass sweep show swp_01JD9K3W0A4T6Z8X2C5V --metric loss

    One line per job: the parameters in which the jobs differ, how far it is, and the last value of each metric.
    """
    with connect() as client:
        rows = client.sweep(sweep_id).table()
    if as_json:
        screen.print_json([asdict(row) for row in rows])
        return
    names = only or sorted({name for row in rows for name in row.metrics})
    _print_rows(rows, names)
    screen.say(f"best: allpass sweep best {sweep_id} {names[0] if names else 'loss'}")


@sweep.command("best")
def best(
    sweep_id: SweepId,
    metric: Annotated[str, typer.Argument(help="The metric to compare by, e.g. loss.")],
    goal: Annotated[str, typer.Option(help="min or max.")] = "min",
    as_json: Annotated[bool, typer.Option("--json", help=f"{_ROW} of the best job.")] = False,
) -> None:
    """Example: allpass sweep best swp_01JD9K3W0A4T6Z8X2C5V accuracy --goal max

    Name the job whose last reported value is best: that is the model it left. Prints its id alone when piped.
    """
    from allpass.sweep import best_row

    if goal not in ("min", "max"):
        raise CommandFailed(f"--goal: {goal!r} is neither min nor max", hint="--goal max", code=WRONG_USAGE)
    with connect() as client:
        rows = client.sweep(sweep_id).table()
    found = best_row(rows, metric, "min" if goal == "min" else "max")
    if as_json:
        screen.print_json(asdict(found))
    elif screen.is_interactive():
        differing = ", ".join(f"{name}={_text(found.parameters.get(name, ...))}" for name in _differing(rows))
        value = words.number(found.metrics[metric])
        typer.echo(f"{found.job_id}   {screen.printable(f'{metric} {value}   {differing}')}")
    else:
        typer.echo(found.job_id)


@sweep.command("cancel")
def cancel(
    sweep_id: SweepId,
    as_json: Annotated[bool, typer.Option("--json", help="An array of the ids of the jobs that were stopped.")] = False,
) -> None:
    """Example: allpass sweep cancel swp_01JD9K3W0A4T6Z8X2C5V

    Stop every job of a sweep that has not ended. What they left stays; what was used until now is paid.
    """
    with connect() as client:
        stopped = [job.id for job in client.sweep(sweep_id).cancel()]
    if as_json:
        typer.echo(json.dumps(stopped))
        return
    for job_id in stopped:
        typer.echo(f"{job_id}   {screen.paint('cancelled', screen.STATUS_COLOURS.get('cancelled'))}")
    if not stopped:
        screen.say("every job of it had ended")


def _print_rows(rows: Sequence[SweepRow], names: Sequence[str]) -> None:
    differing = _differing(rows)
    columns = [Column("JOB"), Column("STATUS"), *(Column(name, flexible=True) for name in differing)]
    columns += [Column("STEP", right=True), *(Column(name.upper(), right=True) for name in names)]
    columns.append(Column("SPENT", right=True))
    lines: list[list[Cell | str]] = []
    for row in rows:
        line: list[Cell | str] = [row.job_id, screen.status_cell(row.status)]
        line += [_text(row.parameters[name]) if name in row.parameters else "-" for name in differing]
        line.append(f"{row.step}/{row.total_steps}" if row.total_steps is not None else str(row.step))
        line += [words.number(row.metrics[name]) if name in row.metrics else "-" for name in names]
        line.append(words.money(row.cost))
        lines.append(line)
    screen.print_table(columns, lines, empty="the sweep has no jobs")
    typer.echo(f"  total {words.money(sum(row.cost for row in rows))}")


def _differing(rows: Sequence[SweepRow]) -> list[str]:
    """Names of the parameters that not all jobs share, in the order of the first job that has them."""
    sets = [row.parameters for row in rows]
    names = dict.fromkeys(name for one in sets for name in one)
    return [name for name in names if len({_text(one.get(name, ...)) for one in sets}) > 1]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value) if value is not ... else ""
